"""A large part as bytes in a row: the id and size of its content, and what kind of value the content makes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from standfast.checkpoint.artifact import Artifact
from standfast.checkpoint.forms import TEXT, decode_text, encode_text

_HEAD: Final = struct.Struct(">B32sQ")


@dataclass(frozen=True)
class Part:
    """What stands in a row for a part. `kind` is the code of the form that makes a value of the bytes."""

    kind: int
    artifact: Artifact

    @classmethod
    def of(cls, kind: int, name: str, sha256: str, size: int) -> Part:
        media_type = "text/plain; charset=utf-8" if kind == TEXT else "application/octet-stream"
        return cls(kind, Artifact(sha256, name, media_type, size))

    @classmethod
    def unpack(cls, data: bytes) -> Part:
        """Raises `struct.error` and `ValueError` for what `pack` has not made."""
        kind, sha256, size = _HEAD.unpack_from(data)
        return cls.of(kind, decode_text(data[_HEAD.size :]), sha256.hex(), size)

    def pack(self) -> bytes:
        one = self.artifact
        return _HEAD.pack(self.kind, bytes.fromhex(one.sha256), one.size) + encode_text(one.name)
