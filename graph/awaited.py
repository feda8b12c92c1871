"""What a thread waits for, in words: for a `repr`, and for the command line.

Invariant: nothing is looked up; a wait's own row says it all.
"""

from __future__ import annotations

import reprlib
from datetime import datetime
from typing import Any, Final

from standfast.checkpoint.waits import Wait

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 3


def awaited(wait: Wait) -> str:
    """What is waited for, and until when, in the reader's time zone."""
    until = "" if wait.until is None else f" until {_local(wait.until)}"
    asked = wait.request if isinstance(wait.request, dict) else {}
    if wait.kind == "completion":
        return f"the end of operation {wait.name}" + (
            f"; it is looked at again at{until.removeprefix(' until')}" if until else ""
        )
    if wait.kind == "child":
        return f"the end of thread {wait.name}{until}"
    if wait.kind == "event":
        match = f" with {short(asked['match'])}" if "match" in asked else ""
        return f"event {wait.name!r}{match}{until}"
    return f"its time{until}"


def short(value: Any) -> str:
    """A value on a part of a line."""
    return _SHORT.repr(value)


def _local(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"
