"""Text for a text column: whatever an error said, it can be stored.

Invariant: what comes out is what stands in the column afterwards; storing it never fails.
"""

from __future__ import annotations

import re
from typing import Final, overload

LONGEST: Final = 4_000
"""Characters; the rest of a longer text is left out."""

_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")  # Postgres takes no NUL, UTF-8 no lone surrogate


@overload
def storable_text(text: str) -> str: ...


@overload
def storable_text(text: None) -> None: ...


@overload
def storable_text(text: str | None) -> str | None: ...


def storable_text(text: str | None) -> str | None:
    """The text with U+FFFD for each character that cannot be stored, at most `LONGEST` characters of it."""
    if text is None:
        return None
    shown = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", shown)
