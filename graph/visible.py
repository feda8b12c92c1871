"""Text that hides nothing: what a model, a document or a database says, as a person may be shown it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

# C0 and C1 controls but newline and tab, bidirectional overrides, lone surrogates.
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def plain(text: object) -> str:
    """The text with everything escaped that would be invisible, move a cursor, or turn the reading direction."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def shortened(value: object, most: int = 80) -> str:
    """One line of at most `most` characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def counted(number: int, noun: str) -> str:
    """`1 document`, `2 documents`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def local_time(at: datetime) -> str:
    """A time as people read it, in their own zone, to the second."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S %Z}"
