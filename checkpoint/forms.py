"""How the values of one type are taken apart for storage and put together again, for the built-in types.

Invariant: `restore(lower(value))` has the same type and the same value, or `lower` raises `Unfit`.
Nothing here imports, looks up or calls anything that stored bytes name.
"""

from __future__ import annotations

import ipaddress
import pathlib
import re
import struct
import uuid
import zoneinfo
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from functools import cache
from typing import Any, Final

import pydantic_core

from standfast.checkpoint.errors import UnknownStoredType


class Layout(IntEnum):
    """What the parts of a value are, for storage and for the path in an error message."""

    RAW = 0  # the lowered value is bytes, stored in place
    ITEMS = 1  # a list of the value's items
    MEMBERS = 2  # a list of the members of a set
    PAIRS = 3  # a list of keys and values in turn
    PARTS = 4  # a list of things that have no name of their own in a path
    FIELDS = 5  # like PARTS, but the keys of its dicts are attributes


_INT: Final = (int,)
_DICT: Final = (dict,)


class Unfit(Exception):
    """This value of a known type would not come back as it was; the text says why."""


@dataclass(frozen=True, slots=True)
class Form:
    """The two directions for one type. `prefix` stands before the stored bytes and says which form it is."""

    code: int
    name: str
    layout: Layout
    lower: Callable[[Any], Any]
    restore: Callable[[Any], Any]
    prefix: bytes = b""


# Codes are part of the stored format, here and in the table below: a used number never gets another meaning.
REFERENCE: Final = 0
NAMED: Final = 1
NAMED_RAW: Final = 2
BIG_INT: Final = 3
TEXT: Final = 4
MAPPING: Final = 5
DEFAULT_DICT: Final = 39
PART: Final = 50  # see standfast.checkpoint.parts
BYTES: Final = 51  # of a part only: msgpack holds others itself


def typed(parts: list[Any], *kinds: tuple[type, ...]) -> list[Any]:
    """The parts, which must be of these exact types.

    Without it a hostile row could put a range of 10**18 numbers where a list belongs, and loading would never end.
    """
    if len(parts) != len(kinds) or not all(type(part) in kind for part, kind in zip(parts, kinds, strict=True)):
        raise TypeError("the parts are not of the types that a writer gives them")
    return parts


# --- text and numbers that msgpack cannot hold ---


def _big_int_lower(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _big_int_restore(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def encode_text(text: str) -> bytes:
    """UTF-8 that also holds lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _complex_restore(data: bytes) -> complex:
    return complex(*struct.unpack(">dd", data))


# --- containers ---


def _plain(value: Any) -> Any:
    """Refuse attributes set on a container whose class allows them: they have no place in the stored form."""
    if vars(value):
        raise Unfit(f"it carries attributes of its own ({', '.join(sorted(map(str, vars(value))))})")
    return value


def _mapping_lower(value: dict[Any, Any]) -> list[Any]:
    return [part for pair in value.items() for part in pair]


def _mapping_restore(parts: list[Any]) -> dict[Any, Any]:
    keys = parts[0::2]
    restored = dict(zip(keys, parts[1::2], strict=True))
    if len(restored) != len(keys):
        raise ValueError("a key occurs twice")
    return restored


def _counter_restore(parts: list[Any]) -> Counter[Any]:
    (content,) = typed(parts, _DICT)
    restored: Counter[Any] = Counter()
    dict.update(restored, content)
    return restored


def _slice_restore(parts: list[Any]) -> slice:
    start, stop, step = parts
    return slice(start, stop, step)


def _deque_restore(parts: list[Any]) -> deque[Any]:
    maxlen, items = typed(parts, (int, type(None)), (list,))
    return deque(items, maxlen)


# --- dates and times ---

_DATETIME = struct.Struct(">HBBBBBIB")
_TIME = struct.Struct(">BBBIB")
_DELTA = struct.Struct(">iii")


@cache
def _known_zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _zone_lower(zone: tzinfo | None) -> bytes:
    kind = type(zone)
    if zone is None:
        return b""
    if zone is UTC:
        return b"u"
    if kind is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return b"o" + _delta_lower(offset) + b"".join(b"n" + encode_text(text) for text in name)
    if kind is zoneinfo.ZoneInfo:
        key = zone.key  # type: ignore[attr-defined]
        # ZoneInfo would import a package made from the key: only keys of the installed database are used.
        if key is None or key not in _known_zones():
            raise Unfit(f"the zone {key!r} is not in this machine's time zone database")
        return b"z" + encode_text(key)
    if kind is pydantic_core.TzInfo:
        return b"p" + struct.pack(">i", zone.__reduce__()[1][0])
    raise Unfit(f"its tzinfo is a {kind.__module__}.{kind.__qualname__}; use zoneinfo.ZoneInfo or datetime.timezone")


def _zone_restore(data: bytes) -> tzinfo | None:
    kind, rest = data[:1], data[1:]
    if not kind:
        return None
    if kind == b"u" and not rest:
        return UTC
    if kind == b"o":
        offset, name = _delta_restore(rest[: _DELTA.size]), rest[_DELTA.size :]
        return timezone(offset, decode_text(name[1:])) if name else timezone(offset)
    if kind == b"z":
        key = decode_text(rest)
        if key not in _known_zones():
            raise UnknownStoredType(
                f"the time zone {key[:80]!r} is not in this machine's database; install the tzdata package",
                type_name="zoneinfo:ZoneInfo",
            )
        return zoneinfo.ZoneInfo(key)
    if kind == b"p":
        return pydantic_core.TzInfo(*struct.unpack(">i", rest))
    raise ValueError("not a time zone")


def _datetime_lower(value: datetime) -> bytes:
    clock = (value.hour, value.minute, value.second, value.microsecond, value.fold)
    return _DATETIME.pack(value.year, value.month, value.day, *clock) + _zone_lower(value.tzinfo)


def _datetime_restore(data: bytes) -> datetime:
    year, month, day, hour, minute, second, microsecond, fold = _DATETIME.unpack(data[: _DATETIME.size])
    zone = _zone_restore(data[_DATETIME.size :])
    return datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def _time_lower(value: time) -> bytes:
    clock = (value.hour, value.minute, value.second, value.microsecond, value.fold)
    return _TIME.pack(*clock) + _zone_lower(value.tzinfo)


def _time_restore(data: bytes) -> time:
    hour, minute, second, microsecond, fold = _TIME.unpack(data[: _TIME.size])
    return time(hour, minute, second, microsecond, _zone_restore(data[_TIME.size :]), fold=fold)


def _delta_lower(value: timedelta) -> bytes:
    return _DELTA.pack(value.days, value.seconds, value.microseconds)


def _delta_restore(data: bytes) -> timedelta:
    return timedelta(*_DELTA.unpack(data))


# --- small values with a text form ---


def _uuid_lower(value: uuid.UUID) -> bytes:
    return value.bytes + {0: b"s", -1: b"u"}.get(value.is_safe.value, b"")


def _uuid_restore(data: bytes) -> uuid.UUID:
    safe = {b"": uuid.SafeUUID.unknown, b"s": uuid.SafeUUID.safe, b"u": uuid.SafeUUID.unsafe}[data[16:]]
    return uuid.UUID(bytes=data[:16], is_safe=safe)


def _from_text(cls: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: cls(decode_text(data))


def _path_restore(cls: type[pathlib.PurePath]) -> Callable[[bytes], pathlib.PurePath]:
    def restore(data: bytes) -> pathlib.PurePath:
        try:
            return cls(decode_text(data))
        except NotImplementedError as exc:
            name = f"pathlib:{cls.__name__}"
            raise UnknownStoredType(
                f"a {name} cannot exist on this operating system; load the value where it was made, "
                "or store a pure path",
                type_name=name,
            ) from exc

    return restore


def _pattern_lower(value: re.Pattern[Any]) -> list[Any]:
    if value.flags & re.DEBUG:
        raise Unfit("it was compiled with re.DEBUG, which prints when it is loaded")
    return [value.pattern, value.flags]


def _pattern_restore(parts: list[Any]) -> re.Pattern[Any]:
    pattern, flags = typed(parts, (str, bytes), _INT)
    if flags & re.DEBUG:
        raise ValueError("re.DEBUG is not a stored flag")
    return re.compile(pattern, flags)


# --- the table ---


def form(code: int, name: str, layout: Layout, lower: Callable[[Any], Any], restore: Callable[[Any], Any]) -> Form:
    """The form of a built-in type: its code alone says which it is."""
    return Form(code, name, layout, lower, restore, b"" if layout is Layout.RAW else bytes([code]))


_R, _P = Layout.RAW, Layout.PARTS

FORMS: Final[dict[type, Form]] = {
    int: form(BIG_INT, "int", _R, _big_int_lower, _big_int_restore),
    str: form(TEXT, "str", _R, encode_text, decode_text),
    dict: form(MAPPING, "dict", Layout.PAIRS, _mapping_lower, _mapping_restore),
    tuple: form(6, "tuple", Layout.ITEMS, list, tuple),
    set: form(7, "set", Layout.MEMBERS, list, set),
    frozenset: form(8, "frozenset", Layout.MEMBERS, list, frozenset),
    deque: form(9, "collections:deque", _P, lambda v: [v.maxlen, list(v)], _deque_restore),
    OrderedDict: form(
        10,
        "collections:OrderedDict",
        _P,
        lambda v: [dict(_plain(v))],
        lambda parts: OrderedDict(*typed(parts, _DICT)),
    ),
    Counter: form(11, "collections:Counter", _P, lambda v: [dict(_plain(v))], _counter_restore),
    bytearray: form(12, "bytearray", _R, bytes, bytearray),
    complex: form(13, "complex", _R, lambda v: struct.pack(">dd", v.real, v.imag), _complex_restore),
    range: form(
        14, "range", _P, lambda v: [v.start, v.stop, v.step], lambda parts: range(*typed(parts, _INT, _INT, _INT))
    ),
    slice: form(15, "slice", _P, lambda v: [v.start, v.stop, v.step], _slice_restore),
    Decimal: form(16, "decimal:Decimal", _R, lambda v: str(v).encode(), lambda data: Decimal(data.decode("ascii"))),
    Fraction: form(
        17,
        "fractions:Fraction",
        _P,
        lambda v: [v.numerator, v.denominator],
        lambda parts: Fraction(*typed(parts, _INT, _INT)),
    ),
    datetime: form(18, "datetime:datetime", _R, _datetime_lower, _datetime_restore),
    date: form(
        19,
        "datetime:date",
        _R,
        lambda v: struct.pack(">I", v.toordinal()),
        lambda data: date.fromordinal(*struct.unpack(">I", data)),
    ),
    time: form(20, "datetime:time", _R, _time_lower, _time_restore),
    timedelta: form(21, "datetime:timedelta", _R, _delta_lower, _delta_restore),
    timezone: form(22, "datetime:timezone", _R, _zone_lower, _zone_restore),
    zoneinfo.ZoneInfo: form(23, "zoneinfo:ZoneInfo", _R, _zone_lower, _zone_restore),
    pydantic_core.TzInfo: form(24, "pydantic_core:TzInfo", _R, _zone_lower, _zone_restore),
    uuid.UUID: form(25, "uuid:UUID", _R, _uuid_lower, _uuid_restore),
    re.Pattern: form(26, "re:Pattern", _P, _pattern_lower, _pattern_restore),
    **{
        cls: form(code, f"pathlib:{cls.__name__}", _R, lambda v: encode_text(str(v)), _path_restore(cls))
        for code, cls in (
            (40, pathlib.PurePosixPath),
            (41, pathlib.PureWindowsPath),
            (42, pathlib.PosixPath),
            (43, pathlib.WindowsPath),
        )
    },
    **{
        cls: form(code, f"ipaddress:{cls.__name__}", _R, lambda v: encode_text(str(v)), _from_text(cls))
        for code, cls in (
            (44, ipaddress.IPv4Address),
            (45, ipaddress.IPv4Interface),
            (46, ipaddress.IPv4Network),
            (47, ipaddress.IPv6Address),
            (48, ipaddress.IPv6Interface),
            (49, ipaddress.IPv6Network),
        )
    },
    pydantic_core.Url: form(
        27,
        "pydantic_core:Url",
        _R,
        lambda v: encode_text(str(v)),
        _from_text(pydantic_core.Url),
    ),
}
