"""A saver for plain LangGraph: `build_agent().compile(checkpointer=saver)` with `ainvoke` and `Command`, fenced.

Invariant: every write goes through a lease of its thread, taken at the first write, renewed while the thread is
written, and given up when it has been quiet for a while. Whoever else drives the thread makes the write fail by
name. What waits is answered as always: decisions by `Runtime.adecide` or the command line, then `Command(resume=...)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from standfast.checkpoint import errors
from standfast.checkpoint.lease import Lease, LeaseKeeper, claim, release
from standfast.checkpoint.operations import Call, Grant
from standfast.checkpoint.outgoing import StepMessages
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.settings import Settings
from standfast.checkpoint.store import Store
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.checkpoint.threads import NewRun, Run, Status
from standfast.graph.accepting import principal_of
from standfast.graph.door import graph_input, thread_id_of
from standfast.graph.opening import opened
from standfast.nodes.models import default_model
from standfast.tools.artifacts import ThreadArtifacts
from standfast.tools.drive import Drive
from standfast.tools.flow import Gate
from standfast.tools.ledger import EffectFunction, Ledger, Outcome, Resolve
from standfast.tools.limits import Limits
from standfast.tools.lineage import Lineage
from standfast.tools.operations import Policy

GRAPH: Final = "standalone"
_QUIET: Final = 1 / 3  # of the lease: after that without a write the thread is given up


@dataclass
class _Held:
    lease: Lease
    saver: LeasedSaver
    drive: Drive
    ledger: _BusyLedger
    used: float


class _BusyLedger(Ledger):
    """Knows whether an operation is under way: its thread is not quiet then."""

    busy = 0
    parks = False  # no worker would come for the thread

    async def execute(
        self,
        call: Call,
        policy: Policy,
        effect: EffectFunction,
        *,
        grant: Grant | None = None,
        resolve: Resolve | None = None,
    ) -> Outcome:
        self.busy += 1
        try:
            outcome = await super().execute(call, policy, effect, grant=grant, resolve=resolve)
            if outcome.state == "failed" and (call.kind == "model" or outcome.failure_class == "unauthorised"):
                # Whoever invokes the graph again carries it on: there is nobody else who could.
                await self._operations.forgive(self._lease.thread_id, call.run_id)
            return outcome
        finally:
            self.busy -= 1


class StandaloneSaver(BaseCheckpointSaver[str]):
    """Made by `standalone()`. Reads anything; writes under a lease for each thread."""

    def __init__(self, store: Store, keeper: LeaseKeeper, *, lease_seconds: float) -> None:
        self._reader = LeasedSaver(store.database, store.sealer, artifacts=store.artifacts)
        super().__init__(serde=self._reader.serde)
        self._store = store
        self._keeper = keeper
        self._seconds = lease_seconds
        self._held: dict[str, _Held] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    # -- leases

    def drive_of(self, thread_id: str) -> Drive | None:
        """What the agent's nodes need while this saver holds their thread."""
        held = self._held.get(thread_id)
        return None if held is None else held.drive

    async def _writer(self, config: RunnableConfig) -> LeasedSaver:
        thread = thread_id_of(config["configurable"]["thread_id"])
        async with self._locks.setdefault(thread, asyncio.Lock()):
            held = self._held.get(thread)
            if held is None or held.lease.lost is not None:
                held = await self._take(thread)
                self._held[thread] = held
            held.used = time.monotonic()
            return held.saver

    async def _take(self, thread: str) -> _Held:
        run = await self._run_of(thread)
        lease = await claim(self._store.database, thread, seconds=self._seconds)
        self._keeper.keep(lease)
        store = self._store
        gate = Gate(store.flow, lease, store.database.clock, parks=False)
        ledger = _BusyLedger(store.operations, lease, gate)
        messages = StepMessages(store.outbox, thread, run.id)
        drive = Drive(
            run=run,
            lease=lease,
            ledger=ledger,
            operations=store.operations,
            children=store.children,
            approvals=store.approvals,
            documents=store.documents,
            memory=store.memory,
            lineage=Lineage(store.forks, run),
            limits=Limits(run, store.operations, store.children, lease, store.database.clock),
            request=partial(graph_input, takes_messages=True),
            clock=store.database.clock,
            messages=messages,
            artifacts=ThreadArtifacts(store.artifacts, store.sealer.codec, thread),
            tell=lambda kind, path, data: None,
        )
        saver = LeasedSaver(store.database, store.sealer, lease, messages=messages, artifacts=store.artifacts)
        return _Held(lease, saver, drive, ledger, time.monotonic())

    async def _run_of(self, thread: str) -> Run:
        """The thread's one run, begun with the first write."""
        try:
            known = await self._store.threads.get(thread)
        except errors.UnknownThread:
            known = None
        if known is not None and known.run_id is not None and known.status is not Status.SUCCEEDED:
            return await self._store.threads.run(thread, known.run_id)
        principal = principal_of(None)
        new = NewRun(
            thread_id=thread,
            run_id=str(uuid.uuid4()),
            graph=GRAPH if known is None else known.graph,
            version="0",
            fingerprint="",
            input=None,
            requested_by=principal.name,
            vouched=principal.on_word,
            verified_by=principal.verified_by,
            model=Settings().model or default_model(),
        )
        run, _ = await self._store.threads.accept(new)
        return run

    async def give_up_quiet(self, *, all_of_them: bool = False) -> None:
        """Give up the leases of threads that nobody writes any more."""
        for thread, held in list(self._held.items()):
            async with self._locks[thread]:
                quiet = time.monotonic() - held.used > self._seconds * _QUIET and not held.ledger.busy
                if (all_of_them or quiet) and self._held.get(thread) is held:
                    self._keeper.drop(held.lease)
                    del self._held[thread]
                    with contextlib.suppress(errors.StandfastError):
                        await held.saver.aflush()
                        # Not due: only the program that compiled the graph can carry it on.
                        if not await self._store.waits.park(held.lease, held.drive.run.id, []):
                            await release(self._store.database, held.lease)

    # -- LangGraph's interface

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self._reader.get_next_version(current, channel)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await (await self._writer(config)).aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await (await self._writer(config)).aput_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await (await self._writer({"configurable": {"thread_id": thread_id}})).adelete_thread(thread_id)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._of(config).aget_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        async for found in self._of(config).alist(config, filter=filter, before=before, limit=limit):
            yield found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._of(config).aget_delta_channel_history(config=config, channels=channels)

    def _of(self, config: RunnableConfig | None) -> LeasedSaver:
        thread = None if config is None else config["configurable"].get("thread_id")
        held = self._held.get(str(thread))
        return self._reader if held is None else held.saver


@contextlib.asynccontextmanager
async def standalone(
    database_url: str | None = None, *, registry: TypeRegistry | None = None, lease_seconds: float = 15.0
) -> AsyncIterator[StandaloneSaver]:
    """A saver for `graph.compile(checkpointer=saver)`. Use `durability="sync"`, as LangGraph's default is not durable.

    Without `database_url`, `STANDFAST_DATABASE_URL` or the embedded server. Raises the `ConfigurationError`s.
    """
    async with opened(database_url) as database:
        keeper = LeaseKeeper(database.conninfo)
        saver = StandaloneSaver(Store.over(database, registry or TypeRegistry()), keeper, lease_seconds=lease_seconds)
        sweeper = asyncio.create_task(_sweep(saver, lease_seconds * _QUIET / 2))
        try:
            yield saver
        finally:
            sweeper.cancel()
            await asyncio.wait([sweeper])
            await saver.give_up_quiet(all_of_them=True)
            await asyncio.to_thread(keeper.close)


async def _sweep(saver: StandaloneSaver, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await saver.give_up_quiet()
