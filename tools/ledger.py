"""The ledger: the one way in which an operation is executed.

Invariant: an attempt is recorded before the effect and its end after it, both under the lease. A recorded end
is used again; an attempt that never reported is repeated only where its effect allows it. Nothing that an
operation does leaves here as an exception, except what ends the drive itself: a lost lease, a cancellation,
a database that is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal

from langgraph.errors import GraphBubbleUp

from standfast.checkpoint import errors
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.operations import Begun, Call, End, Grant, Operations
from standfast.checkpoint.outgoing import Messages, sending
from standfast.checkpoint.plain_text import storable_text
from standfast.tools.failures import TRANSIENT, FailureClass, failure_of
from standfast.tools.operations import Effect, Policy

UNSTORABLE: Final = "unstorable_result"
_FIRST_DELAY: Final = 0.5  # seconds before the second attempt, doubled for each further one


@dataclass(frozen=True)
class Outcome:
    """How an operation ended."""

    state: Literal["succeeded", "failed", "unknown"]
    result: Any = None
    failure_class: str | None = None
    failure_message: str | None = None
    attempt: int = 0
    reused: bool = False


@dataclass(frozen=True)
class Again:
    """The attempt failed in a way that time can mend, and another one is allowed."""


EffectFunction = Callable[[int, Any], Awaitable[Any]]


_called_once: ContextVar[str | None] = ContextVar("standfast.called_once", default=None)


def refuse_to_wait() -> None:
    """Raise `WaitRefused` inside an operation that must not be called twice: after a wait it would be."""
    name = _called_once.get()
    if name is not None:
        raise errors.WaitRefused(
            f"operation {name!r} is at_most_once and cannot wait: it would be called again from its top; "
            "wait in a node or in an operation before it"
        )


class Ledger:
    """Executes calls for one drive."""

    def __init__(self, operations: Operations, lease: Lease) -> None:
        self._operations = operations
        self._lease = lease

    async def execute(
        self, call: Call, policy: Policy, effect: EffectFunction, *, grant: Grant | None = None
    ) -> Outcome:
        """Execute `call` by `effect(attempt, connection)`, or return what is recorded.

        The connection is that of the recording transaction for a transactional operation, else None. With `grant`
        it is checked and used up where the attempt begins. Raises `NotGranted` and `OperationMismatch` before
        anything happens.
        """
        attempt_once = self._transaction if policy.effect is Effect.TRANSACTIONAL else self._attempt
        tries = 0
        while True:
            outcome = await attempt_once(call, policy, effect, grant, tries)
            if not isinstance(outcome, Again):
                return outcome
            await asyncio.sleep(_FIRST_DELAY * 2**tries)
            tries += 1

    async def leave(self, run_id: str, operation_id: str, why: str) -> Outcome:
        """End an operation that nobody can execute any more: as it is recorded, else as not known or not done."""
        for one in await self._operations.list(self._lease.thread_id, run_id):
            if one.id != operation_id:
                continue
            if one.state == "executing" and one.effect in (Effect.IDEMPOTENT, Effect.AT_MOST_ONCE):
                await self._operations.finish(
                    self._lease,
                    one.id,
                    one.attempts,
                    "unknown",
                    failure_class=FailureClass.UNKNOWN,
                    failure_message=why,
                )
                return Outcome("unknown", None, FailureClass.UNKNOWN, why, one.attempts)
            if one.state not in ("planned", "executing"):
                return _recorded(Begun(one.state, one.attempts, one.result, one.failure_class, one.failure_message))
        return Outcome("failed", None, FailureClass.PERMANENT, why)

    async def _attempt(
        self, call: Call, policy: Policy, effect: EffectFunction, grant: Grant | None, tries: int
    ) -> Outcome | Again:
        begun = await self._operations.begin(self._lease, call, grant=grant)
        if begun.state != "executing":
            return _recorded(begun)
        reach("operation.begun")
        self._lease.require()
        once = policy.effect is Effect.AT_MOST_ONCE
        mark = _called_once.set(call.name if once else None)
        messages = self._operations.messages(call, self._lease.thread_id)
        try:
            with sending(messages):
                async with asyncio.timeout(policy.timeout):
                    result = await effect(begun.attempt, None)
        except errors.LeaseLost:
            raise
        except GraphBubbleUp as question:
            if once:
                message = f"{type(question).__name__}: it asked in the middle, and must not be called again"
                await self._finish(call, begun.attempt, "unknown", None, FailureClass.UNKNOWN, message)
                return Outcome("unknown", None, FailureClass.UNKNOWN, message, begun.attempt)
            # The operation waits for an event or a time. It is called again from its top when that has come.
            await self._finish(call, begun.attempt, "waiting", None, None, None, messages)
            raise
        except Exception as error:  # noqa: BLE001 - whatever an operation raises is its failure, not ours
            return await self._failed(call, policy, begun.attempt, error, tries)
        finally:
            _called_once.reset(mark)
        reach("operation.done" if call.kind == "tool" else "model.called")
        try:
            sealed = self._operations.seal_result(self._lease, call.id, result)
        except errors.UnstorableValue as error:
            # It has happened: it is recorded as done and never called again.
            await self._finish(call, begun.attempt, "succeeded", None, UNSTORABLE, str(error), messages)
            return Outcome("failed", None, UNSTORABLE, str(error), begun.attempt)
        await self._finish(call, begun.attempt, "succeeded", sealed, None, None, messages)
        reach("operation.recorded" if call.kind == "tool" else "model.recorded")
        return Outcome("succeeded", result, attempt=begun.attempt)

    async def _transaction(
        self, call: Call, policy: Policy, effect: EffectFunction, grant: Grant | None, tries: int
    ) -> Outcome | Again:
        own: errors.OperationError | None = None
        messages = self._operations.messages(call, self._lease.thread_id)

        async def inside(connection: Any, attempt: int) -> Any:
            nonlocal own
            own = None
            messages.clear()
            try:
                with sending(messages):
                    async with asyncio.timeout(policy.timeout):
                        result = await effect(attempt, connection)
            except errors.OperationError as error:
                own = error
                raise
            reach("operation.done")
            return result

        try:
            begun, result = await self._operations.transact(self._lease, call, inside, grant=grant, messages=messages)
        except (errors.LeaseLost, errors.StorageUnavailable, GraphBubbleUp):
            raise
        except Exception as error:  # the transaction is rolled back: it has not happened
            if isinstance(error, errors.NotGranted | errors.OperationMismatch) and error is not own:
                raise  # nothing was begun; of the same class from the operation itself, it is a failure
            begun = await self._operations.begin(self._lease, call, grant=grant)
            if begun.state != "executing":
                return _recorded(begun)
            return await self._failed(call, policy, begun.attempt, error, tries)
        if begun.state != "executing":
            return _recorded(begun)
        reach("operation.recorded")
        return Outcome("succeeded", result, attempt=begun.attempt)

    async def _failed(self, call: Call, policy: Policy, attempt: int, error: Exception, tries: int) -> Outcome | Again:
        failure = failure_of(error)
        kind, message = failure.kind, storable_text(failure.message)  # as it is told now, so it is read back later
        uncertain = policy.effect is Effect.AT_MOST_ONCE and kind in (
            FailureClass.TIMEOUT,
            FailureClass.UNAVAILABLE,
            FailureClass.UNKNOWN,
        )
        if uncertain:  # the call may have arrived: nobody calls again
            await self._finish(call, attempt, "unknown", None, kind, message)
            return Outcome("unknown", None, kind, message, attempt)
        if kind in TRANSIENT and await self._failures(call, tries) < policy.retries:
            await self._finish(call, attempt, "planned", None, kind, message)
            return Again()
        # A model that does not answer ends the drive, not the operation: a later drive asks it again.
        await self._finish(call, attempt, "planned" if call.kind == "model" else "failed", None, kind, message)
        return Outcome("failed", None, kind, message, attempt)

    async def _failures(self, call: Call, tries: int) -> int:
        """The failures before this one that count: all of an operation's, of a model call those of this drive.

        A model that was away for long is given its full number of tries whenever somebody carries the run on.
        """
        return tries if call.kind == "model" else await self._operations.failed_attempts(self._lease, call.id)

    async def _finish(
        self,
        call: Call,
        attempt: int,
        state: End,
        sealed: bytes | None,
        failure_class: str | None,
        message: str | None,
        messages: Messages | None = None,
    ) -> None:
        await self._operations.finish(
            self._lease,
            call.id,
            attempt,
            state,
            sealed_result=sealed,
            failure_class=failure_class,
            failure_message=message,
            messages=messages,
        )


def _recorded(begun: Begun) -> Outcome:
    if begun.failure_class == UNSTORABLE:
        state: Literal["succeeded", "failed", "unknown"] = "failed"
    elif begun.state in ("succeeded", "reconciled"):
        state = "succeeded"
    else:
        state = "unknown" if begun.state == "unknown" else "failed"
    return Outcome(state, begun.result, begun.failure_class, begun.failure_message, begun.attempt, reused=True)
