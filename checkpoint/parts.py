"""Large parts of stored values: texts and bytes that stand as artifacts beside the row of their value.

Invariant: the row names a part by its SHA-256, and its thread refers to the artifact in the transaction that stores
the row. Whoever needs a value gets its parts back with their types; whoever shows it gets artifacts, and loads nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from standfast.checkpoint import errors
from standfast.checkpoint.artifact import Artifact, Seen
from standfast.checkpoint.artifacts import Artifacts
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.forms import TEXT, decode_text, encode_text
from standfast.checkpoint.part import Part

T = TypeVar("T")
_AT_HAND: Final = 64 * 1024 * 1024
"""Bytes of parts that stay in memory between two reads, besides the one last used."""


class Parts:
    """The large parts of what one saver writes and reads: those of more than `threshold` bytes."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self.threshold = artifacts.threshold
        self._new: dict[str, tuple[Artifact, bytes]] = {}
        self._stored: set[str] = set()  # what the thread refers to, or is about to
        self._at_hand: dict[tuple[str, int], tuple[Part, str | bytes]] = {}  # the last used last
        self._by_identity: dict[int, tuple[Part, str | bytes]] = {}
        self._missing: dict[tuple[str, int], Part] = {}

    # -- writing

    def part_of(self, kind: int, value: str | bytes, name: str) -> Part | None:
        """The part that stands for a value, if it is large; `put` puts it."""
        if len(value) * (4 if isinstance(value, str) else 1) <= self.threshold:
            return None
        known = self._by_identity.get(id(value))  # a node that hands a document on hands on the very object
        if known is not None and known[0].kind == kind and known[0].artifact.sha256 in self._stored:
            return known[0]
        data = encode_text(value) if isinstance(value, str) else value
        if len(data) <= self.threshold:
            return None
        part = Part.of(kind, name, hashlib.sha256(data).hexdigest(), len(data))
        self._keep(part, value)
        if part.artifact.sha256 not in self._stored:
            self._new[part.artifact.sha256] = part.artifact, data
        return part

    async def put(self) -> None:
        """Put what is new, before a row that names it is committed. What failed is put by the next call."""
        for sha256, (artifact, data) in list(self._new.items()):
            await self._artifacts.keep(artifact, data)
            self._stored.add(sha256)
            del self._new[sha256]
            reach("parts.put")
        self._trim()

    def forget(self) -> None:
        """References were dropped: what is written again is put again."""
        self._stored.clear()

    # -- reading

    def value_of(self, part: Part) -> str | bytes:
        """A part's text or bytes. One that is not at hand is noted, and stays empty until `whole` has read it."""
        key = part.artifact.sha256, part.kind
        if key in self._at_hand:
            return self._at_hand[key][1]
        self._missing[key] = part
        return "" if part.kind == TEXT else b""

    async def whole(self, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` gives when all parts that it asks for are at hand. Raises as `Artifacts.read` does."""
        while True:
            self._missing.clear()
            try:
                value = await read()
            except errors.StorageError:  # perhaps only because a part was empty
                if not self._missing:
                    raise
            else:
                if not self._missing:
                    self._trim()
                    return value
            for part in list(self._missing.values()):
                data = await self._artifacts.read(part.artifact)
                self._keep(part, decode_text(data) if part.kind == TEXT else data)
                self._stored.add(part.artifact.sha256)

    # -- memory

    def _keep(self, part: Part, value: str | bytes) -> None:
        key = part.artifact.sha256, part.kind
        _, before = self._at_hand.pop(key, (None, None))
        self._by_identity.pop(id(before), None)
        self._at_hand[key] = self._by_identity[id(value)] = part, value

    def _trim(self) -> None:
        total = sum(part.artifact.size for part, _ in self._at_hand.values())
        for key, (part, value) in list(self._at_hand.items())[:-1]:
            if total <= _AT_HAND:
                return
            total -= part.artifact.size
            del self._at_hand[key], self._by_identity[id(value)]


class Leaving:
    """Takes the large parts out of one row's value while it is encoded; `seen` are their artifacts."""

    def __init__(self, parts: Parts, name: str) -> None:
        self._parts = parts
        self._name = name
        self.threshold = parts.threshold
        self.seen: Seen = {}

    def __call__(self, kind: int, value: str | bytes) -> bytes | None:
        """What stands for a text, or for bytes of the form `kind`; None for one that stays."""
        part = self._parts.part_of(kind, value, self._name)
        if part is None:
            return None
        self.seen[part.artifact.sha256] = part.artifact
        return part.pack()
