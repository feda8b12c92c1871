"""An approval as a person sees it: exactly what would be done, for whom, until when, and how to answer."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from standfast.checkpoint.approvals import Approval
from standfast.graph.cli.output import counted, is_terminal, local_time, say, shortened
from standfast.graph.cli.session import Session

_SHORT: Final = 100
_BEGINNING: Final = 60  # characters of what is repeated
AS_ABOVE: Final = " (as above)"


def show_approval(approval: Approval, requester: str | None = None, *, whole: bool = False) -> None:
    """Everything that a decision is about. In a terminal, unless `whole`, what stands above word for word is shortened:
    a line of a text that comes again, a quotation that the text has."""
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
    shown = None if whole or not is_terminal(sys.stdout) else Repetitions()
    for name, value in approval.arguments.items():
        _show_argument(name, value, shown)
    if shown is not None and shown.shortened:
        say(f"\n{counted(shown.shortened, 'repetition')} shortened; in full: standfast show {approval.thread_id}")
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


class Repetitions:
    """What a person has been shown of the arguments, so that the same words need not be read twice."""

    def __init__(self) -> None:
        self.shortened = 0
        self._lines: set[str] = set()
        self._words = ""

    def text(self, text: str) -> str:
        """The text, without the ends of long lines that came before."""
        lines = []
        for line in text.split("\n"):
            again = len(line) > _SHORT and line in self._lines
            self._lines.add(line)
            lines.append(self._cut(line) + AS_ABOVE if again else line)
        self._words += f"\n{_words(text)}"
        return "\n".join(lines)

    def quotation(self, quote: str) -> str:
        """The quotation between its marks; its beginning only, if its words stand in a text that was shown."""
        if len(quote) <= _SHORT or _words(quote) not in self._words:
            return f'"{quote}"'
        return f'"{self._cut(_words(quote))}"{AS_ABOVE}'

    def _cut(self, line: str) -> str:
        self.shortened += 1
        return shortened(line, _BEGINNING)


def _words(text: str) -> str:
    """The text but for its line breaks; what would be invisible makes another text."""
    return re.sub(r"[ \t\n]+", " ", text)


def _show_argument(name: str, value: Any, shown: Repetitions | None) -> None:
    if isinstance(value, str) and ("\n" in value or len(value) > _SHORT):
        say(f"\n-- {name} --\n{value if shown is None else shown.text(value)}")
    elif isinstance(value, list) and value:
        say(f"\n-- {name} ({len(value)}) --")
        for item in value:
            say(f"- {_item(item, shown)}")
    else:
        say(f"\n-- {name} --\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")


def _item(item: Any, shown: Repetitions | None) -> str:
    if isinstance(item, Mapping) and item.keys() == {"document", "passage", "quote"}:
        quote = item["quote"]
        quoted = f'"{quote}"' if shown is None or not isinstance(quote, str) else shown.quotation(quote)
        return f"{item['document']}, passage {item['passage']}: {quoted}"
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
