"""What a thread waits for, in words: for a `repr`, and for the command line.

Invariant: nothing is looked up; a wait's own row says it all.
"""

from __future__ import annotations

import reprlib
from typing import Final

from standfast.checkpoint.waits import Wait
from standfast.graph.visible import local_time

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 3


def awaited(wait: Wait) -> str:
    """What is waited for, and until when, in the reader's time zone."""
    if wait.kind == "completion":
        again = "" if wait.until is None else f"; it is looked at again at {local_time(wait.until)}"
        return f"the end of operation {wait.name}{again}"
    if wait.kind == "child":
        return f"the end of thread {wait.name}{_until(wait)}"
    if wait.kind == "event":
        return f"event {wait.name!r}{_match(wait)}{_until(wait)}"
    return f"its time{_until(wait)}"


def waiting_for(wait: Wait) -> str:
    """The same in a few words, by the wait's kind."""
    name = f" {wait.name!r}" if wait.name else ""
    return f"waits for {'an' if wait.kind == 'event' else 'a'} {wait.kind}{name}{_match(wait)}{_until(wait)}"


def _match(wait: Wait) -> str:
    asked = wait.request if wait.kind == "event" and isinstance(wait.request, dict) else {}
    return f" with {_SHORT.repr(asked['match'])}" if "match" in asked else ""


def _until(wait: Wait) -> str:
    return "" if wait.until is None else f" until {local_time(wait.until)}"
