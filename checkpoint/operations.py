"""The ledger's rows: every intended effect and every attempt at it.

Invariant: an operation is begun, and its end recorded, only under the thread's lease and in one transaction
each; what has been recorded once is never overwritten.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import psycopg
from psycopg.rows import DictRow

from standfast.checkpoint import errors
from standfast.checkpoint.audit import Audit, Refusal
from standfast.checkpoint.completions import Completion, complete
from standfast.checkpoint.database import Connection, Database
from standfast.checkpoint.lease import Lease, worker_name
from standfast.checkpoint.outbox import Outbox
from standfast.checkpoint.outgoing import Messages
from standfast.checkpoint.plain_text import storable_text
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.sqlstates import lost_a_race
from standfast.checkpoint.statements import statements

_SQL = statements("operations")

State = Literal["planned", "executing", "succeeded", "failed", "unknown", "reconciled"]
End = Literal["planned", "waiting", "succeeded", "failed", "unknown"]
"""How an attempt ended: `planned` failed and may be followed by another, `waiting` waits and is called again."""


@dataclass(frozen=True)
class Call:
    """One intended effect. `id` is made before the first attempt and is the key of every attempt."""

    id: str
    run_id: str
    kind: Literal["tool", "model", "step"]
    name: str
    namespace: str
    turn: int
    index: int
    effect: str
    digest: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Grant:
    """The grant that an attempt must use: of this approval, for this digest; `approval` None is none at all.

    `required` votes are needed, of a group whose members stand in `source`: of a list they are `members`.
    """

    approval: str | None = None
    digest: str | None = None
    policy_version: str | None = None
    required: int = 1
    source: str = "claims"
    members: Sequence[str] | None = None


@dataclass(frozen=True)
class Begun:
    """What beginning an attempt found: `executing` means go on.

    `planned`: it is too early, by `wait` seconds. `elapsed`: seconds since the first attempt that counts began.
    `waiting`: an earlier attempt may be under way until `until`; `pending`: it goes on elsewhere, known there by
    `handle`; `overdue`: so it does, and its time-out has passed. Anything else is the recorded end. Of `pending` and
    `unknown`: `looks` is how often its poll or reconcile could not tell, `until` when it is to be asked again, if
    that is not now.
    """

    state: State | Literal["waiting", "pending", "overdue"]
    attempt: int
    result: Any = None
    failure_class: str | None = None
    failure_message: str | None = None
    wait: float = 0.0
    elapsed: float = 0.0
    until: datetime | None = None
    looks: int = 0
    handle: Any = None


@dataclass(frozen=True)
class Tries:
    """The attempts at an operation that count: how many have failed, and seconds since the first began."""

    failures: int
    elapsed: float


@dataclass(frozen=True)
class PendingRetry:
    """An operation that has failed and may be attempted again from `at` on; `due` says that this is over."""

    operation_id: str
    name: str
    attempts: int
    at: datetime
    due: bool
    failure_class: str | None
    failure_message: str | None


@dataclass(frozen=True)
class Operation:
    """One operation as the ledger knows it."""

    id: str
    run_id: str
    kind: str
    name: str
    namespace: str
    turn: int
    index: int
    effect: str
    digest: str
    state: State
    arguments: Mapping[str, Any]
    result: Any
    failure_class: str | None
    failure_message: str | None
    attempts: int
    next_attempt_at: datetime | None
    created_at: datetime
    updated_at: datetime
    inherited: bool = False  # a fork found it done


@dataclass(frozen=True)
class Attempt:
    """One attempt at an operation."""

    operation_id: str
    number: int
    worker: str
    state: str
    started_at: datetime
    ended_at: datetime | None
    failure_class: str | None
    failure_message: str | None
    retry_after: float | None
    late: str | None = None  # how it ended after nobody waited for it any more
    late_at: datetime | None = None
    late_message: str | None = None


class Operations:
    """The rows of operations and attempts."""

    def __init__(self, database: Database, sealer: Sealer, outbox: Outbox) -> None:
        self._database = database
        self._sealer = sealer
        self._outbox = outbox
        self._audit = Audit(database)

    def messages(self, call: Call, thread_id: str) -> Messages:
        """What an attempt at `call` sends, to be handed to `transact` or `finish`."""
        return Messages(self._outbox, thread_id, call.run_id, (call.id,))

    async def begin(
        self,
        lease: Lease,
        call: Call,
        *,
        grant: Grant | None = None,
        timeout: float | None = None,
        within: float | None = None,
    ) -> Begun:
        """Record that an attempt begins, checking and consuming the grant, if one is needed, in the same transaction.

        `timeout`: for so many seconds the attempt may be under way, whatever becomes of this process; `within`: all
        attempts together. Raises
        `NotGranted`, `OperationMismatch` (the id was recorded for another call) and `LeaseLost`.
        """
        params = self._begin_params(lease, call, grant, timeout, within)
        async with self._audited(lease, call):
            row = await self._database.fetch_one(_SQL["begin"], params)
        assert row is not None
        return self._begun(lease, call, row)

    async def standing(self, lease: Lease, call: Call) -> Begun:
        """What `begin` would find, without beginning: `planned` is then one more state."""
        params = {"thread": lease.thread_id, "epoch": lease.epoch, "id": call.id}
        row = await self._database.fetch_one(_SQL["standing"], params)
        assert row is not None
        return self._begun(lease, call, row)

    async def transact(
        self,
        lease: Lease,
        call: Call,
        effect: Callable[[Connection, Begun], Awaitable[Any]],
        *,
        grant: Grant | None = None,
        messages: Messages | None = None,
    ) -> tuple[Begun, Any]:
        """Begin, effect, messages and end in one transaction: (what beginning found, the effect's result).

        What the effect raises rolls everything back and comes out as it is. The connection is inside a
        transaction block, in which psycopg refuses `commit`.
        """
        params = self._begin_params(lease, call, grant)

        async def work(conn: Connection) -> tuple[Begun, Any]:
            row = await (await conn.execute(_SQL["begin"], params)).fetchone()
            assert row is not None
            begun = self._begun(lease, call, row)
            if begun.state != "executing":
                return begun, None
            try:
                result = await effect(conn, begun)
            except psycopg.Error as error:
                if conn.closed or lost_a_race(error):
                    raise  # the whole transaction is tried again
                raise _EffectFailed(error) from error
            end = {
                "thread": lease.thread_id,
                "epoch": lease.epoch,
                "id": call.id,
                "attempt": begun.attempt,
                "state": "succeeded",
                "result": self.seal_result(lease, call.id, result),
                "failure_class": None,
                "failure_message": None,
                "delay": None,
                "retry_after": None,
            }
            for statement, values in messages.riders() if messages is not None else ():
                await conn.execute(statement, values)
            await conn.execute(_SQL["finish"], end)
            return begun, result

        async with self._audited(lease, call):
            try:
                return await self._database.run(work)
            except _EffectFailed as failed:
                raise failed.error from failed.error.__cause__

    @asynccontextmanager
    async def _audited(self, lease: Lease, call: Call) -> AsyncIterator[None]:
        """A call that was refused for want of a grant is in the audit."""
        try:
            yield
        except errors.NotGranted:
            await self._audit.refused(Refusal(lease.thread_id, errors.NotGranted.__name__, operation_id=call.id))
            raise

    def _begin_params(
        self, lease: Lease, call: Call, grant: Grant | None, timeout: float | None = None, within: float | None = None
    ) -> dict[str, Any]:
        used = grant or Grant()
        at = ("operations", lease.thread_id, call.id, "arguments")
        return {
            "thread": lease.thread_id,
            "epoch": lease.epoch,
            "id": call.id,
            "run": call.run_id,
            "kind": call.kind,
            "name": call.name,
            "namespace": call.namespace,
            "turn": call.turn,
            "index": call.index,
            "effect": call.effect,
            "digest": call.digest,
            "arguments": self._sealer.seal(dict(call.arguments), at=at),
            "worker": worker_name(),
            "needs_grant": grant is not None,
            "approval": used.approval,
            "granted": used.digest,
            "policy_version": used.policy_version,
            "required": used.required,
            "source": used.source,
            "members": None if used.members is None else list(used.members),
            "timeout": timeout,
            "within": within,
        }

    def _begun(self, lease: Lease, call: Call, row: DictRow) -> Begun:
        return Begun(
            state=row["state"],
            attempt=row["attempt"],
            result=self._open(row["result"], ("operations", lease.thread_id, call.id, "result")),
            failure_class=row["failure_class"],
            failure_message=row["failure_message"],
            wait=row["wait"],
            elapsed=row["elapsed"],
            until=row["until"],
            looks=row["looks"],
            handle=self._open(row["handle"], ("operations", lease.thread_id, call.id, "handle")),
        )

    def seal_result(self, lease: Lease, operation_id: str, result: Any) -> bytes:
        """The result as it will be stored; its thread refers to the artifacts in it. Raises `UnstorableValue`."""
        return self._sealer.seal(result, at=("operations", lease.thread_id, operation_id, "result"), artifacts={})

    async def finish(
        self,
        lease: Lease,
        operation_id: str,
        attempt: int,
        state: End,
        *,
        sealed_result: bytes | None = None,
        failure_class: str | None = None,
        failure_message: str | None = None,
        messages: Messages | None = None,
        delay: float | None = None,
        retry_after: float | None = None,
    ) -> bool:
        """Record how the attempt ended, and what it sends, in one transaction.

        `planned` may be attempted again after `delay` seconds. False if its end has been told from outside, which
        stands then.
        """
        params = {
            "thread": lease.thread_id,
            "epoch": lease.epoch,
            "id": operation_id,
            "attempt": attempt,
            "state": state,
            "result": sealed_result,
            "failure_class": failure_class,
            "failure_message": storable_text(failure_message),
            "delay": delay,
            "retry_after": retry_after,
        }
        row = await self._with_messages("finish", params, messages)
        return row is not None and bool(row["recorded"])

    async def _with_messages(
        self, statement: str, params: Mapping[str, Any], messages: Messages | None
    ) -> DictRow | None:
        """One statement, and what an attempt sends, in one transaction."""
        riders = messages.riders() if messages is not None else []
        if not riders:
            return await self._database.fetch_one(_SQL[statement], params)

        async def work(conn: Connection) -> DictRow | None:
            cursor = await conn.execute(_SQL[statement], params)
            for rider, values in riders:
                await conn.execute(rider, values)
            return await cursor.fetchone()

        return await self._database.run(work)

    async def pend(
        self,
        lease: Lease,
        operation_id: str,
        attempt: int,
        handle: Any,
        messages: Messages | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Record that the attempt goes on elsewhere, known there by `handle`, for at most `timeout` seconds.

        Raises `UnstorableValue`.
        """
        params = {
            "thread": lease.thread_id,
            "epoch": lease.epoch,
            "id": operation_id,
            "attempt": attempt,
            "handle": self._seal_handle(lease, operation_id, handle),
            "timeout": timeout,
        }
        await self._with_messages("pend", params, messages)

    async def stopped(self, lease: Lease, operation_id: str, attempt: int) -> None:
        """Record that an attempt was cut off before its end: if a key protects it, it may be made again at once."""
        params = {"thread": lease.thread_id, "epoch": lease.epoch, "id": operation_id, "attempt": attempt}
        await self._database.fetch_none(_SQL["stopped"], params)

    async def look_again(
        self, lease: Lease, operation_id: str, delay: float, handle: Any = None, *, timeout: float | None = None
    ) -> datetime:
        """Record that a poll or reconcile could not tell, and return when it is to be asked again.

        What goes on elsewhere has `timeout` seconds from now on, if they are given.
        """
        params = {
            "thread": lease.thread_id,
            "epoch": lease.epoch,
            "id": operation_id,
            "delay": delay,
            "handle": None if handle is None else self._seal_handle(lease, operation_id, handle),
            "timeout": timeout,
        }
        row = await self._database.fetch_one(_SQL["look_again"], params)
        assert row is not None
        return row["until"]  # type: ignore[no-any-return]

    async def settle(
        self,
        lease: Lease,
        operation_id: str,
        attempt: int,
        state: Literal["planned", "reconciled", "unknown"],
        *,
        sealed_result: bytes | None = None,
        failure_class: str | None = None,
        failure_message: str | None = None,
        answered: str | None = None,
        delay: float | None = None,
    ) -> bool:
        """Record what became of an unknown outcome, using the decision `answered`; False if it is settled already.

        `planned` may be attempted again after `delay` seconds.
        """
        params = {
            "thread": lease.thread_id,
            "epoch": lease.epoch,
            "id": operation_id,
            "attempt": attempt,
            "state": state,
            "result": sealed_result,
            "failure_class": failure_class,
            "failure_message": storable_text(failure_message),
            "answered": answered,
            "delay": delay,
        }
        row = await self._database.fetch_one(_SQL["settle"], params)
        return row is not None and bool(row["settled"])

    async def complete(
        self, completion: Completion, *, fit: Callable[[str, Any], Any] = lambda name, result: result
    ) -> None:
        """Tell the end of an operation, from anywhere: see `completions.complete`."""
        await complete(self._database, self._sealer, self._audit, completion, fit)

    def _seal_handle(self, lease: Lease, operation_id: str, handle: Any) -> bytes:
        return self._sealer.seal(handle, at=("operations", lease.thread_id, operation_id, "handle"), where="handle")

    async def tries(self, lease: Lease, operation_id: str) -> Tries:
        """The attempts that count: attempts that waited, or whose driver died, did not fail."""
        row = await self._database.fetch_one(_SQL["tries"], {"thread": lease.thread_id, "id": operation_id})
        assert row is not None
        return Tries(row["failures"], row["elapsed"])

    async def pending_retries(self, thread_id: str, run_id: str) -> Sequence[PendingRetry]:
        """What has failed and will be attempted again, the next one first."""
        rows = await self._database.fetch(_SQL["pending_retries"], {"thread": thread_id, "run": run_id})
        return [
            PendingRetry(
                operation_id=row["id"],
                name=row["name"],
                attempts=row["attempts"],
                at=row["next_attempt_at"],
                due=row["due"],
                failure_class=row["failure_class"],
                failure_message=row["failure_message"],
            )
            for row in rows
        ]

    async def model_calls(self, lease: Lease, run_id: str) -> int:
        """How often the run has called its model, this drive's calls in flight not counted."""
        params = {"thread": lease.thread_id, "run": run_id, "epoch": lease.epoch}
        row = await self._database.fetch_one(_SQL["model_calls"], params)
        assert row is not None
        return int(row["calls"])

    async def steps(self, thread_id: str, run_id: str) -> int:
        """How many steps of the run are on record, those of nested graphs included."""
        row = await self._database.fetch_one(_SQL["steps"], {"thread": thread_id, "run": run_id})
        assert row is not None
        return int(row["steps"])

    async def forgive(self, thread_id: str, run_id: str) -> None:
        """Give what the run has not finished a fresh budget of attempts, because a person said so."""
        await self._database.fetch_none(_SQL["forgive"], {"thread": thread_id, "run": run_id})

    async def list(self, thread_id: str, run_id: str | None = None) -> list[Operation]:
        """The operations of a thread, or of one run, oldest first."""
        rows = await self._database.fetch(_SQL["list"], {"thread": thread_id, "run": run_id})
        return [self._operation(thread_id, row) for row in rows]

    async def attempts(self, thread_id: str) -> Sequence[Attempt]:
        """All attempts of a thread, oldest first."""
        rows = await self._database.fetch(_SQL["attempts"], {"thread": thread_id})
        return [
            Attempt(
                operation_id=row["operation_id"],
                number=row["number"],
                worker=row["worker"],
                state=row["state"],
                started_at=row["started_at"],
                ended_at=row["ended_at"],
                failure_class=row["failure_class"],
                failure_message=row["failure_message"],
                retry_after=row["retry_after"],
                late=row["late"],
                late_at=row["late_at"],
                late_message=row["late_message"],
            )
            for row in rows
        ]

    def _operation(self, thread_id: str, row: DictRow) -> Operation:
        at = ("operations", thread_id, row["id"])
        return Operation(
            id=row["id"],
            run_id=row["run_id"],
            kind=row["kind"],
            name=row["name"],
            namespace=row["namespace"],
            turn=row["turn"],
            index=row["index"],
            effect=row["effect"],
            digest=row["digest"],
            state=row["state"],
            arguments=self._open(row["arguments"], (*at, "arguments")),
            result=self._open(row["result"], (*at, "result")),
            failure_class=row["failure_class"],
            failure_message=row["failure_message"],
            attempts=row["attempts"],
            next_attempt_at=row["next_attempt_at"],
            created_at=row["created_at"],
            updated_at=row["updated_at"],
            inherited=row["inherited"],
        )

    def _open(self, sealed: bytes | None, at: tuple[str, ...]) -> Any:
        return None if sealed is None else self._sealer.unseal(sealed, at=at)


class _EffectFailed(Exception):
    """A database refused what an effect asked of it: the operation's failure, which our own repeating leaves alone."""

    def __init__(self, error: psycopg.Error) -> None:
        self.error = error
