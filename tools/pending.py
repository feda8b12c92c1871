"""Work that goes on elsewhere: its operation returned `Pending`, and its end comes from outside or from its poll.

Invariant: between two looks the thread is parked and no process is held; when to look again, and when its time is up,
is stored, so that a crash neither loses a look nor hurries it, and gives no more time.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from langgraph.errors import GraphBubbleUp

from standfast.checkpoint import errors
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.operations import Begun, Call, End
from standfast.tools.drive import Drive
from standfast.tools.failures import Failure, FailureClass
from standfast.tools.ledger import UNSTORABLE
from standfast.tools.operations import Effect, Operation, OutcomeContext
from standfast.tools.outcomes import Failed, Happened, Pending, Polled
from standfast.tools.parking import park_for_completion

FIRST_DELAY: Final = timedelta(seconds=1)  # before the first poll, doubled for each further one
LONGEST_DELAY: Final = timedelta(minutes=5)
_LIMIT: Final = 60.0  # seconds for one answer


async def poll(drive: Drive, operation: Operation | None, call: Call, begun: Begun) -> None:
    """Ask how the work is, if its operation can and it is time; else park until it is, or until its end is told.

    Work whose time is up is asked about once more, and then no longer waited for.
    """
    overdue = begun.state == "overdue"
    ask = None if operation is None else operation.poll
    if ask is None:
        if overdue:
            await _give_up(drive, operation, call, begun)
        else:
            park_for_completion(call.id, looks=begun.looks, until=begun.until)
        return
    if not overdue and begun.looks == 0:  # it has only just begun
        await _later(drive, call, begun, Pending(begun.handle))
        return
    if not overdue and begun.until is not None:
        park_for_completion(call.id, looks=begun.looks, until=begun.until)
        return
    context = OutcomeContext(call.id, call.arguments, begun.attempt, begun.looks, drive.run, drive.documents)
    try:
        async with asyncio.timeout(_LIMIT):
            answer: Polled = await ask(begun.handle, context)
    except (errors.LeaseLost, errors.StorageUnavailable, GraphBubbleUp):
        raise
    except Exception:  # noqa: BLE001 - whatever it raises, it did not find out
        answer = Pending(begun.handle)
    reach("outcome.polled")
    if isinstance(answer, Happened | Failed):
        await _end(drive, call, begun, answer)
    elif overdue and (not isinstance(answer, Pending) or answer.timeout is None):
        await _give_up(drive, operation, call, begun)
    else:
        await _later(drive, call, begun, answer if isinstance(answer, Pending) else Pending(begun.handle))


async def _later(drive: Drive, call: Call, begun: Begun, answer: Pending) -> None:
    delay = min(FIRST_DELAY * 2 ** min(begun.looks, 20), LONGEST_DELAY)
    until = await drive.operations.look_again(
        drive.lease, call.id, delay.total_seconds(), answer.handle, timeout=answer.timeout
    )
    park_for_completion(call.id, looks=begun.looks + 1, until=until)


async def _give_up(drive: Drive, operation: Operation | None, call: Call, begun: Begun) -> None:
    """The time is up: as for an attempt that was cut off, its effect says what follows."""
    failure = Failure(FailureClass.TIMEOUT, "the work elsewhere did not end within its time-out")
    operations, lease = drive.operations, drive.lease
    delay: float | None = None
    if operation is not None and call.effect != Effect.AT_MOST_ONCE:
        tries = await operations.tries(lease, call.id)
        delay = operation.policy.retry.next_delay(
            failure, failures=tries.failures + 1, elapsed=tries.elapsed, key=call.id
        )
    state: End = "planned" if delay is not None else "unknown" if call.effect == Effect.AT_MOST_ONCE else "failed"
    await operations.finish(
        lease,
        call.id,
        begun.attempt,
        state,
        failure_class=failure.kind,
        failure_message=failure.message,
        delay=delay,
    )


async def _end(drive: Drive, call: Call, begun: Begun, answer: Happened | Failed) -> None:
    operations, lease = drive.operations, drive.lease
    if isinstance(answer, Failed):
        kind, message = FailureClass.PERMANENT, answer.message
        await operations.finish(lease, call.id, begun.attempt, "failed", failure_class=kind, failure_message=message)
        return
    sealed, unstorable = None, None
    try:
        sealed = operations.seal_result(lease, call.id, answer.result)
    except errors.UnstorableValue as error:
        unstorable = str(error)
    await operations.finish(
        lease,
        call.id,
        begun.attempt,
        "succeeded",
        sealed_result=sealed,
        failure_class=None if unstorable is None else UNSTORABLE,
        failure_message=unstorable,
    )
