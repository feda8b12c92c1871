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
    decisions = ["approve", "edit", "reject"]
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
        "config": {"allow_accept": True, "allow_edit": True, "allow_respond": False, "allow_ignore": False},
        "description": approval.description,
        "tool_call_id": tool_call_id,
        "expires_at": approval.expires_at.isoformat(),
        "approval": {
            "id": approval.id,
            "digest": approval.digest,
            "policy": approval.policy_version,
            "required": 1,
            "requested_by": approval.requested_by,
            "failed_checks": list(approval.failed_checks),
        },
    }
