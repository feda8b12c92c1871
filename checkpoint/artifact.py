"""An artifact as a value: the id, name, type and size of bytes that stand elsewhere.

Invariant: what is sealed with an artifact in it is refused unless whoever seals it makes the reference too
(standfast.checkpoint.seal), so a stored value never names bytes that may be swept away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from standfast.checkpoint.class_forms import named_form
from standfast.checkpoint.forms import Form, Layout, Unfit, typed

Seen = dict[str, "Artifact"]
"""Artifacts by SHA-256."""


@dataclass(frozen=True)
class Artifact:
    """Bytes that are kept outside checkpoints, under the SHA-256 of their content. `size` is in bytes."""

    sha256: str
    name: str
    media_type: str
    size: int

    def __str__(self) -> str:
        """What a model reads of it."""
        return f"Artifact {self.name!r} ({self.media_type}, {self.size:,} bytes), id {self.sha256[:16]}"


_seen: ContextVar[Seen | None] = ContextVar("standfast.artifacts_seen", default=None)


@contextmanager
def seeing(seen: Seen) -> Iterator[None]:
    """Gather in `seen` the artifacts of whatever is encoded inside."""
    token = _seen.set(seen)
    try:
        yield
    finally:
        _seen.reset(token)


def _lower(value: Artifact) -> list[Any]:
    parts = [value.sha256, value.name, value.media_type, value.size]
    if [str, str, str, int] != [type(part) for part in parts]:
        raise Unfit("its fields are not of their types")
    seen = _seen.get()
    if seen is not None:
        seen[value.sha256] = value
    return parts


def _restore(parts: list[Any]) -> Artifact:
    return Artifact(*typed(parts, (str,), (str,), (str,), (int,)))


ARTIFACT_FORM: Form = named_form("standfast:Artifact", Layout.PARTS, _lower, _restore)
