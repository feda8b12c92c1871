"""LangGraph's Postgres saver under a lease: fenced, one transaction for each step, closed to foreign types.

Invariants:
- Everything that is written checks the lease's epoch in the same transaction; a checkpoint also checks that it
  follows the head of its namespace.
- The writes of a step are held and ride in the transaction of its checkpoint. If none comes within a few turns
  of the event loop (a slow sibling is still running) they are flushed on their own, so that what has finished
  stays finished. `aput_writes` takes its place before its first await and never waits for a flush: LangGraph
  may await it before the checkpoint that would carry the rows.
- The checkpoint of an input rides with the next one. No node runs between the two, and until it is there a driver
  gives the input again.
- All values stand in sealed columns: small ones together in the checkpoint's own row, the others each in a row
  that is written once for each version. The checkpoint's JSONB holds versions only.

One object serves one lease, over the shared pool. The SQL of the parent class is used as it is; it is private
to langgraph-checkpoint-postgres, and a canary test watches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NoReturn, Protocol, cast

import orjson
import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.postgres.base import PRUNE_STRATEGIES
from langgraph.checkpoint.serde.types import ERROR, _DeltaSnapshot
from psycopg import AsyncCursor
from psycopg.rows import DictRow

from standfast.checkpoint import errors
from standfast.checkpoint.artifacts import Artifacts
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Database, Rider, Statement
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.outgoing import StepMessages
from standfast.checkpoint.parts import Parts
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements
from standfast.checkpoint.step_values import TAG, Refers, SealedValues, StepValues, is_small, packed

_SQL = statements("checkpoints")
_APPEND: Final = statements("events")["append"]
_TURNS: Final = 8  # measured: at most one turn lies between a step's last write and its checkpoint
_INSERT: Final = _SQL["put_write"]
_AT_ONCE: Final = frozenset({"__error_source_node__"})  # an error handler must not run beside a lost marker
_METADATA: Final = frozenset({"source", "step", "parents", "run_id", "counters_since_delta_snapshot"})


# The parameters of `append` in their order, as `put_step` names them.
_EVENTS: Final = ("thread", "run", "epoch", "first", "last", "events")


class Riders(Protocol):
    """What may be sent along in a checkpoint's transaction: taken, then stored, or restored if it failed."""

    @property
    def pending(self) -> bool: ...

    def take(self) -> Sequence[Rider]: ...

    def restore(self) -> None: ...

    def stored(self) -> None: ...


class LeasedSaver(AsyncPostgresSaver):
    """A saver for one drive under `lease`; without a lease it only reads.

    `forked` lets the first checkpoint of each namespace follow an older one than the head. `check_head` is
    switched off only by the conformance suite, which writes several roots. `metadata_keys` are stored beside
    the ones that LangGraph itself needs; nothing else of a run's configuration is. Large parts of values go to
    `artifacts`, and come back with them; when it `shows` only, artifacts stand for them, and nothing is loaded.
    """

    SELECT_SQL = _SQL["select"].decode() + " "

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        lease: Lease | None = None,
        *,
        check_head: bool = True,
        forked: bool = False,
        metadata_keys: frozenset[str] = frozenset(),
        riders: Riders | None = None,
        messages: StepMessages | None = None,
        artifacts: Artifacts | None = None,
        shows: bool = False,
    ) -> None:
        self._artifacts = artifacts if artifacts is not None else Artifacts(database, sealer)
        self._parts = Parts(self._artifacts)
        self._gives = None if shows else self._parts
        super().__init__(database.pool, serde=SealedValues(sealer, self._gives))
        self.database = database
        self.sealer = sealer
        self._values = StepValues(sealer, self._parts)
        self.lease = lease
        self._check_head = check_head
        self._forked = forked
        self._metadata_keys = _METADATA | metadata_keys
        self.riders = riders
        self.messages = messages
        self._inputs: list[dict[str, Any]] = []
        self._referred: set[tuple[str, bool]] = set()  # by SHA-256, and whether as a part
        self._held: list[Statement] = []
        self._mutex = asyncio.Lock()
        self._turns_left = 0
        self._counting = False
        self._flusher: asyncio.Task[None] | None = None
        self._written: set[str] = set()
        self._refused: str | None = None  # the first task with a value that cannot be stored
        # Under a lease on a thread without checkpoints, what this saver has not written does not exist.
        self._fresh = lease is not None and lease.head is None

    # -- writing

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._require_lease(config)
        where = config["configurable"]
        upsert = all(channel in WRITES_IDX_MAP for channel, _ in writes)
        statement = _SQL["replace_write"] if upsert else _INSERT
        refers = Refers()
        at = (where["thread_id"], where["checkpoint_ns"], where["checkpoint_id"], task_id, task_path)
        try:
            rows = self._values.writes(*at, writes, refers)
        except errors.UnstorableValue as error:
            self._refused = self._refused or task_id
            raise self._told_of(error) from None
        self._refer(refers)
        self._held.extend((statement, row) for row in rows)
        if self.messages is not None:
            self._held.extend(self.messages.take(task_id, failed=any(channel == ERROR for channel, _ in writes)))
        if any(channel in _AT_ONCE for channel, _ in writes):
            await self.aflush()
        else:
            self._arm()

    def _told_of(self, error: errors.UnstorableValue) -> errors.UnstorableValue:
        """The same, with the task whose value was refused."""
        return type(error)(error.message, **{**error.data, "task": self._refused})

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self._require_lease(config)
        where = config["configurable"]
        thread, namespace, parent = (
            where["thread_id"],
            where.get("checkpoint_ns", ""),
            where.get("checkpoint_id"),
        )
        values = checkpoint["channel_values"]
        versions = {channel: version for channel, version in new_versions.items() if channel in values}
        small = {channel: value for channel, value in values.items() if is_small(value)}
        at = ("checkpoints", thread, namespace, checkpoint["id"], "sealed")
        large = {channel: version for channel, version in versions.items() if channel not in small}
        refers = Refers()
        try:
            blobs = self._values.blobs(thread, namespace, values, large, refers)
        except errors.UnstorableValue as error:  # LangGraph waits for this first
            raise self._told_of(error) from None
        self._refer(refers)
        stripped = {
            **checkpoint,
            "channel_values": {name: True for name, value in values.items() if isinstance(value, _DeltaSnapshot)},
        }
        step = {
            "thread": thread,
            "namespace": namespace,
            "id": checkpoint["id"],
            "parent": parent,
            "check_head": self._check_head,
            "forked": self._forked and namespace not in self._written,
            "checkpoint": orjson.dumps(stripped),
            "sealed": self.sealer.seal(small, at=at, where="state") if small else None,
            "metadata": orjson.dumps(self._metadata(config, metadata)),
            "tag": TAG,
            **packed("blob", [(row[2:4], row[5], row[6]) for row in blobs]),
        }
        if metadata.get("source") == "input" and not self._held:
            self._inputs.append(step)
            self._arm()
        else:
            await self._commit(step)
            reach("saver.committed")
        self._written.add(namespace)
        return {
            "configurable": {
                "thread_id": thread,
                "checkpoint_ns": namespace,
                "checkpoint_id": checkpoint["id"],
            }
        }

    def _refer(self, refers: Refers) -> None:
        assert self.lease is not None
        for seen, as_parts in ((refers.artifacts, False), (refers.parts, True)):
            new = {sha256: one for sha256, one in seen.items() if (sha256, as_parts) not in self._referred}
            self._held.extend(self._artifacts.refer(self.lease.thread_id, new, as_parts=as_parts))
            self._referred.update((sha256, as_parts) for sha256 in new)

    async def aflush(self) -> None:
        """Commit what is held. Call it before anybody is told of an interrupt or an end."""
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
        if self._waiting or (self.riders is not None and self.riders.pending):
            await self._commit()

    @property
    def _waiting(self) -> bool:
        return bool(self._held or self._inputs)

    async def _commit(self, step: dict[str, Any] | None = None) -> None:
        async with self._mutex:  # a commit in flight took its rows before ours: keep the order
            inputs, self._inputs = self._inputs, []
            held, self._held = self._held, []
            riders = self.riders.take() if self.riders is not None else []
            try:
                await self._parts.put()
                before = [self._put(one) for one in inputs]
                await self._send([*before, *self._fenced_rows(held, step, riders)])
            except BaseException:
                self._inputs = inputs + self._inputs
                self._held = held + self._held  # every statement may be sent again
                if riders and self.riders is not None:
                    self.riders.restore()
                raise
            if riders and self.riders is not None:
                self.riders.stored()
        self._arm()

    def _fenced_rows(
        self, held: Sequence[Statement], step: dict[str, Any] | None, riders: Sequence[Rider]
    ) -> Sequence[Statement]:
        """The statements of a commit, the first with the fence; a step is nearly always a single one.

        Measured: a statement for each row takes twice the time of one for all, in the client and the server.
        """
        assert self.lease is not None
        if step is None:
            return [self._fence(), *held, *riders]
        events: Sequence[Any] = ()
        if len(riders) == 1 and riders[0][0] is _APPEND:
            events, riders = riders[0][1], ()
        before: list[Statement] = []
        if any(statement is not _INSERT for statement, _ in held):
            # Rows that may replace others are put one by one, in their order.
            before, held = [self._fence(), *held], []
        return [*before, self._put(step, [row for _, row in held], events), *riders]

    def _put(self, step: dict[str, Any], writes: Sequence[Any] = (), events: Sequence[Any] = ()) -> Statement:
        """The statement of one checkpoint, with the writes and the events that ride along."""
        assert self.lease is not None
        told = zip(_EVENTS, events, strict=True) if events else ((name, None) for name in _EVENTS)
        fence = {"thread": self.lease.thread_id, "epoch": self.lease.epoch}
        return _SQL["put_step"], {
            **step,
            **dict(told),
            **fence,
            **packed("write", [(row[1:7], row[8], row[9]) for row in writes]),
        }

    def _fence(self) -> Statement:
        assert self.lease is not None
        return _SQL["assert_lease"], (self.lease.thread_id, self.lease.epoch)

    async def _transaction(self, sent: Sequence[Statement]) -> None:
        assert self.lease is not None
        self.lease.require()
        with self._noticing_a_loss():
            await self.database.commit_alone([self._fence(), *sent])

    async def _send(self, fenced: Sequence[Statement]) -> None:
        assert self.lease is not None
        self.lease.require()
        with self._noticing_a_loss():
            await self.database.commit(fenced)

    @contextmanager
    def _noticing_a_loss(self) -> Iterator[None]:
        assert self.lease is not None
        try:
            yield
        except errors.LeaseLost as error:
            raise self.lease.lose("a newer epoch holds the thread") from error

    # -- flushing by turns of the loop

    def _arm(self) -> None:
        if self._waiting:
            self._turns_left = _TURNS
            if not self._counting:
                self._counting = True
                self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        # Not counted while a transaction is in flight: its end arms again, and the checkpoint that is about
        # to come takes the rows along.
        if not self._waiting or self._mutex.locked():
            self._counting = False
            return
        self._turns_left -= 1
        if self._turns_left > 0:
            self.loop.call_soon(self._turn)
            return
        self._counting = False
        self._flusher = self.loop.create_task(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        try:
            await self._commit()
        except (errors.StandfastError, psycopg.Error):
            pass  # the rows were put back; whoever commits or flushes next raises it
        finally:
            self._flusher = None

    # -- reading: what is held is flushed first

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        await self._before_reading()
        if self._fresh and not self._written and self._is_ours(config):
            return None
        row = await self.database.again(lambda: AsyncPostgresSaver.aget_tuple(self, config))
        return None if row is None else await self._load(row)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        await self._before_reading()
        rows = [row async for row in super().alist(config, filter=filter, before=before, limit=limit)]
        for row in rows:
            yield await self._load(row)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        await self._before_reading()

        async def read() -> Mapping[str, DeltaChannelHistory]:
            return await AsyncPostgresSaver.aget_delta_channel_history(self, config=config, channels=channels)

        return await self._parts.whole(lambda: self.database.again(read))

    async def live_namespaces(self, thread_id: str, prefix: str) -> list[str]:
        """The namespaces of subgraph calls in flight directly below `prefix` (such as `operation:`)."""
        await self._before_reading()
        rows = await self.database.fetch(_SQL["live_namespaces"], {"thread": thread_id, "prefix": prefix})
        return [row["checkpoint_ns"] for row in rows]

    async def _before_reading(self) -> None:
        if self._waiting or self._flusher is not None:
            await self.aflush()

    # -- whole threads

    async def adelete_thread(self, thread_id: str) -> None:
        self._require_lease({"configurable": {"thread_id": thread_id}})
        await self._before_reading()
        await self._transaction([(_SQL[name], (thread_id,)) for name in _DELETE])
        self._forget_references()

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs, of the leased thread, with their writes and unused blobs."""
        self._require_lease(None)
        await self._before_reading()
        assert self.lease is not None
        params = (self.lease.thread_id, list(run_ids))
        await self._transaction([(_SQL["delete_runs"], params), *((_SQL[name], params[:1]) for name in _UNUSED)])
        self._forget_references()

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the newest checkpoint of the leased thread, or (`delete`) nothing.

        What DeltaChannels hold is read from the checkpoints since their last snapshot: those stay too. A runtime's
        `aprune(keep_checkpoints=1)`, which knows the graph, writes it into the newest one.
        """
        if strategy not in PRUNE_STRATEGIES:
            raise errors.UsageError(f"there is no strategy {strategy!r} for pruning; there are {PRUNE_STRATEGIES}")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self.adelete_thread(thread_id)
            else:
                await self._keep_latest(thread_id)

    async def _keep_latest(self, thread_id: str) -> None:
        self._require_lease({"configurable": {"thread_id": thread_id}})
        await self._before_reading()
        await self._transaction([(_SQL["keep_latest"], (thread_id,))])
        self._forget_references()

    def _forget_references(self) -> None:
        self._referred.clear()
        self._parts.forget()

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread's whole chain; the lease is the target's. Open questions keep their ids."""
        self._require_lease({"configurable": {"thread_id": target_thread_id}})
        await self._before_reading()
        await self._transaction([(_SQL["copy_thread"], (source_thread_id, target_thread_id))])
        self._fresh = False

    async def _load_checkpoint_tuple(self, value: DictRow) -> CheckpointTuple:
        # Handed on as it is: the parent holds a connection, and parts are read over another one.
        return cast("CheckpointTuple", value)

    async def _load(self, row: Any) -> CheckpointTuple:
        async def read() -> CheckpointTuple:
            return self._values.load(row, self._gives)

        return await self._parts.whole(read)

    def _metadata(self, config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
        known = {**config.get("metadata", {}), **metadata}
        return {key: known[key] for key in self._metadata_keys if key in known}

    # -- guards

    def _require_lease(self, config: RunnableConfig | None) -> None:
        if self.lease is None:
            raise errors.UsageError(
                "this saver has no lease and only reads; write through Runtime, or through standalone()"
            )
        self.lease.require()
        if config is not None and not self._is_ours(config):
            thread = config["configurable"]["thread_id"]
            raise errors.UsageError(f"this saver holds the lease of {self.lease.thread_id!r}, not of {thread!r}")

    def _is_ours(self, config: RunnableConfig) -> bool:
        return self.lease is not None and config["configurable"]["thread_id"] == self.lease.thread_id

    @asynccontextmanager
    async def _cursor(self, *, pipeline: bool = False) -> AsyncIterator[AsyncCursor[DictRow]]:
        # The parent's reads come here: no process-wide lock, one pool connection each.
        async with self.database.reading() as conn:
            if pipeline:
                async with conn.pipeline(), conn.cursor(binary=True) as cursor:
                    yield cursor
            else:
                async with conn.cursor(binary=True) as cursor:
                    yield cursor

    def with_allowlist(self, extra_allowlist: Any) -> LeasedSaver:
        return self  # the codec's registry is the only allow-list

    def _refuse_in_loop(self) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return
        if running is self.loop:
            raise errors.WrongLoop("a blocking storage call inside the event loop would hang; use its async twin")

    def put(self, *args: Any, **kwargs: Any) -> RunnableConfig:
        self._refuse_in_loop()
        return super().put(*args, **kwargs)

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        self._refuse_in_loop()
        super().put_writes(*args, **kwargs)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        self._refuse_in_loop()
        return super().get_tuple(config)

    def list(self, *args: Any, **kwargs: Any) -> Iterator[CheckpointTuple]:
        self._refuse_in_loop()
        return super().list(*args, **kwargs)

    def delete_thread(self, thread_id: str) -> None:
        self._refuse_in_loop()
        super().delete_thread(thread_id)

    def prune(self, *args: Any, **kwargs: Any) -> None:
        self._refuse_in_loop()
        super().prune(*args, **kwargs)

    def get_delta_channel_history(self, **kwargs: Any) -> Mapping[str, DeltaChannelHistory]:
        self._refuse_in_loop()
        return super().get_delta_channel_history(**kwargs)

    async def setup(self) -> NoReturn:
        raise errors.UsageError("the schema is made by standfast.checkpoint.migrate, not by the saver")


_DELETE: Final = ("delete_checkpoints", "delete_blobs", "delete_writes", "drop_parts")
_UNUSED: Final = ("delete_orphans", "drop_parts")
