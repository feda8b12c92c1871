"""The node that waits for a person. It is the only thing in its node, and interrupts once.

Invariants: the approval row is open before the question is asked; what counts is the decision in that row, not
the value that the graph was resumed with; nothing raises after the question returned. A resume that decided
nothing asks again by an edge back here, under a new id.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval, Request, approval_id
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.operations import Call
from standfast.nodes.request import approval_request
from standfast.nodes.state import Node, OperationState
from standfast.nodes.validation import failed_checks
from standfast.tools.digests import approval_digest, call_digest
from standfast.tools.drive import Drive, drive_of, path_of
from standfast.tools.operations import Operation, Registry


def approval_node(
    registry: Registry,
) -> Node[OperationState]:
    """A node that lets a planned call through, asks a person first, or ends it with the person's no."""

    async def approval(state: OperationState, config: RunnableConfig) -> dict[str, Any]:
        planned = state["planned"]
        if not planned["needs_person"]:
            reach("node.approval")
            return {"granted": True}
        drive = drive_of(config)
        try:
            operation = registry.get(state["call"]["name"])
        except errors.UnknownOperation as error:  # a deploy has taken it away while the thread waited
            identifier = approval_id(drive.run.thread_id, planned["operation_id"], state.get("round", 0))
            await drive.approvals.withdraw(drive.lease, identifier)
            return {"granted": False, "messages": [_not_done(state, f"Not done: {error}.", {})]}
        request = await _open(drive, operation, state)
        reach("node.approval")
        if request.state == "open":
            drive.tell("approval_open", path_of(config), {"id": request.id, "operation": request.operation})
            interrupt(approval_request(request, state["call"]["id"]))
            request = await drive.approvals.get(request.id)
        if request.state == "open":
            await drive.approvals.withdraw(drive.lease, request.id)
            return {
                "granted": False,
                "round": state.get("round", 0) + 1,
                "note": "The answer to the last request decided nothing; decide this one.",
            }
        decided = {"id": request.id, "state": request.state, "by": request.decided_by}
        drive.tell("approval_decided", path_of(config), decided)
        if request.state == "approved":
            arguments = dict(request.arguments)
            edited = request.decided_by if request.decision == "edit" else None
            failed = await failed_checks(operation, arguments, drive) if edited else []
            if failed:  # the editor has not seen them: he approves them knowingly, or edits again
                return {
                    "granted": False,
                    "round": state.get("round", 0) + 1,
                    "planned": {**planned, "arguments": arguments, "failed_checks": failed, "edited_by": edited},
                    "note": f"{edited} edited the call, and the edited call fails the checks below.",
                }
            return {
                "granted": True,
                "planned": {**planned, "arguments": arguments, "edited_by": edited or planned["edited_by"]},
            }
        return {"granted": False, "messages": [_declined(state, request)]}

    return approval


async def _open(drive: Drive, operation: Operation, state: OperationState) -> Approval:
    planned = state["planned"]
    note = state.get("note")
    request = Request(
        call=planned_call(drive, operation, state),
        round=state.get("round", 0),
        policy_version=operation.policy.version,
        valid=operation.policy.valid,
        description=(f"{note}\n\n" if note else "") + f"{drive.run.requested_by} asks to run {operation.name}.",
        failed_checks=tuple(planned["failed_checks"]),
        requested_by=drive.run.requested_by,
    )
    return await drive.approvals.open(
        drive.lease,
        request,
        lambda expires_at: _digest(drive, operation, state, expires_at),
    )


async def has_grant(drive: Drive, operation: Operation, state: OperationState) -> bool:
    """Whether a person allowed what would be executed now: these arguments, by this version of the operation."""
    granted = await drive.approvals.granted(drive.run.thread_id, state["planned"]["operation_id"])
    return any(one.digest == _digest(drive, operation, state, one.expires_at) for one in granted)


def _digest(drive: Drive, operation: Operation, state: OperationState, expires_at: datetime) -> str:
    planned = state["planned"]
    return approval_digest(
        tenant=drive.tenant,
        thread_id=drive.run.thread_id,
        operation_id=planned["operation_id"],
        operation=operation.name,
        operation_version=operation.version,
        arguments=planned["arguments"],
        policy_version=operation.policy.version,
        expires_at=expires_at,
    )


def planned_call(drive: Drive, operation: Operation, state: OperationState) -> Call:
    """The ledger's view of a planned call. The digest is taken from what would be executed, not kept in the state."""
    call, planned = state["call"], state["planned"]
    return Call(
        id=planned["operation_id"],
        run_id=drive.run.id,
        kind="tool",
        name=operation.name,
        namespace=call["namespace"],
        turn=call["turn"],
        index=call["index"],
        effect=operation.policy.effect,
        digest=call_digest(operation.name, planned["arguments"]),
        arguments=planned["arguments"],
    )


def _declined(state: OperationState, request: Approval) -> ToolMessage:
    if request.state == "expired":
        text = f"Not done: nobody decided before {request.expires_at:%Y-%m-%d %H:%M} UTC."
    else:
        text = f"Rejected by {request.decided_by}" + (f": {request.reason}" if request.reason else ".")
    return _not_done(state, text, {"approval": request.id, "decision": request.decision or request.state})


def _not_done(state: OperationState, text: str, extra: dict[str, Any]) -> ToolMessage:
    return ToolMessage(
        text,
        id=f"result-{state['planned']['operation_id']}",
        tool_call_id=state["call"]["id"],
        name=state["call"]["name"],
        status="error",
        additional_kwargs=extra,
    )
