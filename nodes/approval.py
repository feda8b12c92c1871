"""The node that waits for a person. It is the only thing in its node, and interrupts once.

Invariants: the approval row is open before the question is asked; what counts is the decision in that row, not
the value that the graph was resumed with; nothing raises after the question returned. A resume that decided
nothing asks again by an edge back here, under a new id; so does an edit that another person must approve.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval, Request, Terms, approval_id
from standfast.checkpoint.artifact import Artifact
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.operations import Call, Grant
from standfast.nodes.planned import executable, in_this_run
from standfast.nodes.request import approval_request
from standfast.nodes.state import Node, OperationState
from standfast.nodes.validation import failed_checks
from standfast.tools.digests import approval_digest, call_digest
from standfast.tools.drive import Drive, drive_of, path_of
from standfast.tools.operations import Operation, Registry
from standfast.tools.rules import Rule, asking


def approval_node(
    registry: Registry,
) -> Node[OperationState]:
    """A node that lets a planned call through, asks a person first, or ends it with the person's no."""

    async def approval(state: OperationState, config: RunnableConfig) -> dict[str, Any]:
        if not state["planned"]["needs_person"]:
            reach("node.approval")
            return {"granted": True}
        drive = drive_of(config)
        state, inherited = await in_this_run(drive, state)
        planned = state["planned"]
        try:
            operation = registry.get(state["call"]["name"])
        except errors.UnknownOperation as error:  # a deploy has taken it away while the thread waited
            identifier = approval_id(drive.run.thread_id, planned["operation_id"], state.get("round", 0))
            await drive.approvals.withdraw(drive.lease, identifier)
            return {"granted": False, "messages": [_not_done(state, f"Not done: {error}.", {})]}
        if not await executable(drive, operation, inherited=inherited):
            reach("node.approval")
            return {"granted": True, "planned": planned}  # a fork that begins here: what would be decided cannot happen
        request = await _open(drive, operation, state)
        reach("node.approval")
        if request.state == "open":
            drive.tell("approval_open", path_of(config), {"id": request.id, "operation": request.operation})
            interrupt(approval_request(request, state["call"]["id"]))
            request = await drive.approvals.get(request.id)
        if request.state == "open":
            await drive.approvals.withdraw(drive.lease, request.id)
        elif request.decision is not None:
            decided = {"id": request.id, "state": request.state, "by": request.decided_by}
            drive.tell("approval_decided", path_of(config), decided)
        return await _after(drive, operation, state, request)

    return approval


async def _after(drive: Drive, operation: Operation, state: OperationState, request: Approval) -> dict[str, Any]:
    """What comes of the request as it stands now."""
    planned, arguments = state["planned"], dict(request.arguments)
    if request.state in ("approved", "edited"):
        edited = request.decided_by if request.decision == "edit" else None
        failed = await failed_checks(operation, arguments, drive) if edited else planned["failed_checks"]
        note = None
        if request.state == "edited":
            note = f"{edited} edited the call; somebody must approve it as it is now."
        elif edited and failed:  # the editor has not seen them: he approves them knowingly, or edits again
            note = f"{edited} edited the call, and the edited call fails the checks below."
        if note is not None:
            return {
                "granted": False,
                "round": state.get("round", 0) + 1,
                "planned": {
                    **planned,
                    "arguments": arguments,
                    "failed_checks": failed,
                    "edited_by": edited,
                    "edit_needs_another": request.edit_needs_another,
                },
                "note": note,
            }
        return {
            "granted": True,
            "planned": {**planned, "arguments": arguments, "edited_by": edited or planned["edited_by"]},
        }
    if request.state in ("rejected", "answered", "expired") or request.decision == "withdraw":
        return {"granted": False, "messages": [ended_by_people(state, request)]}
    return {
        "granted": False,
        "round": state.get("round", 0) + 1,
        "note": "What the last request was answered with was no decision of a known person; decide this one.",
    }


async def _open(drive: Drive, operation: Operation, state: OperationState) -> Approval:
    planned = state["planned"]
    note = state.get("note")
    terms = drive.policy.terms(operation, _rule(drive, operation, state))
    if planned.get("edit_needs_another"):
        terms = replace(terms, edit_needs_another=True)
    request = Request(
        call=planned_call(drive, operation, state),
        operation_version=operation.version,
        round=state.get("round", 0),
        terms=terms,
        description=(f"{note}\n\n" if note else "") + f"{drive.run.requested_by} asks to run {operation.name}.",
        failed_checks=tuple(planned["failed_checks"]),
        requested_by=drive.run.requested_by,
        proposed=planned.get("proposed", planned["arguments"]),
        editor=planned["edited_by"],
    )
    return await drive.approvals.open(
        drive.lease,
        request,
        lambda tenant, expires_at: _digest(drive, operation, state, tenant, expires_at),
    )


def _rule(drive: Drive, operation: Operation, state: OperationState) -> Rule:
    """The rule under which a person decides: in this node, one does."""
    rule = drive.policy.asks(operation, state["planned"]["arguments"], objected=True)
    return rule or asking(())


async def grant_for(drive: Drive, operation: Operation, state: OperationState) -> Grant:
    """The grant for what would be executed now: these arguments, this version, these rules; empty if none is."""
    terms = drive.policy.terms(operation, _rule(drive, operation, state))
    granted = await drive.approvals.granted(drive.run.thread_id, state["planned"]["operation_id"])
    for one in reversed(granted):  # the newest: an older one was found wanting before it was asked again
        digest = _digest(drive, operation, state, one.tenant, one.expires_at)
        if one.digest == digest and _as_strict(one, terms):
            return Grant(one.id, digest, terms.policy_version, terms.required, terms.source, terms.approvers)
    return Grant()


def _as_strict(given: Approval, terms: Terms) -> bool:
    """Whether a decision was taken under terms like these: an edit can bring a call under another rule."""
    return (
        given.group == terms.group
        and given.requester_may_decide <= terms.requester_may_decide
        and given.edit_needs_another >= terms.edit_needs_another
    )


def _digest(drive: Drive, operation: Operation, state: OperationState, tenant: str, expires_at: datetime) -> str:
    planned = state["planned"]
    return approval_digest(
        tenant=tenant,
        thread_id=drive.run.thread_id,
        operation_id=planned["operation_id"],
        operation=operation.name,
        operation_version=operation.version,
        arguments=planned["arguments"],
        policy_version=drive.policy.version(operation),
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


def shown(result: Any) -> str:
    """A result as the model reads it; the exact value is in the rows."""
    return str(result) if isinstance(result, str | Artifact) else json.dumps(result, ensure_ascii=False, default=str)


def ended_by_people(state: OperationState, request: Approval) -> ToolMessage:
    """The tool message of a call that people, or their silence, have ended without executing it."""
    extra = {"approval": request.id, "decision": request.decision or request.state}
    if request.state == "answered":
        return _message(state, shown(request.response), "success", extra)
    by = f" by {request.decided_by}" + (f": {request.reason}" if request.reason else ".")
    text = {
        "expired": f"Not done: nobody decided before {request.expires_at:%Y-%m-%d %H:%M} UTC.",
        "withdrawn": f"Not done: withdrawn{by}",
    }.get(request.state, f"Rejected{by}")
    return _not_done(state, text, extra)


def _not_done(state: OperationState, text: str, extra: dict[str, Any]) -> ToolMessage:
    return _message(state, text, "error", extra)


def _message(
    state: OperationState, text: str, status: Literal["success", "error"], extra: dict[str, Any]
) -> ToolMessage:
    return ToolMessage(
        text,
        id=f"result-{state['planned']['operation_id']}",
        tool_call_id=state["call"]["id"],
        name=state["call"]["name"],
        status=status,
        additional_kwargs=extra,
    )
