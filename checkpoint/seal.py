"""Every stored user value passes through here: one envelope around the codec's bytes.

Invariant: no other module makes or opens the bytes of a sealed column. The envelope names the codec and the
key, so that encryption changes this module alone and old rows stay readable. For now the key id is empty:
not encrypted.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from standfast.checkpoint.artifact import Seen, seeing
from standfast.checkpoint.codec import Codec
from standfast.checkpoint.decoding import Gives
from standfast.checkpoint.encoding import Takes
from standfast.checkpoint.errors import CorruptValue, UnknownKey, UnstorableValue

# A table, the row's key, and the column: what a sealed value will be bound to.
RowIdentity = tuple[str, ...]

_CODEC: Final = b"\x01"
_CLEAR: Final = b""
_CLEAR_HEAD: Final = _CODEC + bytes([len(_CLEAR)]) + _CLEAR


class Sealer:
    """Seals values for one row and column, and opens them again.

    The envelope: one byte for the codec, one byte for the length of the key id, the key id, the payload.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def seal(
        self,
        value: Any,
        *,
        at: RowIdentity,
        where: str | None = None,
        artifacts: Seen | None = None,
        takes: Takes | None = None,
    ) -> bytes:
        """The bytes of a value that stands `at` a row; `where` names it in errors. Raises UnstorableValue.

        Artifacts in the value are put into `artifacts`, and the caller lets the row's thread refer to them, with the
        row or before. Without it they are refused. Large parts are left to `takes`.
        """
        where = where or _where(at)
        seen: Seen = {} if artifacts is None else artifacts
        with seeing(seen):
            sealed = _CLEAR_HEAD + self.codec.encode(value, where=where, takes=takes)
        if artifacts is None and seen:
            raise UnstorableValue(
                f"{where} holds {next(iter(seen.values()))}, and nothing would keep its bytes there; "
                "store its id, or the artifact in a thread's state",
                path=where,
                type_name="standfast:Artifact",
            )
        return sealed

    def digest(self, value: Any, *, where: str) -> str:
        """What a value is known by where it is not kept: SHA-256, in hex, over its bytes in clear."""
        with seeing({}):
            return hashlib.sha256(self.codec.encode(value, where=where)).hexdigest()

    def unseal(self, data: bytes, *, at: RowIdentity, where: str | None = None, gives: Gives | None = None) -> Any:
        """The value that was sealed; without `gives`, artifacts stand for its large parts.

        Raises UnknownKey, and whatever `Codec.decode` raises.
        """
        where = where or _where(at)
        if data[:1] != _CODEC or len(data) < 2:
            raise CorruptValue(
                f"the sealed bytes of {where} begin with {data[:1]!r}, which this release does not write; "
                "they were damaged, or written by a newer release",
                path=where,
            )
        start = 2 + data[1]
        key_id = data[2:start]
        if key_id != _CLEAR:
            raise UnknownKey(
                f"{where} is sealed with the key {key_id!r}, which is not configured; configure it",
                key_id=key_id.decode("utf-8", "replace"),
                path=where,
            )
        return self.codec.decode(data[start:], where=where, gives=gives)


def _where(at: RowIdentity) -> str:
    return "/".join(at)
