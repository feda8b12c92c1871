"""What comes in from outside, made safe or refused: thread ids, requests, answers.

Invariant: nothing has been done when something is refused here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from langchain_core.messages import HumanMessage

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval, Verb
from standfast.nodes.state import request_id

MOST_CHARACTERS: Final = 1_000_000
_LONGEST_ID: Final = 255


def thread_id_of(value: object) -> str:
    """A thread id as text: 1 to 255 printable characters; a UUID or an int stands for its text.

    Raises `InvalidThreadId`.
    """
    if isinstance(value, uuid.UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        value = str(value)
    if not isinstance(value, str):
        raise errors.InvalidThreadId(f"a thread id is text, a UUID or an int, not {type(value).__name__}")
    if not value:
        raise errors.InvalidThreadId("a thread id must not be empty")
    if len(value) > _LONGEST_ID or len(value.encode("utf-8", "surrogatepass")) > 2 * _LONGEST_ID:
        raise errors.InvalidThreadId(
            f"a thread id has at most {_LONGEST_ID} characters, not {len(value)}: {value[:40]!r}..."
        )
    if not value.isprintable() or value != value.strip():
        raise errors.InvalidThreadId(f"a thread id must be printable and not begin or end with a space: {value[:40]!r}")
    return value


def text_of(value: str, what: str) -> str:
    """A text that a person wrote: not empty, not huge, storable. Raises `InvalidRequest`."""
    if not value.strip():
        raise errors.InvalidRequest(f"the {what} is empty; say what is wanted")
    if len(value) > MOST_CHARACTERS:
        raise errors.InvalidRequest(
            f"the {what} has {len(value):,} characters, at most {MOST_CHARACTERS:,} are taken; "
            "put long material into a document"
        )
    position = value.find("\0")
    if position >= 0:
        raise errors.InvalidRequest(f"the {what} has a NUL character at position {position}; remove it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise errors.InvalidRequest(
            f"the {what} is not valid UTF-8 text (at position {error.start}); save it as UTF-8"
        ) from error
    return value


def graph_input(request: object, run_id: str, *, takes_messages: bool) -> Any:
    """The graph's input for a request: text becomes the run's message, a mapping goes in as it is."""
    if isinstance(request, bytes):
        try:
            request = request.decode()
        except UnicodeDecodeError as error:
            raise errors.InvalidRequest(
                f"the request is not UTF-8 text (at byte {error.start}); save it as UTF-8"
            ) from error
    if isinstance(request, str):
        if not takes_messages:
            raise errors.InvalidRequest(
                "this graph takes a mapping of its state fields, not text (on the command line: a JSON object)"
            )
        return {"messages": [HumanMessage(text_of(request, "request"), id=request_id(run_id))]}
    if isinstance(request, Mapping):
        return dict(request)
    raise errors.InvalidRequest(
        f"a request is text or a mapping of the graph's state fields, not {type(request).__name__}"
    )


@dataclass(frozen=True)
class Said:
    """A decision as it was said, before it is bound to anything."""

    verb: Verb
    reason: str | None = None
    arguments: Mapping[str, Any] | None = None  # of an edit: all of them, what is not there is gone
    changes: Mapping[str, Any] | None = None  # or of an edit: some of them, the others stay as they were proposed


def decision_of(answer: object, approval: Approval) -> Said:
    """Read an answer to an approval: LangChain's `{"decisions": [...]}` or one bare decision.

    Free text never approves. Raises `InvalidRequest`; nothing was decided then, and the request stays open.
    """
    if isinstance(answer, Mapping) and "decisions" in answer:
        decisions = answer["decisions"]
        if not isinstance(decisions, list) or len(decisions) != 1:
            raise _unusable("decisions must be a list of exactly one decision", approval)
        answer = decisions[0]
    if not isinstance(answer, Mapping) or not isinstance(answer.get("type"), str):
        raise _unusable(f"{answer!r:.60} is not a decision", approval)
    kind = answer["type"]
    if kind == "approve":
        return Said("approve")
    if kind == "reject":
        reason = answer.get("message", answer.get("reason"))
        return Said("reject", reason=None if reason is None else str(reason))
    if kind == "edit":
        action = answer.get("edited_action")
        if not isinstance(action, Mapping) or not isinstance(action.get("args"), Mapping):
            raise _unusable("an edit needs edited_action with name and args", approval)
        if action.get("name") != approval.operation:
            raise _unusable(f"an edit cannot switch to another operation ({action.get('name')!r})", approval)
        return Said("edit", arguments=action["args"])
    raise _unusable(f"there is no decision {kind!r}; there are approve, edit, reject", approval)


def _unusable(why: str, approval: Approval) -> errors.InvalidRequest:
    return errors.InvalidRequest(
        f"{why}; approval {approval.id!r} stays open: answer with "
        '{"type": "approve"}, {"type": "reject", "message": ...} or '
        '{"type": "edit", "edited_action": {"name": ..., "args": ...}}',
        approval_id=approval.id,
    )
