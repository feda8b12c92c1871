"""How a request for approval looks to the clients that show interrupts.

The keys are LangChain's `HITLRequest` with one action, the same arguments under `arguments` and the legacy
`action_request`/`config` keys (Agent Inbox), camelCase twins in the review config (deep-agents-ui), and our own
`approval`. What is shown is made from what is hashed.
"""

from __future__ import annotations

from typing import Any

from standfast.checkpoint.approvals import Approval


def approval_request(approval: Approval, tool_call_id: str) -> dict[str, Any]:
    """The interrupt's value for one approval."""
    arguments = dict(approval.arguments)
    decisions = list(approval.allowed)
    action = {
        "name": approval.operation,
        "args": arguments,
        "arguments": arguments,
        "description": approval.description,
    }
    return {
        "action_requests": [action],
        "review_configs": [
            {
                "action_name": approval.operation,
                "allowed_decisions": decisions,
                "actionName": approval.operation,
                "allowedDecisions": decisions,
            }
        ],
        "action_request": {"action": approval.operation, "args": arguments},
        "config": {
            "allow_accept": "approve" in decisions,
            "allow_edit": "edit" in decisions,
            "allow_respond": "respond" in decisions,
            "allow_ignore": False,
        },
        "description": approval.description,
        "tool_call_id": tool_call_id,
        "expires_at": approval.expires_at.isoformat(),
        "response_schema": _answer_schema(approval),
        "approval": {
            "id": approval.id,
            "kind": approval.kind,
            "digest": approval.digest,
            "policy": approval.policy_version,
            "required": approval.required,
            "group": approval.group,
            "approvers": None if approval.approvers is None else list(approval.approvers),
            "requester_may_decide": approval.requester_may_decide,
            "reason_required": approval.reason_required,
            "requested_by": approval.requested_by,
            "requested_at": approval.requested_at.isoformat(),
            "edited_by": approval.editor,
            "changes": [vars(one) for one in approval.difference],
            "failed_checks": list(approval.failed_checks),
            "url": None,
        },
    }


def _answer_schema(approval: Approval) -> dict[str, Any]:
    """The JSON schema of one bare decision."""
    named = {"const": approval.operation}
    edited = {"type": "object", "properties": {"name": named, "args": {"type": "object"}}, "required": ["name", "args"]}
    return {
        "type": "object",
        "properties": {
            "type": {"enum": list(approval.allowed)},
            "message": {"type": "string"},
            "edited_action": edited,
        },
        "required": ["type", "message"] if approval.reason_required else ["type"],
    }
