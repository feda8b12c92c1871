"""A saver that tells of each finished step, before the next one begins.

Invariant: a step is told of once its record is committed; LangGraph waits for that before it goes on
(`durability="sync"`). Taking an input in is no step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from standfast.checkpoint.saver import LeasedSaver


class SteppingSaver(LeasedSaver):
    """Tells `on_step` of each step, those of nested graphs included."""

    def __init__(self, *args: Any, on_step: Callable[[], Awaitable[None]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_step = on_step
        self._inputs_of: dict[str, str] = {}  # namespace: the checkpoint of its last input

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        stored = await super().aput(config, checkpoint, metadata, new_versions)
        namespace = config["configurable"].get("checkpoint_ns", "")
        parent = config["configurable"].get("checkpoint_id")
        if metadata.get("source") == "input":
            self._inputs_of[namespace] = checkpoint["id"]
        elif metadata.get("source") == "loop" and parent != self._inputs_of.get(namespace):
            await self._on_step()
        return stored
