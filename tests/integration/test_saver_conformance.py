"""The saver passes LangGraph's own conformance suite with the fence on: every write is under a real lease."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.report import CapabilityReport

from standfast.checkpoint.lease import claim
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.store import Store

# What the suite stores in metadata beyond what LangGraph itself does.
SUITE_KEYS = frozenset({"custom_key", "score"})


class SaverPerThread(BaseCheckpointSaver[str]):
    """One leased saver for each thread that the suite touches, as a driver would have it."""

    def __init__(self, store: Store, add_thread: Callable[[str], str]) -> None:
        super().__init__()
        self._store = store
        self._add_thread = add_thread
        self._savers: dict[str, LeasedSaver] = {}

    async def of(self, thread_id: str) -> LeasedSaver:
        if thread_id not in self._savers:
            self._add_thread(thread_id)
            lease = await claim(self._store.database, thread_id, seconds=600)
            self._savers[thread_id] = LeasedSaver(
                self._store.database, self._store.sealer, lease, check_head=False, metadata_keys=SUITE_KEYS
            )
        return self._savers[thread_id]

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        saver = await self.of(config["configurable"]["thread_id"])
        return await saver.aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await (await self.of(config["configurable"]["thread_id"])).aput_writes(config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await (await self.of(config["configurable"]["thread_id"])).aget_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for saver in self._savers.values():
            await saver.aflush()
        reader = LeasedSaver(self._store.database, self._store.sealer)
        async for found in reader.alist(config, filter=filter, before=before, limit=limit):
            yield found

    async def adelete_thread(self, thread_id: str) -> None:
        await (await self.of(thread_id)).adelete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        for saver in self._savers.values():
            await saver.adelete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await (await self.of(source_thread_id)).aflush()
        await (await self.of(target_thread_id)).acopy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread_id in thread_ids:
            await (await self.of(thread_id)).aprune([thread_id], strategy=strategy)


@pytest.mark.guarantee("G3")
async def test_the_saver_under_leases_passes_the_whole_conformance_suite(
    store: Store, add_thread: Callable[[str], str]
) -> None:
    @checkpointer_test(name="LeasedSaver")
    async def savers() -> AsyncIterator[SaverPerThread]:
        yield SaverPerThread(store, add_thread)

    report: CapabilityReport = await validate(savers)

    assert [] == [failure for result in report.results.values() for failure in result.failures]
    assert {
        "put": (17, 0, 0),
        "put_writes": (10, 0, 0),
        "get_tuple": (10, 0, 0),
        "list": (16, 0, 0),
        "delete_thread": (5, 0, 0),
        "delete_for_runs": (7, 0, 0),
        "copy_thread": (8, 0, 0),
        "prune": (8, 0, 0),
    } == {
        name: (result.tests_passed, result.tests_failed, result.tests_skipped)
        for name, result in report.results.items()
    }
