"""Bytes to one value; `codec` describes the format.

Invariant: whatever the bytes are, the end is a value or a StorageError. A name in them is only looked up in
the registry; objects are built one after the other, never one inside the building of another.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn, Protocol

import ormsgpack

from standfast.checkpoint.artifact import Artifact
from standfast.checkpoint.encoding import EXTENDED, MAX_DEPTH, PLAIN, TABLE
from standfast.checkpoint.errors import CorruptValue, StorageError, UnknownStoredType
from standfast.checkpoint.forms import BYTES, NAMED, NAMED_RAW, PART, REFERENCE, TEXT, Form, Layout
from standfast.checkpoint.part import Part
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.checkpoint.value_paths import Trail, labelled, path_text

_MESSAGES: Final = "langchain:"


class Gives(Protocol):
    """Gives the text or the bytes of a large part."""

    def value_of(self, part: Part) -> str | bytes: ...


def read(shape: bytes, content: bytes, registry: TypeRegistry, where: str, gives: Gives | None = None) -> Any:
    """The value of a shape and bytes that `encoding.write` made.

    Without `gives` an artifact stands for each large part, or in a message the line that names it; what cannot be
    made around one (an array) is shown as the artifact.

    Raises UnknownStoredType, StoredTypeChanged or CorruptValue, each with `path`.
    """
    if shape == PLAIN:
        try:
            return ormsgpack.unpackb(content)
        except ValueError as exc:
            raise _corrupt(where, exc) from exc
    return _Reader(registry, where, gives).read(shape, content)


class _Reader:
    """One decoding."""

    __slots__ = ("_built", "_depth", "_failure", "_gives", "_in_message", "_registry", "_shown", "_where")

    def __init__(self, registry: TypeRegistry, where: str, gives: Gives | None) -> None:
        self._gives = gives
        self._in_message = False
        self._shown: Artifact | None = None  # the last that stands for a part of the entry
        self._registry = registry
        self._where = where
        self._built: dict[int, tuple[Any, int]] = {}  # by number: a value not yet referred to, its depth
        self._depth = 0
        self._failure: BaseException | None = None

    def read(self, shape: bytes, content: bytes) -> Any:
        table, index = [content], 0
        try:
            if shape == EXTENDED:
                return ormsgpack.unpackb(content, ext_hook=self._extension)
            if shape != TABLE:
                raise ValueError(f"no value begins with {shape!r}")
            table = _checked_table(ormsgpack.unpackb(content))
            # From the last: what an entry refers to stands behind it.
            for index in range(len(table) - 1, 0, -1):
                self._build(index, table[index])
            index, self._in_message = 0, False
            value = ormsgpack.unpackb(table[0], ext_hook=self._extension)
            if self._built:
                raise ValueError("it has parts that nothing refers to")
            return value
        except Exception as exc:  # noqa: BLE001 - hostile bytes, and classes' own __hash__, can raise anything
            self._fail(self._failure if self._failure is not None else exc, table, index)

    def _build(self, index: int, entry: bytes) -> None:
        form, body = _form_of_entry(entry, self._registry)
        self._depth = 0
        self._in_message, self._shown = form.name.startswith(_MESSAGES), None
        parts = ormsgpack.unpackb(body, ext_hook=self._extension)
        if type(parts) is not list:
            raise TypeError("the parts of an entry are not a list")
        if self._depth >= MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} objects are nested in one another")
        try:
            value = form.restore(parts)
        except Exception:
            if self._shown is None:
                raise
            value = self._shown
        self._built[index] = value, self._depth + 1

    def _extension(self, code: int, data: bytes) -> Any:
        try:
            if code == REFERENCE:
                # An entry is used once, so that a few bytes cannot stand for very many values.
                value, depth = self._built.pop(int.from_bytes(data, "big"))
                if depth > self._depth:
                    self._depth = depth
                return value
            if code == PART:
                return self._part(Part.unpack(data))
            return self._raw(code, data)
        except BaseException as exc:
            self._failure = exc  # ormsgpack would replace it by a ValueError
            raise

    def _part(self, part: Part) -> Any:
        if self._gives is None:
            self._shown = part.artifact
            return str(part.artifact) if self._in_message else part.artifact
        value = self._gives.value_of(part)
        if part.kind in (TEXT, BYTES):
            return value
        assert isinstance(value, bytes)
        return self._raw(part.kind, value)

    def _raw(self, code: int, data: bytes) -> Any:
        form, raw = _form_of_raw(code, data, self._registry)
        return form.restore(raw)

    def _fail(self, failure: BaseException, table: list[bytes], index: int) -> NoReturn:
        if not isinstance(failure, Exception):
            raise failure
        path = self._where + _path_of_entry(table, index, self._registry)
        if isinstance(failure, StorageError):
            raise type(failure)(f"{path}: {failure.message}", **{**failure.data, "path": path}) from failure
        raise _corrupt(path, failure) from failure


def _corrupt(path: str, failure: Exception) -> CorruptValue:
    return CorruptValue(
        f"the stored bytes of {path} are not what they claim to be: "
        f"{type(failure).__qualname__}: {str(failure)[:200]}; restore them from a backup",
        path=path,
    )


def _checked_table(table: Any) -> list[bytes]:
    if type(table) is not list or not table or not all(type(entry) is bytes for entry in table):
        raise ValueError("the table of its parts is not a list of bytes")
    return table


def _form_of_entry(entry: bytes, registry: TypeRegistry) -> tuple[Form, bytes]:
    """The form of an entry, and the bytes of its parts."""
    code = entry[0]
    if code == NAMED:
        return _named(entry[1:], NAMED, registry)
    form = registry.by_code.get(code)
    if form is None or form.layout is Layout.RAW:
        raise ValueError(f"{code} is not the code of a value with parts")
    return form, entry[1:]


def _form_of_raw(code: int, data: bytes, registry: TypeRegistry) -> tuple[Form, bytes]:
    """The form of a small value, and its bytes."""
    if code == NAMED_RAW:
        return _named(data, NAMED_RAW, registry)
    form = registry.by_code.get(code)
    if form is None or form.layout is not Layout.RAW:
        raise ValueError(f"{code} is not the code of a small value")
    return form, data


def _named(data: bytes, code: int, registry: TypeRegistry) -> tuple[Form, bytes]:
    """The form that the name before the bytes says, and the bytes behind the name."""
    end = 2 + int.from_bytes(data[:2], "big")
    if len(data) < end:
        raise ValueError("a type's name is cut short")
    name = data[2:end].decode()
    form = registry.by_name.get(name)
    if form is None:
        hint = (
            "the main module of another program defined it; register it under this name"
            if name.startswith("__main__:")
            else "register the class, or if it has moved, its new place with the old name as an alias"
        )
        raise UnknownStoredType(
            f"the stored type {name[:200]!r} is not registered, so the value was left alone; {hint}",
            type_name=name,
        )
    if form.code != code:
        raise ValueError(f"{name[:200]!r} is stored in a shape that its class does not have")
    return form, data[end:]


# --- the way to an entry, for messages ---


class _Mark:
    """Stands for a reference while the table is searched for the way to an entry."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def _mark(code: int, data: bytes) -> _Mark | None:
    return _Mark(int.from_bytes(data, "big")) if code == REFERENCE else None


def _path_of_entry(table: list[bytes], index: int, registry: TypeRegistry) -> str:
    """The way from the root to an entry of a damaged or outdated value, as far as it can be read."""
    parents: dict[int, tuple[int, Trail]] = {}
    for parent in range(index):
        try:
            form, body = _form_of_entry(table[parent], registry) if parent else (None, table[0])
            tree = ormsgpack.unpackb(body, ext_hook=_mark)
            steps = labelled(tree, form.layout) if form is not None else [(tree, "", None)]
            fields = form is not None and form.layout is Layout.FIELDS
            for part, kind, key in steps:
                _find_marks(part, (None, kind, key), fields, parent, parents)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001, S112 - the way is a courtesy: what cannot be read of it is left out
            continue
    path = ""
    # A parent stands before its parts, in hostile bytes too: only such are looked at.
    while index in parents:
        index, trail = parents[index]
        path = path_text(trail) + path
    return path


def _find_marks(value: Any, trail: Trail, fields: bool, parent: int, parents: dict[int, tuple[int, Trail]]) -> None:
    if type(value) is _Mark:
        if value.index > parent:
            parents.setdefault(value.index, (parent, trail))
    elif type(value) is list:
        for i, item in enumerate(value):
            _find_marks(item, (trail, "item", i), False, parent, parents)
    elif type(value) is dict:
        for key, item in value.items():
            _find_marks(item, (trail, "field" if fields else "item", key), False, parent, parents)
