"""Reads an answer to an approval, in whichever form the known clients send it.

Forms: LangChain's `{"decisions": [one]}` (camelCase too), Agent Inbox's `[HumanResponse]`, one bare decision,
`{"approved": bool, "editedArgs": ...}`, a bool, and text. Invariant: what cannot be read decides nothing, and free
text never approves: it is a response in the tool's place. A form cannot switch to another operation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import OUTCOMES, Approval, Verb
from standfast.checkpoint.differences import differences

_VERBS: Final[dict[str, Verb]] = {
    "approve": "approve",
    "accept": "approve",  # Agent Inbox
    "edit": "edit",
    "reject": "reject",
    "ignore": "reject",  # Agent Inbox: nobody does it, and the run goes on
    "respond": "respond",
    "response": "respond",  # Agent Inbox
    "happened": "happened",
    "did_not_happen": "did_not_happen",
    "abandon": "abandon",
}

_WORDS: Final = frozenset({*_VERBS, "approved", "rejected", "yes", "y", "ok", "okay", "true", "no", "n", "false"})


@dataclass(frozen=True)
class Said:
    """A decision as it was said, before it is bound to anything."""

    verb: Verb
    reason: str | None = None
    arguments: Mapping[str, Any] | None = None  # of an edit: all of them, what is not there is gone
    changes: Mapping[str, Any] | None = None  # or of an edit: some of them, the others stay as they were proposed
    response: Any = None  # of a response: what the tool's message says; of a call that happened: its result


def decision_of(answer: object, approval: Approval) -> Said:
    """What an answer says about this approval.

    Strings in an edit become the original's types again. An edit that changes nothing approves. Raises
    `InvalidRequest`, which says what is wrong; nothing was decided then, and the request stays open.
    """
    if isinstance(answer, bool):
        return Said("approve" if answer else "reject")
    if isinstance(answer, str):
        return _response(answer, approval)
    if isinstance(answer, Mapping) and "decisions" in answer:
        answer = answer["decisions"]
        if not isinstance(answer, list):
            raise _unusable("decisions must be a list of exactly one decision", approval)
    if isinstance(answer, list | tuple):
        if len(answer) != 1:
            raise _unusable(f"there is one action to decide, and the list has {len(answer)} decisions", approval)
        answer = answer[0]
    if not isinstance(answer, Mapping):
        raise _unusable(f"{answer!r:.60} is not a decision", approval)
    if "type" in answer:
        return _typed(answer, approval)
    if isinstance(answer.get("approved"), bool):
        return _flagged(answer, approval)
    raise _unusable(f"{answer!r:.60} is not a decision", approval)


def _typed(answer: Mapping[str, Any], approval: Approval) -> Said:
    kind = answer["type"]
    verb = _VERBS.get(kind) if isinstance(kind, str) else None
    if verb is None:
        raise _unusable(f"there is no decision {kind!r:.60}; there are {', '.join(approval.allowed)}", approval)
    given = answer.get("args")
    reason = _reason(answer, approval)
    if verb in OUTCOMES:
        return Said(verb, reason, response=answer.get("result"))
    if verb == "approve":
        if given is not None:  # Agent Inbox sends back what was shown
            said = _edit(given, approval, reason)
            if said.verb != "approve":
                raise _unusable("an acceptance brings other arguments than those that were shown", approval)
        return Said("approve", reason)
    if verb == "reject":
        return Said("reject", reason if reason is not None or not isinstance(given, str) else given)
    if verb == "respond":
        return _response(answer.get("message", answer.get("response", given)), approval)
    action = answer.get("edited_action", answer.get("editedAction", given))
    return _edit(action, approval, reason)


def _flagged(answer: Mapping[str, Any], approval: Approval) -> Said:
    edited = answer.get("editedArgs", answer.get("edited_args"))
    reason = _reason(answer, approval)
    if not answer["approved"]:
        return Said("reject", reason)
    if edited is None:
        return Said("approve", reason)
    return _edit({"name": approval.operation, "args": edited}, approval, reason)


def _edit(action: object, approval: Approval, reason: str | None) -> Said:
    if not isinstance(action, Mapping) or not isinstance(action.get("args"), Mapping):
        raise _unusable("an edit needs edited_action with name and args", approval)
    name = action.get("name", action.get("action"))
    if name != approval.operation:
        raise _unusable(f"an edit cannot switch to another operation ({name!r:.60})", approval)
    arguments = _as_typed(approval.arguments, action["args"])
    if not differences(approval.arguments, arguments):
        return Said("approve", reason)
    return Said("edit", reason, arguments=arguments)


def _response(text: object, approval: Approval) -> Said:
    if isinstance(text, str) and text.strip().lower() in _WORDS:
        raise _unusable(f"the text {text!r} is not a decision, though it could be meant as one", approval)
    if text is None or (isinstance(text, str) and not text.strip()):
        raise _unusable("a response needs its text", approval)
    return Said("respond", response=text)


def _reason(answer: Mapping[str, Any], approval: Approval) -> str | None:
    reason = answer.get("message", answer.get("reason"))
    if reason is not None and not isinstance(reason, str):
        raise _unusable(f"a reason is text, not {type(reason).__name__}", approval)
    return reason or None


def _as_typed(original: Any, edited: Any) -> Any:
    """The edited value with the original's types, where a form has made text of them."""
    if isinstance(original, Mapping) and isinstance(edited, Mapping):
        return {key: _as_typed(original.get(key), value) for key, value in edited.items()}
    if isinstance(original, list) and isinstance(edited, list):
        return [_as_typed(original[place] if place < len(original) else None, one) for place, one in enumerate(edited)]
    if not isinstance(edited, str) or isinstance(original, str):
        return edited
    try:
        value = json.loads(edited.lower() if isinstance(original, bool) else edited)
    except (ValueError, RecursionError):
        return edited
    return value if value is None or _kind(value) == _kind(original) else edited


def _kind(value: Any) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _unusable(why: str, approval: Approval) -> errors.InvalidRequest:
    forms = (
        '{"type": "approve"}, {"type": "reject", "message": ...}, {"type": "respond", "message": ...} or '
        '{"type": "edit", "edited_action": {"name": ..., "args": ...}}'
    )
    if approval.kind == "outcome":
        forms = '{"type": "happened", "result": ...}, {"type": "did_not_happen"} or {"type": "abandon", "message": ...}'
    return errors.InvalidRequest(
        f"{why}; approval {approval.id!r} stays open: answer with {forms}",
        approval_id=approval.id,
        thread_id=approval.thread_id,
    )
