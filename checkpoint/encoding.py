"""One value to bytes; `codec` describes the format.

Invariant: a part that would not come back as it was never reaches the bytes: either the exact form of its
type takes it, or the whole value is refused.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn, Protocol

import ormsgpack

from standfast.checkpoint.errors import UnstorableValue
from standfast.checkpoint.forms import BYTES, PART, REFERENCE, TEXT, Form, Layout, Unfit, encode_text
from standfast.checkpoint.stored_types import TypeRegistry, is_secret, type_name_of
from standfast.checkpoint.value_paths import Trail, labelled, path_text

# The shapes that stored bytes have; `codec` describes them.
PLAIN: Final = b"\x00"
EXTENDED: Final = b"\x01"
TABLE: Final = b"\x02"
MAX_DEPTH: Final = 200

# With these, ormsgpack hands every type but the exact plain ones to `_default`.
_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
# Except these, which it writes as something else without asking.
_IMPOSTORS: Final = frozenset({bytearray, memoryview, ormsgpack.Ext, ormsgpack.Fragment})
_ATOMS: Final = frozenset({type(None), bool, float})


class Takes(Protocol):
    """Takes the large parts out of a value, and gives what stands for each; None for one that stays."""

    @property
    def threshold(self) -> int: ...

    def __call__(self, kind: int, value: str | bytes) -> bytes | None: ...


def write(value: Any, registry: TypeRegistry, where: str, takes: Takes | None = None) -> tuple[bytes, bytes]:
    """The shape and the bytes of a value, without the parts that `takes` takes. Raises UnstorableValue."""
    shape, content = _write(value, registry, where)
    if takes is not None and len(content) > takes.threshold and _may_hold_large(content, takes.threshold):
        return _Writer(registry, where, takes).write(value)
    return shape, content


def _write(value: Any, registry: TypeRegistry, where: str) -> tuple[bytes, bytes]:
    try:
        # Most values are plain from end to end: at first no more than ormsgpack.
        packed = ormsgpack.packb(value, None, _OPTIONS)
    except TypeError:
        pass
    else:
        if not _may_hold_bytes(packed) or _is_native(value):
            return PLAIN, packed
    try:
        return _Writer(registry, None).write(value)
    except (_Refused, RecursionError):
        pass
    # Once more, in Python and with the way to every part, for the path in the error.
    try:
        return _Writer(registry, where).write(value)
    except RecursionError:
        raise UnstorableValue(
            f"{where} is nested too deeply to be stored; make it flatter", path=where, type_name=""
        ) from None


class _Refused(Exception):
    """The value cannot be stored; which part of it, only a traced run knows."""


class _Writer:
    """One encoding. Traced (`where` is given), every part is walked and a refusal names its path."""

    __slots__ = ("_depth", "_entries", "_forms", "_interrupted", "_pending", "_registry", "_takes", "_trail", "_where")

    def __init__(self, registry: TypeRegistry, where: str | None, takes: Takes | None = None) -> None:
        self._registry = registry
        self._takes = takes
        self._forms = registry.by_type
        self._where = where
        self._entries: list[bytes] = []
        self._pending: list[tuple[int, Form, Any, int, Trail]] = []
        self._depth = 0
        self._trail: Trail = None
        self._interrupted: BaseException | None = None

    def write(self, value: Any) -> tuple[bytes, bytes]:
        root = self._pack_natively(value)
        if root is None:
            root = ormsgpack.packb(self._lower(value, None, 0))
        entries, pending = self._entries, self._pending
        if not pending:
            return EXTENDED, root
        # The last first: depth first, so that a cycle meets the depth limit before it fills the memory.
        while pending:
            index, form, parts, self._depth, self._trail = pending.pop()
            packed = self._pack_natively(parts)
            if packed is None:
                packed = ormsgpack.packb(self._lower_parts(parts, form))
            entries[index] = form.prefix + packed
        return TABLE, ormsgpack.packb([root, *entries])

    def _pack_natively(self, value: Any) -> bytes | None:
        """The bytes at ormsgpack's speed; None if there is something that only the walk in Python can do."""
        if self._where is not None:
            return None
        entries, pending = len(self._entries), len(self._pending)
        try:
            packed = ormsgpack.packb(value, self._default, _OPTIONS)
        except TypeError:
            if self._interrupted is not None:
                raise self._interrupted from None
        else:
            if not _may_hold_bytes(packed) or _is_native(value):
                return packed
        del self._entries[entries:], self._pending[pending:]
        return None

    def _default(self, value: Any) -> ormsgpack.Ext:
        try:
            return self._refer(value, None)
        except BaseException as exc:
            self._interrupted = exc  # ormsgpack would replace it by a TypeError
            raise

    def _refer(self, value: Any, trail: Trail) -> ormsgpack.Ext:
        """The extension that stands for a value which msgpack cannot hold."""
        kind = type(value)
        form = self._forms.get(kind) or self._registry.form_of(kind)
        if form is None:
            self._refuse(trail, kind, _why_unknown(kind))
        try:
            lowered = form.lower(value)
        except Unfit as exc:
            self._refuse(trail, kind, str(exc))
        except Exception as exc:  # noqa: BLE001 - a half-made instance can fail in any way
            self._refuse(trail, kind, f"it cannot be taken apart ({type(exc).__qualname__}: {exc})")
        if form.layout is Layout.RAW:
            raw = form.prefix + lowered
            return self._taken(form.code, raw) or ormsgpack.Ext(form.code, raw)
        if self._depth >= MAX_DEPTH:
            self._refuse(trail, kind, f"it is nested in itself, or in {MAX_DEPTH} other objects")
        self._pending.append((len(self._entries), form, lowered, self._depth + 1, trail))
        self._entries.append(b"")
        return ormsgpack.Ext(REFERENCE, len(self._entries).to_bytes(4, "big"))

    def _lower(self, value: Any, trail: Trail, nesting: int) -> Any:
        """What plain msgpack can hold of a value, walked in Python."""
        kind = type(value)
        if kind is bytes:
            return self._taken(BYTES, value) or value
        if kind in _ATOMS:
            return value
        if kind is str:
            taken = self._taken(TEXT, value)
            if taken is not None:
                return taken
            return value if _is_utf8(value) else ormsgpack.Ext(TEXT, encode_text(value))
        if kind is int:
            return value if -(2**63) <= value < 2**64 else self._refer(value, trail)
        if kind is not list and kind is not dict:
            return self._refer(value, trail)
        if nesting >= MAX_DEPTH:
            self._refuse(trail, kind, f"it is nested in itself, or in {MAX_DEPTH} other lists and dicts")
        if kind is list:
            return [self._lower(item, (trail, "item", i), nesting + 1) for i, item in enumerate(value)]
        if _has_text_keys(value):
            return {key: self._lower(item, (trail, "item", key), nesting + 1) for key, item in value.items()}
        return self._refer(value, trail)

    def _taken(self, kind: int, value: str | bytes) -> ormsgpack.Ext | None:
        packed = None if self._takes is None else self._takes(kind, value)
        return None if packed is None else ormsgpack.Ext(PART, packed)

    def _lower_parts(self, parts: list[Any], form: Form) -> list[Any]:
        lowered = []
        for part, kind, key in labelled(parts, form.layout):
            if form.layout is Layout.FIELDS and type(part) is dict and _has_text_keys(part):
                lowered.append(
                    {name: self._lower(item, (self._trail, "field", name), 1) for name, item in part.items()}
                )
            else:
                lowered.append(self._lower(part, (self._trail, kind, key), 1))
        return lowered

    def _refuse(self, trail: Trail, kind: type, why: str) -> NoReturn:
        if self._where is None:
            raise _Refused
        path, type_name = self._where + path_text(trail), type_name_of(kind)
        raise UnstorableValue(f"{path} is a {type_name} and cannot be stored: {why}", path=path, type_name=type_name)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _has_text_keys(value: dict[Any, Any]) -> bool:
    return all(type(key) is str and _is_utf8(key) for key in value)


def _may_hold_bytes(packed: bytes) -> bool:
    """Whether there can be bytes in it, or an impostor that was written as bytes: they begin so."""
    return b"\xc4" in packed or b"\xc5" in packed or b"\xc6" in packed


def _may_hold_large(packed: bytes, threshold: int) -> bool:
    """Whether there can be a text or bytes of so many: those of 64 KiB and more begin so."""
    return threshold < 0x10000 or b"\xdb" in packed or b"\xc6" in packed or b"\xc9" in packed


def _is_native(value: Any) -> bool:
    """Whether the lists and dicts in a value hold none of the impostors."""
    level = [value]
    while level:
        kinds = set(map(type, level))
        if not kinds.isdisjoint(_IMPOSTORS):
            return False
        deeper: list[Any] = []
        if list in kinds:
            for item in level:
                if type(item) is list:
                    deeper += item
        if dict in kinds:
            for item in level:
                if type(item) is dict:
                    deeper += item.values()
        level = deeper
    return True


def _why_unknown(kind: type) -> str:
    if is_secret(kind):
        return "secrets never reach the database; keep it outside the state and store its name"
    if issubclass(kind, BaseException):
        return "an exception is recorded only where it is the whole value; store what you need of it as text"
    if kind is memoryview:
        return "it is a view of other memory; store bytes"
    if issubclass(kind, type) or kind.__module__ == "builtins":
        return "it has no stored form; store the data that it stands for"
    return "its type is not registered; register it with TypeRegistry.register, or store plain data"
