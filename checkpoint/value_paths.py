"""Where a part stands in a value, as text: `state['order'].items[3]`.

Invariant: a path shows names, keys and positions, never the values that stand there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from standfast.checkpoint.forms import Layout

Step = Literal["", "item", "field", "key", "member"]
# The way to the parent, what kind of step leads on from it, and the step's key. None is the value itself.
Trail = tuple[Any, Step, Any] | None


def path_text(trail: Trail) -> str:
    """The steps of a trail, from the value's own end to the part's."""
    steps = []
    while trail is not None:
        trail, kind, key = trail
        if kind == "field":
            steps.append(f".{key}")
        elif kind == "item":
            steps.append(f"[{_short(key)}]")
        elif kind:
            steps.append(f".{kind}({_short(key)})")
    return "".join(reversed(steps))


def labelled(parts: list[Any], layout: Layout) -> Iterator[tuple[Any, Step, Any]]:
    """Each part of a lowered value, with the step that leads to it."""
    for i, part in enumerate(parts):
        if layout is Layout.ITEMS:
            yield part, "item", i
        elif layout is Layout.MEMBERS:
            yield part, "member", i
        elif layout is Layout.PAIRS and i % 2:
            yield part, "item", parts[i - 1]
        elif layout is Layout.PAIRS:
            yield part, "key", part
        else:
            yield part, "", None


def _short(key: Any) -> str:
    if type(key) is int and key.bit_length() > 64:
        return "<a big int>"
    if type(key) not in (str, int, bool, float, type(None)):
        return f"<{type(key).__qualname__}>"
    text = repr(key)
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"
