"""Values to bytes and back: strict, closed, and exact.

Invariant: what `encode` accepts, `decode` gives back with the same type at every level and the same value;
anything else is refused by name. Decoding imports and calls nothing that the bytes name.

The format: one byte for the shape, eight bytes of checksum over what follows, and msgpack. A value made of None,
bool, int, float, str, bytes, list and dict with text for keys is that msgpack itself (shape 0). Of any other
value, small ones (a date, a decimal) are msgpack extensions in place (shape 1); those with parts (a tuple, a
message) are entries of a table, `[root, entry 1, entry 2, ...]`, to which extensions refer by number (shape 2).
An entry is referred to once, by an earlier entry. So neither direction recurses through nested objects, and
hostile bytes cannot exhaust the stack: msgpack decoded inside the decoding of msgpack would end the process.
Large texts and bytes may stand elsewhere: an extension names the artifact (see standfast.checkpoint.parts).

Not kept: the identity of shared parts (they come back equal and separate; cycles are refused), and an
exception (see RecordedError). Not always seen: ormsgpack's own `Ext` and `Fragment`, which are msgpack written
by hand; whoever puts one into a value writes bytes of his choice.
"""

from __future__ import annotations

from typing import Any, Final

import xxhash

from standfast.checkpoint.decoding import Gives, read
from standfast.checkpoint.encoding import Takes, write
from standfast.checkpoint.errors import CorruptValue, UnknownStoredType
from standfast.checkpoint.stored_types import RecordedError, TypeRegistry

_HEAD: Final = 9


class Codec:
    """Encodes and decodes values with the types of one registry; also LangGraph's serializer protocol."""

    tag: Final = "standfast/1"

    def __init__(self, registry: TypeRegistry | None = None) -> None:
        self.registry = registry if registry is not None else TypeRegistry()

    def encode(self, value: Any, *, where: str = "value", takes: Takes | None = None) -> bytes:
        """The bytes of a value. An exception that is itself the value is recorded as a RecordedError.

        Raises UnstorableValue with `path` (such as `state['order'].items[3]`, beginning with `where`) and
        `type_name`. Large parts are left to `takes`.
        """
        if isinstance(value, BaseException):
            value = RecordedError.of(value)
        shape, content = write(value, self.registry, where, takes)
        return shape + xxhash.xxh3_64_digest(content, shape[0]) + content

    def decode(self, data: bytes, *, where: str = "value", gives: Gives | None = None) -> Any:
        """The value of bytes that `encode` made, with the parts that `gives` gives; without it, their artifacts.

        Raises UnknownStoredType for a name that is not registered, StoredTypeChanged for a value that no
        longer fits its class, CorruptValue for anything else that `encode` did not make; each with `path`.
        """
        content = data[_HEAD:]
        if not content or xxhash.xxh3_64_digest(content, data[0]) != data[1:_HEAD]:
            raise CorruptValue(
                f"the {len(data)} stored bytes of {where} are damaged: their checksum does not match; "
                "restore them from a backup",
                path=where,
            )
        return read(data[:1], content, self.registry, where, gives)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self.tag, self.encode(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        tag, payload = data
        if tag != self.tag:
            raise UnknownStoredType(
                f"a value is stored in the format {tag!r}, and only {self.tag!r} is read; another saver or a "
                "newer release wrote it",
                type_name=tag,
                path="value",
            )
        return self.decode(payload)
