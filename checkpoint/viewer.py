"""A saver for looking: threads by their UUIDs, for servers that know no other ids.

Invariant: it writes nothing, whoever asks and whatever for. What drives a thread takes its lease elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory

from standfast.checkpoint import errors
from standfast.checkpoint.saver import LeasedSaver

T = TypeVar("T")


class ViewingSaver(BaseCheckpointSaver[str]):
    """Reads through `saver`; `named` gives a thread's id for its UUID."""

    def __init__(self, saver: LeasedSaver, named: Callable[[str], Awaitable[str]]) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._named = named

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self._saver.get_next_version(current, channel)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        uuid, ours = await self._ours(config)
        found = await self._saver.aget_tuple(ours)
        return None if found is None else _shown(found, uuid)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        if config is None:
            raise errors.UsageError("checkpoints are listed for one thread")
        uuid, ours = await self._ours(config)
        async for found in self._saver.alist(ours, filter=filter, before=before, limit=limit):
            yield _shown(found, uuid)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        _, ours = await self._ours(config)
        return await self._saver.aget_delta_channel_history(config=ours, channels=channels)

    async def aput(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse()

    async def aput_writes(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse()

    async def adelete_thread(self, thread_id: str) -> NoReturn:
        _refuse()

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> NoReturn:
        _refuse()

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> NoReturn:
        _refuse()

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> NoReturn:
        _refuse()

    async def _ours(self, config: RunnableConfig) -> tuple[str, RunnableConfig]:
        where = config["configurable"]
        uuid = str(where["thread_id"])
        kept = {key: where[key] for key in ("checkpoint_ns", "checkpoint_id") if where.get(key) is not None}
        return uuid, {"configurable": {**kept, "thread_id": await self._named(uuid)}}


def _shown(found: CheckpointTuple, uuid: str) -> CheckpointTuple:
    return found._replace(config=_at(found.config, uuid), parent_config=_at(found.parent_config, uuid))


def _at(config: T, uuid: str) -> T:
    if config is None:
        return config
    known = cast("RunnableConfig", config)
    return cast("T", {**known, "configurable": {**known["configurable"], "thread_id": uuid}})


def _refuse() -> NoReturn:
    raise errors.UsageError(
        "a thread's state is written under its lease only, by its driver; nothing was changed. Start a run, "
        "answer what it asks, or work on a fork: standfast fork THREAD"
    )
