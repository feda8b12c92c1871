"""What comes in from outside, made safe or refused: thread ids, requests, texts.

Invariant: nothing has been done when something is refused here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from langchain_core.messages import HumanMessage
from langgraph.types import Command

from standfast.checkpoint import errors
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
    carried_on = "; what carries a thread on, or answers it, is resume" if isinstance(request, Command | None) else ""
    raise errors.InvalidRequest(
        f"a request is text or a mapping of the graph's state fields, not {type(request).__name__}{carried_on}"
    )
