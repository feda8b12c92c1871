"""The ledger: the one way in which an operation is executed.

Invariant: an attempt is recorded before the effect and its end after it, both under the lease. A recorded end
is used again; an attempt that never reported is repeated only where its effect allows it. Nothing that an
operation does leaves here as an exception, except what ends the drive itself: a lost lease, a cancellation,
a database that is away, a delay that is too long to be slept.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeVar

from langgraph.errors import GraphBubbleUp

from standfast.checkpoint import errors, telemetry
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.operations import Begun, Call, End, Grant, Operations
from standfast.checkpoint.outgoing import Messages, sending
from standfast.checkpoint.plain_text import storable_text
from standfast.tools.failures import Failure, FailureClass, failure_of
from standfast.tools.flow import Gate
from standfast.tools.halts import Later
from standfast.tools.operations import Effect, Policy
from standfast.tools.outcomes import Pending

UNSTORABLE: Final = "unstorable_result"
ABANDONED: Final = "abandoned"  # nobody knows, and somebody said that it shall rest
_SECONDS_TO_STOP: Final = 5.0
UNDECIDED: Final = frozenset({"waiting", "pending", "overdue", "unknown"})
_STARTABLE: Final = frozenset({"planned", "executing"})
_REPEATABLE: Final = frozenset({"waiting", "unknown"})  # an attempt whose end nobody knows is made again
_SHORTEST: Final = 0.005  # seconds of sleep: what is left of a delay may be next to nothing

_QUICK: Final = 1.0  # seconds of waiting that nobody is told of
_LOG = logging.getLogger("standfast.ledger")
_TOO_LATE: Final = "the deadline of its attempts had passed before this one"


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
    """The attempt failed in a way that time can mend, and another one is allowed after `delay` seconds."""

    delay: float


T = TypeVar("T")


@dataclass(frozen=True)
class Undecided:
    """The ledger can neither begin an attempt nor tell how it ended: `waiting`, `pending`, `overdue` or `unknown`."""

    begun: Begun


class Look:
    """The ledger has changed: what stands there now counts."""


Attempted = Outcome | Again | Undecided | Look
EffectFunction = Callable[[int, Any], Awaitable[Any]]
AttemptOnce = Callable[[Call, Policy, EffectFunction, Grant | None], Awaitable[Attempted]]
Resolve = Callable[[Begun], Awaitable[None]]
"""Finds out more and records it, or parks the thread; then the ledger looks again."""


_ends_at: ContextVar[float | None] = ContextVar("standfast.ends_at", default=None)


def attempt_ends_at() -> float | None:
    """When the attempt under way is cut off, by `time.monotonic()`; None if it is not."""
    return _ends_at.get()


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
    """Executes calls for one drive. `parks`: whoever drives lets the thread go for a long delay."""

    parks: ClassVar[bool] = True

    def __init__(self, operations: Operations, lease: Lease, gate: Gate) -> None:
        self._operations = operations
        self._lease = lease
        self._gate = gate

    async def execute(
        self,
        call: Call,
        policy: Policy,
        effect: EffectFunction,
        *,
        grant: Grant | None = None,
        resolve: Resolve | None = None,
    ) -> Outcome:
        """Execute `call` by `effect(attempt, connection)`, or return what is recorded.

        The connection is that of the recording transaction for a transactional operation, else None. With `grant`
        it is checked and used up where the attempt begins. `resolve` is asked about an attempt that may be under way,
        here or elsewhere, or whose outcome is unknown; without it that is returned as unknown. Raises `NotGranted`
        and `OperationMismatch` before anything happens.
        """
        attempt_once = self._transaction if policy.effect is Effect.TRANSACTIONAL else self._attempt
        while True:
            attempt = self._gated(attempt_once, call, policy, effect, grant)
            try:
                outcome = await (attempt if policy.retry.on_cancel == "stop" else self._undisturbed(attempt))
            except errors.ForkMayOnlyRead as refused:
                return Outcome("failed", None, FailureClass.PERMANENT, str(refused))
            if isinstance(outcome, Outcome):
                if not outcome.reused:
                    telemetry.operation_ended(call.kind, call.name, outcome.state)
                return outcome
            if isinstance(outcome, Undecided):
                if resolve is None:
                    return _end_of(outcome.begun)
                await resolve(outcome.begun)
            elif isinstance(outcome, Again):
                if self.parks and outcome.delay > policy.retry.park_over:
                    raise Later
                if outcome.delay > _QUICK:
                    _LOG.info(
                        "%s of thread %r can be attempted in %.0f s", call.name, self._lease.thread_id, outcome.delay
                    )
                # Slept by our clock, begun by the database's: what is left then is slept again.
                await asyncio.sleep(max(outcome.delay, _SHORTEST))

    async def _gated(
        self, attempt_once: AttemptOnce, call: Call, policy: Policy, effect: EffectFunction, grant: Grant | None
    ) -> Attempted:
        """Attempt when the fleet's limits allow it; what is recorded already is not held up."""
        keys = await self._gate.keys(call)
        startable = _STARTABLE if policy.effect is Effect.AT_MOST_ONCE else _STARTABLE | _REPEATABLE
        if not keys or (await self._operations.standing(self._lease, call)).state not in startable:
            return await attempt_once(call, policy, effect, grant)
        async with self._gate.passed(call, keys):
            return await attempt_once(call, policy, effect, grant)

    async def _undisturbed(self, attempt: Coroutine[Any, Any, Attempted]) -> Attempted:
        """Let an attempt end, and be recorded, before a cancellation goes on; a second one cuts it off."""
        task = asyncio.ensure_future(attempt)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._lease.lost is None:
                await asyncio.wait([task])
            raise
        finally:
            if task.cancel():
                await asyncio.wait([task])

    async def leave(self, call: Call, why: str, resolve: Resolve) -> Outcome:
        """End an operation that nobody can execute any more: as it is recorded, or becomes known, else as not done."""
        while True:
            begun = await self._operations.standing(self._lease, call)
            if begun.state in ("planned", "executing"):  # nothing has happened, or nothing that counts
                return Outcome("failed", None, FailureClass.PERMANENT, why, begun.attempt)
            if begun.state not in UNDECIDED:
                return _end_of(begun)
            await resolve(begun)

    async def _begin(self, call: Call, policy: Policy, grant: Grant | None) -> Begun:
        return await self._operations.begin(
            self._lease, call, grant=grant, timeout=policy.timeout, within=policy.retry.deadline
        )

    async def _attempt(self, call: Call, policy: Policy, effect: EffectFunction, grant: Grant | None) -> Attempted:
        begun = await self._begin(call, policy, grant)
        if begun.state != "executing":
            return _recorded(begun)
        reach("operation.begun")
        self._lease.require()
        seconds = _seconds_for(policy, begun)
        if seconds == 0.0:
            return await self._too_late(call, begun.attempt)
        once = policy.effect is Effect.AT_MOST_ONCE
        mark = _called_once.set(call.name if once else None)
        messages = self._operations.messages(call, self._lease.thread_id)
        try:
            with sending(messages):
                result = await _measured(call, begun.attempt, _within(seconds, effect(begun.attempt, None)))
        except errors.LeaseLost:
            raise
        except GraphBubbleUp as question:
            if once:
                message = f"{type(question).__name__}: it asked in the middle, and must not be called again"
                await self._finish(call, begun.attempt, "unknown", None, FailureClass.UNKNOWN, message)
                return Look()
            # The operation waits for an event or a time. It is called again from its top when that has come.
            await self._finish(call, begun.attempt, "waiting", None, None, None, messages)
            raise
        except asyncio.CancelledError:
            await self._stopped(call, begun.attempt)
            raise
        except Exception as error:  # noqa: BLE001 - whatever an operation raises is its failure, not ours
            return await self._failed(call, policy, begun.attempt, error)
        finally:
            _called_once.reset(mark)
        reach("operation.done" if call.kind == "tool" else "model.called")
        try:
            if isinstance(result, Pending):
                await self._operations.pend(
                    self._lease, call.id, begun.attempt, result.handle, messages, timeout=result.timeout
                )
                reach("operation.pending")
                return Look()
            sealed = self._operations.seal_result(self._lease, call.id, result)
        except errors.UnstorableValue as error:
            # It has happened: it is recorded as done and never called again.
            await self._finish(call, begun.attempt, "succeeded", None, UNSTORABLE, str(error), messages)
            return Outcome("failed", None, UNSTORABLE, str(error), begun.attempt)
        if not await self._finish(call, begun.attempt, "succeeded", sealed, None, None, messages):
            return Look()
        reach("operation.recorded" if call.kind == "tool" else "model.recorded")
        return Outcome("succeeded", result, attempt=begun.attempt)

    async def _transaction(self, call: Call, policy: Policy, effect: EffectFunction, grant: Grant | None) -> Attempted:
        own: errors.OperationError | None = None
        messages = self._operations.messages(call, self._lease.thread_id)

        async def inside(connection: Any, begun: Begun) -> Any:
            nonlocal own
            own = None
            messages.clear()
            seconds = _seconds_for(policy, begun)
            if seconds == 0.0:
                raise TimeoutError(_TOO_LATE)
            try:
                with sending(messages):
                    result = await _measured(call, begun.attempt, _within(seconds, effect(begun.attempt, connection)))
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
            begun = await self._begin(call, policy, grant)
            if begun.state != "executing":
                return _recorded(begun)
            return await self._failed(call, policy, begun.attempt, error)
        if begun.state != "executing":
            return _recorded(begun)
        reach("operation.recorded")
        return Outcome("succeeded", result, attempt=begun.attempt)

    async def _failed(self, call: Call, policy: Policy, attempt: int, error: Exception) -> Attempted:
        failure = failure_of(error)
        kind, message = failure.kind, storable_text(failure.message)  # as it is told now, so it is read back later
        uncertain = policy.effect is Effect.AT_MOST_ONCE and kind in (
            FailureClass.TIMEOUT,
            FailureClass.UNAVAILABLE,
            FailureClass.UNKNOWN,
        )
        if uncertain:  # the call may have arrived: nobody calls again
            await self._finish(call, attempt, "unknown", None, kind, message, retry_after=failure.retry_after)
            return Look()
        delay = await self._delay(call, policy, failure)
        state: End = "failed" if delay is None else "planned"
        await self._finish(call, attempt, state, None, kind, message, delay=delay, retry_after=failure.retry_after)
        reach("operation.failed")
        return Outcome("failed", None, kind, message, attempt) if delay is None else Again(delay)

    async def _stopped(self, call: Call, attempt: int) -> None:
        """Record that an attempt with a time-out was cut off from outside: unlike one whose process died, it is not
        under way any more, and nobody need wait for its deadline before it is called again with its key."""
        with contextlib.suppress(errors.StandfastError, TimeoutError):
            async with asyncio.timeout(_SECONDS_TO_STOP):
                await self._operations.stopped(self._lease, call.id, attempt)

    async def _too_late(self, call: Call, attempt: int) -> Outcome:
        """End an operation whose deadline has passed while nobody drove it; nothing was called."""
        await self._finish(call, attempt, "failed", None, FailureClass.TIMEOUT, _TOO_LATE)
        return Outcome("failed", None, FailureClass.TIMEOUT, _TOO_LATE, attempt)

    async def _delay(self, call: Call, policy: Policy, failure: Failure) -> float | None:
        """Seconds until the next attempt, from what is recorded; None if this failure was the last one."""
        tries = await self._operations.tries(self._lease, call.id)
        failures = tries.failures + 1  # this one is not recorded yet
        return policy.retry.next_delay(failure, failures=failures, elapsed=tries.elapsed, key=call.id)

    async def _finish(
        self,
        call: Call,
        attempt: int,
        state: End,
        sealed: bytes | None,
        failure_class: str | None,
        message: str | None,
        messages: Messages | None = None,
        *,
        delay: float | None = None,
        retry_after: float | None = None,
    ) -> bool:
        return await self._operations.finish(
            self._lease,
            call.id,
            attempt,
            state,
            sealed_result=sealed,
            failure_class=failure_class,
            failure_message=message,
            messages=messages,
            delay=delay,
            retry_after=retry_after,
        )


def _seconds_for(policy: Policy, begun: Begun) -> float | None:
    """How long this attempt may take: to its time-out, or to the deadline of all attempts."""
    limits = [policy.timeout, policy.retry.deadline and max(0.0, policy.retry.deadline - begun.elapsed)]
    return min((one for one in limits if one is not None), default=None)


async def _measured(call: Call, attempt: int, work: Awaitable[T]) -> T:
    """What `work` returns; traces and metrics tell of it."""
    began, state, kind = time.monotonic(), "succeeded", None
    with telemetry.attempting(call.kind, call.name, call.id, attempt):
        try:
            return await work
        except GraphBubbleUp:
            state = "waiting"
            raise
        except asyncio.CancelledError:
            state = "cancelled"
            raise
        except Exception as error:
            state, kind = "failed", failure_of(error).kind
            raise
        finally:
            telemetry.attempt_ended(call.kind, call.name, state, time.monotonic() - began, kind)


async def _within(seconds: float | None, work: Awaitable[T]) -> T:
    mark = _ends_at.set(None if seconds is None else time.monotonic() + seconds)
    try:
        async with asyncio.timeout(seconds):
            try:
                return await work
            except asyncio.CancelledError as error:
                if _is_being_cancelled():
                    raise
                raise concurrent.futures.CancelledError("cancelled from within") from error
    finally:
        _ends_at.reset(mark)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _recorded(begun: Begun) -> Outcome | Again | Undecided:
    if begun.state == "planned":  # too early: somebody else has begun the delay
        return Again(begun.wait)
    return Undecided(begun) if begun.state in UNDECIDED else _end_of(begun)


def _end_of(begun: Begun) -> Outcome:
    state: Literal["succeeded", "failed", "unknown"] = "failed"
    if begun.state in UNDECIDED or begun.failure_class == ABANDONED:
        state = "unknown"
    elif begun.state in ("succeeded", "reconciled") and begun.failure_class is None:
        state = "succeeded"
    return Outcome(state, begun.result, begun.failure_class, begun.failure_message, begun.attempt, reused=True)
