"""What becomes of an attempt that did not report: its own operation is asked, then a person.

Invariants: nobody is asked before the attempt's lease and deadline have passed; what was found out is recorded once,
under the lease, and only an outcome that is still unknown is changed by it. Waiting for an answer holds nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Literal

from langgraph.errors import GraphBubbleUp

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import NEVER, OUTCOMES, Approval, Request, Terms
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.operations import Begun, Call
from standfast.tools.digests import approval_digest
from standfast.tools.drive import Drive
from standfast.tools.failures import Failure, FailureClass, said
from standfast.tools.ledger import ABANDONED, UNSTORABLE, Resolve
from standfast.tools.operations import Operation, OutcomeContext
from standfast.tools.outcomes import CannotTell, DidNotHappen, Happened, Reconciled
from standfast.tools.parking import park_for_person, park_until
from standfast.tools.pending import poll
from standfast.tools.rules import asking

DELAYS: Final = tuple(timedelta(seconds=one) for one in (1, 10, 60, 300, 1800))
"""The pauses between the times that a reconcile is asked; one that still cannot tell then gives way to a person."""
_LIMIT: Final = 60.0  # seconds for one answer


def resolver(
    drive: Drive, operation: Operation | None, call: Call, *, show: Callable[[Approval], Mapping[str, Any]]
) -> Resolve:
    """What finds out more about a call that the ledger can neither begin nor tell the end of.

    `operation` is None for one that the loaded graph does not have any more; `show` makes a question's interrupt.
    """

    async def resolve(begun: Begun) -> None:
        if begun.state == "waiting":
            assert begun.until is not None
            park_until(begun.until)
        elif begun.state in ("pending", "overdue"):
            await poll(drive, operation, call, begun)
        else:
            await _Doubt(drive, operation, call, begun).resolve(show)

    return resolve


class _Doubt:
    """One unknown outcome."""

    def __init__(self, drive: Drive, operation: Operation | None, call: Call, begun: Begun) -> None:
        self._drive = drive
        self._operation = operation
        self._call = call
        self._begun = begun

    async def resolve(self, show: Callable[[Approval], Mapping[str, Any]]) -> None:
        """Settle it, or park the thread until more may be known."""
        reach("outcome.unknown")
        asked = await self._drive.approvals.of_outcome(self._drive.run.thread_id, self._call.id)
        decided = [one for one in asked if one.state == "settled" and one.used_at is None]
        if decided:
            await self._apply(decided[-1])
            return
        if not any(one.state == "open" for one in asked) and await self._reconciled():
            return
        question = await self._ask(asked)
        if question.state == "open":
            park_for_person(show(question), question.id)

    # -- the operation's own answer

    async def _reconciled(self) -> bool:
        """Ask the operation; False if nothing is to be expected from it any more."""
        reconcile = None if self._operation is None else self._operation.reconcile
        begun = self._begun
        if reconcile is None or begun.looks > len(DELAYS):
            return False
        if begun.until is not None:
            park_until(begun.until)
            return True
        drive = self._drive
        context = OutcomeContext(
            self._call.id, self._call.arguments, begun.attempt, begun.looks, drive.run, drive.documents
        )
        answer: Reconciled
        try:
            async with asyncio.timeout(_LIMIT):
                answer = await reconcile(context)
        except (errors.LeaseLost, errors.StorageUnavailable, GraphBubbleUp):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it raises, it did not find out
            answer = CannotTell(said(error))
        reach("outcome.answered")
        if isinstance(answer, Happened):
            await self._happened(answer.result)
        elif isinstance(answer, DidNotHappen):
            await self._did_not_happen()
        elif begun.looks < len(DELAYS):
            delay = DELAYS[begun.looks].total_seconds()
            park_until(await drive.operations.look_again(drive.lease, self._call.id, delay))
        else:
            await drive.operations.look_again(drive.lease, self._call.id, 0)
            return False
        return True

    async def _did_not_happen(self) -> None:
        """Try again: a driver that died is no failure, a failure that was reported counts among the retries."""
        begun, operation = self._begun, self._operation
        assert operation is not None
        delay: float | None = None
        if begun.failure_class is not None:
            failure = Failure(FailureClass(begun.failure_class), begun.failure_message or "")
            tries = await self._drive.operations.tries(self._drive.lease, self._call.id)
            delay = operation.policy.retry.next_delay(
                failure, failures=tries.failures, elapsed=tries.elapsed, key=self._call.id
            )
            if delay is None:
                await self._settle("reconciled", failure_class=begun.failure_class, message=begun.failure_message)
                return
        await self._settle("planned", failure_class=begun.failure_class, message=begun.failure_message, delay=delay)

    # -- a person's answer

    async def _ask(self, asked: Sequence[Approval]) -> Approval:
        drive, call, begun = self._drive, self._call, self._begun
        why = begun.failure_message or "it never reported"
        refused = next((one for one in reversed(asked) if one.decision == "happened"), None)
        note = f"The result that {refused.decided_by} gave is not one of {call.name}. " if refused else ""
        terms = self._terms()
        version = "" if self._operation is None else self._operation.version
        request = Request(
            call=call,
            operation_version=version,
            round=sum(one.state != "open" for one in asked),
            terms=terms,
            description=f"{note}It is not known whether {call.name} took effect in attempt {begun.attempt} ({why}). "
            "Look at the receiver: did it happen?",
            failed_checks=(),
            requested_by=drive.run.requested_by,
            proposed=call.arguments,
            kind="outcome",
        )
        return await drive.approvals.open(
            drive.lease,
            request,
            lambda tenant, expires_at: approval_digest(
                tenant=tenant,
                thread_id=drive.run.thread_id,
                operation_id=call.id,
                operation=call.name,
                operation_version=version,
                arguments=call.arguments,
                policy_version=terms.policy_version,
                expires_at=expires_at,
            ),
        )

    def _terms(self) -> Terms:
        """One of those who may approve the call may say what became of it."""
        version = f"outcome of attempt {self._begun.attempt}"
        if self._operation is None:
            return Terms(version, NEVER, allowed=OUTCOMES)
        policy = self._drive.policy
        asked = policy.terms(self._operation, asking(policy.rules(self._operation)))
        return replace(
            asked,
            policy_version=version,
            valid=NEVER,
            required=1,
            edit_needs_another=False,
            reason_required=False,
            allowed=OUTCOMES,
            remind_after=None,
        )

    async def _apply(self, decided: Approval) -> None:
        reach("outcome.decided")
        by = f"{decided.decided_by}" + (f": {decided.reason}" if decided.reason else "")
        if decided.decision == "abandon":
            message = f"given up by {by}"
            await self._settle("reconciled", failure_class=ABANDONED, message=message, answered=decided.id)
        elif decided.decision == "did_not_happen":
            if self._operation is None:
                message = f"it did not happen, says {by}, and nobody can execute it any more"
                kind = FailureClass.PERMANENT
                await self._settle("reconciled", failure_class=kind, message=message, answered=decided.id)
            else:
                await self._settle("planned", answered=decided.id)
        else:
            try:
                result = self._operation.validate_result(decided.response) if self._operation else decided.response
            except errors.InvalidRequest:  # it came through a process that does not know the operation: asked again
                await self._settle("unknown", answered=decided.id)
                return
            await self._happened(result, answered=decided.id)

    async def _happened(self, result: Any, *, answered: str | None = None) -> None:
        try:
            sealed = self._drive.operations.seal_result(self._drive.lease, self._call.id, result)
        except errors.UnstorableValue as error:
            await self._settle("reconciled", failure_class=UNSTORABLE, message=str(error), answered=answered)
            return
        await self._settle("reconciled", sealed=sealed, answered=answered)

    async def _settle(
        self,
        state: Literal["planned", "reconciled", "unknown"],
        *,
        sealed: bytes | None = None,
        failure_class: str | None = None,
        message: str | None = None,
        answered: str | None = None,
        delay: float | None = None,
    ) -> None:
        await self._drive.operations.settle(
            self._drive.lease,
            self._call.id,
            self._begun.attempt,
            state,
            sealed_result=sealed,
            failure_class=failure_class,
            failure_message=message,
            answered=answered,
            delay=delay,
        )
        reach("outcome.settled")
