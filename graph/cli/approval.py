"""An approval as a person sees it: exactly what would be done, for whom, until when, and how to answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from standfast.checkpoint.approvals import Approval
from standfast.graph.cli.output import counted, local_time, say
from standfast.graph.cli.session import Session

_SHORT: Final = 100


def show_approval(approval: Approval, requester: str | None = None) -> None:
    """Everything that a decision is about. Nothing is shortened."""
    is_call = approval.kind == "call"
    say()
    say(f"== {approval.operation} {'wants to run, and a person decides' if is_call else 'may have run'} ==")
    say(f"{'approval   ' if is_call else 'question   '} {approval.id}")
    since = local_time(approval.requested_at)
    say(f"asked by    {requester or approval.requested_by}, in thread {approval.thread_id}, since {since}")
    if is_call:
        say(f"decided by  {deciders(approval)}")
        if approval.policy_changed:
            say("            the policy has changed since it was asked: people are asked again under the new one")
        say(f"valid until {local_time(approval.expires_at)} ({_left(approval.expires_at)})")
        if note := approval.description.rpartition("\n\n")[0]:
            say(f"\n{note}")
    else:
        say(f"\n{approval.description}\nIts key at the receiver is {approval.operation_id}.")
    if approval.failed_checks:
        say(f"\n-- {counted(len(approval.failed_checks), 'failed check')} --")
        for check in approval.failed_checks:
            say(f"! {check}")
    if approval.difference:
        by = f" by {approval.editor}" if approval.editor else ""
        say(f"\n-- changed{by} --")
        for change in approval.difference:
            say(f"~ {change}")
    for name, value in approval.arguments.items():
        _show_argument(name, value)
    say(f"\n-- end of what {'would be' if is_call else 'may have been'} done (digest {approval.digest[:16]}) --")


def deciders(approval: Approval) -> str:
    """Who decides, and who has voted so far."""
    who = "anyone" if approval.group is None else f"the group {approval.group}"
    if approval.approvers is not None:
        who += f" ({', '.join(approval.approvers)})"
    parts = [who if approval.required == 1 else f"{approval.required} of {who}"]
    if not approval.requester_may_decide:
        parts.append(f"not {approval.requested_by}")
    if approval.editor is not None and approval.edit_needs_another:
        parts.append(f"not {approval.editor}, who edited it")
    if approval.required > 1:
        parts.append(f"so far {', '.join(approval.votes) or 'nobody'}")
    return "; ".join(parts) + f" (policy {approval.policy_version})"


def show_ways_to_answer(session: Session, approval: Approval) -> None:
    """The lines that decide, from any process and any folder."""
    field = next(iter(approval.arguments), "field")
    reason = ' --reason "..."' if approval.reason_required else ""
    lines: dict[str, str] = {
        "approve": f"approve {approval.id}{reason}",
        "reject": f'reject {approval.id} --reason "..."',
        "edit": f"edit {approval.id} --set {field}=...{reason}",
        "respond": f'respond {approval.id} "..."{reason}',
    }
    ways = (
        [lines[verb] for verb in approval.allowed]
        if approval.kind == "call"
        else [
            f"settle {approval.id} happened --result '...'",
            f"settle {approval.id} did-not-happen",
            f"settle {approval.id} abandon",
        ]
    )
    say("\nTo answer, from anywhere:")
    for command in ways:
        say("  " + session.line(command))


def approval_json(approval: Approval) -> dict[str, Any]:
    """The approval as `--json` prints it."""
    return {
        "id": approval.id,
        "kind": approval.kind,
        "thread_id": approval.thread_id,
        "run_id": approval.run_id,
        "operation": approval.operation,
        "operation_id": approval.operation_id,
        "state": approval.state,
        "arguments": approval.arguments,
        "digest": approval.digest,
        "description": approval.description,
        "failed_checks": approval.failed_checks,
        "policy_version": approval.policy_version,
        "policy_changed": approval.policy_changed,
        "required": approval.required,
        "group": approval.group,
        "approvers": approval.approvers,
        "votes": approval.votes,
        "requester_may_decide": approval.requester_may_decide,
        "reason_required": approval.reason_required,
        "allowed": approval.allowed,
        "editor": approval.editor,
        "changes": [vars(one) for one in approval.difference],
        "requested_by": approval.requested_by,
        "requested_at": approval.requested_at,
        "expires_at": approval.expires_at,
        "decision": approval.decision,
        "decided_by": approval.decided_by,
        "decided_at": approval.decided_at,
        "vouched": approval.vouched,
        "verified_by": approval.verified_by,
        "self_approved": approval.self_approved,
        "reason": approval.reason,
        "response": approval.response,
        "used_at": approval.used_at,
    }


def _show_argument(name: str, value: Any) -> None:
    if isinstance(value, str) and ("\n" in value or len(value) > _SHORT):
        say(f"\n-- {name} --\n{value}")
    elif isinstance(value, list) and value:
        say(f"\n-- {name} ({len(value)}) --")
        for item in value:
            say(f"- {_item(item)}")
    else:
        say(f"\n-- {name} --\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")


def _item(item: Any) -> str:
    if isinstance(item, Mapping) and item.keys() == {"document", "passage", "quote"}:
        return f'{item["document"]}, passage {item["passage"]}: "{item["quote"]}"'
    if isinstance(item, Mapping) and item.keys() == {"document", "sha256"}:
        return f"{item['document']} (SHA-256 {item['sha256']})"
    return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)


def _left(until: datetime) -> str:
    left = until - datetime.now(until.tzinfo)
    if left < timedelta(0):
        return "over"
    if left >= timedelta(days=2):
        return f"{round(left / timedelta(days=1))} days left"
    return f"{left // timedelta(hours=1)} h {left % timedelta(hours=1) // timedelta(minutes=1)} min left"
