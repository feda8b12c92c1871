"""The node that acts: it hands one call to the ledger and turns the end into the call's one tool message.

Invariant: nothing leaves here as an exception that would cancel a sibling in flight, and whether a grant is
needed is found out here again, from the policy and the checks, whichever way the thread came.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.artifact import Artifact
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.operations import Call
from standfast.nodes.approval import grant_for, planned_call, shown
from standfast.nodes.planned import in_this_run
from standfast.nodes.request import approval_request
from standfast.nodes.state import Node, OperationState
from standfast.nodes.validation import INVALID, MENDABLE, failed_checks
from standfast.tools.drive import Drive, drive_of, path_of
from standfast.tools.failures import FailureClass
from standfast.tools.halts import NeedsPerson
from standfast.tools.late import record_late
from standfast.tools.ledger import Outcome, attempt_ends_at
from standfast.tools.operations import OperationContext, Registry
from standfast.tools.reconciliation import resolver
from standfast.tools.waits import from_the_top


def operate_node(registry: Registry) -> Node[OperationState]:
    """A node that executes `planned`, or sends it back for a grant that it lacks."""

    async def operate(state: OperationState, config: RunnableConfig) -> dict[str, Any]:
        drive, path = drive_of(config), path_of(config)
        state, _ = await in_this_run(drive, state)
        planned = state["planned"]
        about = {"operation_id": planned["operation_id"], "name": state["call"]["name"]}

        def show(question: Approval) -> dict[str, Any]:
            drive.tell("approval_open", path, {"id": question.id, "operation": question.operation})
            return approval_request(question, state["call"]["id"])

        def ended(outcome: Outcome) -> dict[str, Any]:
            end = {"attempt": outcome.attempt, "state": outcome.state, "reused": outcome.reused}
            drive.tell("operation_end", path, {**about, **end})
            reach("node.operate")
            return {"granted": True, "messages": [_message(state, outcome)]}

        try:
            operation = registry.get(state["call"]["name"])
        except errors.UnknownOperation as error:  # a deploy has taken it away
            gone = await _recorded_call(drive, planned["operation_id"])
            if gone is None:
                return ended(Outcome("failed", None, FailureClass.PERMANENT, str(error)))
            return ended(await drive.ledger.leave(gone, str(error), resolver(drive, None, gone, show=show)))
        call = planned_call(drive, operation, state)

        async def effect(attempt: int, connection: Any) -> Any:
            drive.tell("operation_begin", path, {**about, "attempt": attempt})

            def progress(data: Any) -> None:
                drive.tell("progress", path, {**about, "attempt": attempt, "progress": data})

            ends = (attempt_ends_at(), drive.limits.ends_at)
            context = OperationContext(
                call.id,
                attempt,
                drive.run,
                drive.documents,
                drive.artifacts,
                connection,
                drive.memory,
                progress,
                ends_at=min((one for one in ends if one is not None), default=None),
                outlive=partial(record_late, drive.operations, call.id, attempt),
            )
            with from_the_top(config):
                result = await operation.call(call.arguments, context)
            return await drive.artifacts.settle(result, name=operation.name)

        arguments = dict(planned["arguments"])
        objected = bool(await failed_checks(operation, arguments, drive))
        asks = drive.policy.asks(operation, arguments, objected=objected) is not None
        grant = await grant_for(drive, operation, state) if asks else None
        try:
            outcome = await drive.ledger.execute(
                call, operation.policy, effect, grant=grant, resolve=resolver(drive, operation, call, show=show)
            )
        except errors.NotGranted:
            return {
                "granted": False,
                "planned": {**planned, "needs_person": True},
                "round": state.get("round", 0) + 1,
                "note": "There is no valid grant for this call any more; it needs a new decision.",
            }
        except errors.OperationMismatch as error:
            outcome = Outcome("failed", None, FailureClass.PERMANENT, str(error))
        if outcome.state == "failed" and outcome.failure_class == FailureClass.UNAUTHORISED:
            raise NeedsPerson(
                f"{call.name} ({call.id}) was refused: {outcome.failure_message}; give it what it lacks, then: "
                f"standfast retry {drive.run.thread_id}, or: standfast cancel {drive.run.thread_id}"
            )
        return ended(outcome)

    return operate


async def _recorded_call(drive: Drive, operation_id: str) -> Call | None:
    """A call as the ledger knows it."""
    for one in await drive.operations.list(drive.run.thread_id, drive.run.id):
        if one.id == operation_id:
            return Call(
                id=one.id,
                run_id=one.run_id,
                kind="tool",
                name=one.name,
                namespace=one.namespace,
                turn=one.turn,
                index=one.index,
                effect=one.effect,
                digest=one.digest,
                arguments=one.arguments,
            )
    return None


def _message(state: OperationState, outcome: Outcome) -> ToolMessage:
    planned = state["planned"]
    extra: dict[str, Any] = {"operation_id": planned["operation_id"], "state": outcome.state}
    if outcome.state == "succeeded":
        text = shown(outcome.result)
        if planned["edited_by"]:
            text = f"{planned['edited_by']} edited the call before approving it.\n{text}"
    elif outcome.state == "unknown":
        text = (
            f"It is not known whether this call took effect ({outcome.failure_message or 'it never reported'}). "
            "It is not called again."
        )
    else:
        text = f"This call failed ({outcome.failure_class}): {outcome.failure_message}"
        if outcome.failure_class == FailureClass.INVALID:
            extra |= {MENDABLE: True, INVALID: True}
    return ToolMessage(
        text,
        id=f"result-{planned['operation_id']}",
        tool_call_id=state["call"]["id"],
        name=state["call"]["name"],
        status="success" if outcome.state == "succeeded" else "error",
        artifact=outcome.result if isinstance(outcome.result, Artifact) else None,
        additional_kwargs=extra,
    )
