"""What the codec refuses: values that would not come back as they were, and bytes that no writer made."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import pathlib
import re
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import ormsgpack
import pydantic
import pytest
import xxhash
from langchain_core.messages import (
    HumanMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from standfast.checkpoint.codec import Codec
from standfast.checkpoint.encoding import MAX_DEPTH
from standfast.checkpoint.errors import (
    CorruptValue,
    StorageError,
    UnknownStoredType,
    UnstorableValue,
)
from standfast.checkpoint.stored_types import RecordedError, TypeRegistry

pytestmark = pytest.mark.guarantee("G11")


@dataclass
class Line:
    sku: str
    price: decimal.Decimal


@dataclass
class Order:
    qty: int
    items: list[Any] = field(default_factory=list)


@dataclass
class Box:
    content: Any


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    left: Any
    right: Any = None


class Claim(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    amount: int


class Name(str):
    __slots__ = ()


class Plain:
    def __init__(self) -> None:
        self.x = 1


@pytest.fixture
def registry() -> TypeRegistry:
    registry = TypeRegistry()
    for cls in (Line, Order, Box, Color, Pair, Claim):
        registry.register(cls)
    return registry


@pytest.fixture
def codec(registry: TypeRegistry) -> Codec:
    return Codec(registry)


def stored(codec: Codec, body: Any, shape: int = 0) -> bytes:
    """Bytes as an attacker who knows the format would write them, checksum and all."""
    content = body if isinstance(body, bytes) else ormsgpack.packb(body)
    return bytes([shape]) + xxhash.xxh3_64_digest(content, shape) + content


def named(name: str, parts: Any) -> bytes:
    return bytes([1]) + len(name.encode()).to_bytes(2, "big") + name.encode() + ormsgpack.packb(parts)


def reference(index: int) -> ormsgpack.Ext:
    return ormsgpack.Ext(0, index.to_bytes(4, "big"))


# --- refused at write, by path and type ---


class Watch(dt.datetime):
    pass


REFUSED: list[tuple[Any, str, str]] = [
    ({"order": Order(1, items=[0, 1, 2, lambda: 0])}, "state['order'].items[3]", "builtins:function"),
    ([object()], "state[0]", "builtins:object"),
    ({"a": (1, {"b": Plain()})}, "state['a'][1]['b']", f"{__name__}:Plain"),
    ({1: {("k", 2): [Plain]}}, "state[1][<tuple>][0]", "builtins:type"),
    ({Name("k"): 1}, "state.key(<Name>)", f"{__name__}:Name"),
    ({"a": Name("text")}, "state['a']", f"{__name__}:Name"),
    ({"a": [memoryview(b"x")]}, "state['a'][0]", "builtins:memoryview"),
    ([ormsgpack.Ext(5, b"x"), b""], "state[0]", "ormsgpack:Ext"),
    ([ormsgpack.Fragment(b"\x01"), b""], "state[0]", "ormsgpack:Fragment"),
    (defaultdict(lambda: 0), "state", "collections:defaultdict"),
    ({"w": Watch(2024, 1, 1)}, "state['w']", f"{__name__}:Watch"),
    (np.array([object()]), "state", "numpy:ndarray"),
    (np.zeros(1, dtype=[("a", "i4")]), "state", "numpy:ndarray"),
    (np.ma.array([1]), "state", "numpy.ma:MaskedArray"),
    ({"e": [ValueError("x")]}, "state['e'][0]", "builtins:ValueError"),
    (collections.ChainMap({}), "state", "collections:ChainMap"),
    ((x for x in ()), "state", "builtins:generator"),
    (open, "state", "builtins:builtin_function_or_method"),
    (..., "state", "builtins:ellipsis"),
    ({"s": {Pair(1), Pair(frozenset(), Plain)}}, None, "builtins:type"),
    (Claim(amount=1, extra=Plain()), "state.extra", f"{__name__}:Plain"),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("value", "path", "type_name"), REFUSED, ids=lambda item: type(item).__name__)
def test_what_cannot_be_stored_is_refused_with_path_and_type(
    codec: Codec, value: Any, path: str | None, type_name: str
) -> None:
    with pytest.raises(UnstorableValue) as caught:
        codec.encode(value, where="state")
    assert type_name.rpartition(":")[2] == caught.value.type_name.rpartition(":")[2]
    assert caught.value.path in str(caught.value)
    if path is not None:
        assert path == caught.value.path


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("secret", [pydantic.SecretStr("hunter2"), pydantic.SecretBytes(b"hunter2")])
def test_a_secret_is_refused_by_name_and_its_content_is_nowhere(codec: Codec, secret: Any) -> None:
    with pytest.raises(UnstorableValue, match="secrets never reach the database") as caught:
        codec.encode({"login": Box(secret)}, where="state")
    assert "state['login'].content" == caught.value.path
    assert "hunter2" not in str(caught.value)


def test_attributes_set_on_a_plain_container_are_not_dropped_in_silence(codec: Codec) -> None:
    ordered = OrderedDict(a=1)
    ordered.note = "mine"  # type: ignore[attr-defined]
    with pytest.raises(UnstorableValue, match="attributes of its own"):
        codec.encode(ordered)


def cycle_of_lists() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def cycle_of_objects() -> Any:
    box = Box(None)
    box.content = [(box,), {"again": box}]
    return box


def cycle_through_an_odd_dict() -> Any:
    value: dict[Any, Any] = {1: 2}
    value[2] = {"a": value}
    return value


@pytest.mark.parametrize("make", [cycle_of_lists, cycle_of_objects, cycle_through_an_odd_dict])
def test_a_cycle_is_refused(codec: Codec, make: Any) -> None:
    with pytest.raises(UnstorableValue, match="nested in itself"):
        codec.encode({"v": make()}, where="state")


def nested(depth: int, wrap: Any) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda v: (v,), lambda v: Box(v), lambda v: {1: v}], ids=["tuple", "object", "dict"])
def test_depth_is_bounded_the_same_at_write_and_at_load(codec: Codec, wrap: Any) -> None:
    deepest = codec.decode(codec.encode(nested(MAX_DEPTH, wrap)))
    for _ in range(MAX_DEPTH):
        deepest = deepest.content if isinstance(deepest, Box) else deepest[isinstance(deepest, dict)]
    assert 0 == deepest
    with pytest.raises(UnstorableValue, match="nested in itself, or in 200"):
        codec.encode(nested(MAX_DEPTH + 1, wrap))


def test_deep_lists_are_stored_or_refused_and_never_end_the_process(codec: Codec) -> None:
    assert nested(150, lambda v: [v]) == codec.decode(codec.encode(nested(150, lambda v: [v])))
    with pytest.raises(UnstorableValue):
        codec.encode(nested(100_000, lambda v: [v]))
    with pytest.raises(UnstorableValue):
        codec.encode(nested(100_000, lambda v: {"a": v}))


def test_what_is_written_after_a_failed_fast_attempt_has_no_remains_of_it(codec: Codec) -> None:
    value: list[Any] = [(1,), {"a": (2,)}, {3: (4,)}, "\ud800", bytearray(b"x"), (5, [bytearray(b"y")])]
    assert value == codec.decode(codec.encode(value))


def test_an_interrupt_from_the_keyboard_is_not_swallowed(codec: Codec, registry: TypeRegistry) -> None:
    presses = [KeyboardInterrupt()]

    class Slow(str):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            if presses:
                raise presses.pop()
            return {}

    registry.register(Slow)
    with pytest.raises(KeyboardInterrupt):
        codec.encode([Slow("x")])


def test_an_instance_that_cannot_be_taken_apart_is_refused(codec: Codec) -> None:
    with pytest.raises(UnstorableValue, match="cannot be taken apart"):
        codec.encode([Claim.__new__(Claim)], where="state")


def test_shared_parts_come_back_equal_and_separate(codec: Codec) -> None:
    line = Line("a", decimal.Decimal(1))
    first, second = codec.decode(codec.encode([line, line]))
    assert line == first == second
    assert first is not second


# --- exceptions on the error channel ---


def test_an_exception_that_is_the_value_is_recorded(codec: Codec) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    recorded = codec.decode(codec.encode(ValueError("no stock\0")))
    assert RecordedError("builtins:ValueError", "no stock\0") == recorded
    assert "builtins:ValueError: no stock\0" == str(recorded)
    assert recorded == codec.decode(codec.encode(recorded))
    assert "RuntimeError" in codec.decode(codec.encode(Broken())).message
    assert "builtins:KeyboardInterrupt" == codec.loads_typed(codec.dumps_typed(KeyboardInterrupt())).type_name


# --- loading is closed ---


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("kind", ["os:mkdir", "builtins:eval", f"{__name__}:Plain", f"{__name__}:Line"])
def test_a_name_in_a_row_is_never_imported_or_called(tmp_path: pathlib.Path, kind: str) -> None:
    target = tmp_path / "made-by-a-row"
    closed = Codec()
    entry = named(kind, [{"path": str(target)}, None, None])
    with pytest.raises(UnknownStoredType) as caught:
        closed.decode(stored(closed, [ormsgpack.packb({"x": [reference(1)]}), entry], 2), where="state")
    assert (kind, "state['x'][0]") == (caught.value.type_name, caught.value.path)
    assert not target.exists()
    small = ormsgpack.Ext(2, len(kind).to_bytes(2, "big") + kind.encode() + b"x")
    with pytest.raises(UnknownStoredType):
        closed.decode(stored(closed, [small], 1))


@pytest.mark.guarantee("G12")
def test_loading_imports_no_module() -> None:
    program = (
        "import sys, ormsgpack, xxhash\n"
        "from standfast.checkpoint.codec import Codec\n"
        "from standfast.checkpoint.errors import StorageError\n"
        "def row(content, shape): return bytes([shape]) + xxhash.xxh3_64_digest(content, shape) + content\n"
        "name = b'this:antigravity'\n"
        "entry = bytes([1]) + len(name).to_bytes(2, 'big') + name + ormsgpack.packb([{}, None, None])\n"
        "root = ormsgpack.packb(ormsgpack.Ext(0, bytes([0, 0, 0, 1])))\n"
        "zone = ormsgpack.packb(ormsgpack.Ext(23, b'zthis'))\n"
        "before = set(sys.modules)\n"
        "for data in (row(ormsgpack.packb([root, entry]), 2), row(zone, 1)):\n"
        "    try: Codec().decode(data)\n"
        "    except StorageError: continue\n"
        "    raise SystemExit('loaded')\n"
        "new = {m for m in set(sys.modules) - before if not m.startswith(('zoneinfo', 'importlib', 'tzdata'))}\n"
        "assert 'this' not in sys.modules and 'antigravity' not in sys.modules, new\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.guarantee("G12")
def test_a_row_of_the_stock_serializer_is_refused_by_its_tag(codec: Codec) -> None:
    tag, data = JsonPlusSerializer().dumps_typed({"a": Line("a", decimal.Decimal(1))})
    with pytest.raises(UnknownStoredType, match="only 'standfast/1' is read") as caught:
        codec.loads_typed((tag, data))
    assert "msgpack" == caught.value.type_name


def test_a_class_stored_by_a_main_module_is_explained(codec: Codec) -> None:
    data = stored(codec, [ormsgpack.packb(reference(1)), named("__main__:Order", [{}, None, None])], 2)
    with pytest.raises(UnknownStoredType, match="the main module of another program"):
        codec.decode(data)


# --- damaged and hostile bytes ---


def test_a_changed_byte_or_length_is_a_corrupt_value(codec: Codec) -> None:
    data = codec.encode({"a": (1, "text"), "m": HumanMessage("x")})
    for i in range(len(data)):
        with pytest.raises(CorruptValue) as caught:
            codec.decode(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :], where="state")
        assert "state" == caught.value.path
    for other in (b"", data[:5], data[:9], data[:-1], data + b"\x00", data + data):
        with pytest.raises(CorruptValue):
            codec.decode(other)


FIRST = ormsgpack.packb(reference(1))
ENDLESS = b"\x0e" + ormsgpack.packb([0, 2**63, 1])  # a range
MODEL = [{"amount": 1}, None, None, reference(2), {}, None]
HOSTILE: list[tuple[str, int, Any]] = [
    ("no such shape", 9, 1),
    ("plain with an extension", 0, [ormsgpack.Ext(3, b"\x01")]),
    ("huge list", 0, b"\xdd\xff\xff\xff\xff"),
    ("huge map", 0, b"\xdf\xff\xff\xff\xff"),
    ("huge bytes", 0, b"\xc6\xff\xff\xff\xff"),
    ("deep lists", 0, b"\x91" * 100_000 + b"\x01"),
    ("unknown code", 1, ormsgpack.Ext(99, b"")),
    ("code of parts in place", 1, ormsgpack.Ext(6, b"\x90")),
    ("reference without a table", 1, reference(1)),
    ("table is no list", 2, {"a": 1}),
    ("table of no bytes", 2, [1]),
    ("empty table", 2, []),
    ("reference to nothing", 2, [ormsgpack.packb(reference(5))]),
    ("reference to the root", 2, [ormsgpack.packb(reference(0))]),
    ("reference to itself", 2, [FIRST, b"\x06" + ormsgpack.packb([reference(1)])]),
    ("entry used twice", 2, [ormsgpack.packb([reference(1), reference(1)]), b"\x06\x90"]),
    ("entry not used", 2, [b"\x90", b"\x06\x90"]),
    ("empty entry", 2, [FIRST, b""]),
    ("entry of a small value", 2, [FIRST, b"\x03\x90"]),
    ("tuple of no list", 2, [FIRST, b"\x06\x01"]),
    ("set of lists", 2, [FIRST, b"\x07\x91\x90"]),
    ("map with half a pair", 2, [FIRST, b"\x05\x91\x01"]),
    ("map with a key twice", 2, [FIRST, b"\x05" + ormsgpack.packb([1, 2, True, 3])]),
    ("name cut short", 2, [FIRST, b"\x01\xff\xff"]),
    ("name of no text", 2, [FIRST, b"\x01\x00\x01\xff\x90"]),
    ("message of a list", 2, [FIRST, named("langchain:Document", [[], None, None, [], {}, None])]),
    ("message too short", 2, [FIRST, named("langchain:AIMessage", [{}])]),
    ("enum in the shape of an object", 2, [FIRST, named(f"{__name__}:Color", [])]),
    ("fraction of nothing", 2, [FIRST, b"\x11" + ormsgpack.packb([1, 0])]),
    ("pattern that prints", 2, [FIRST, b"\x1a" + ormsgpack.packb(["a", re.DEBUG.value])]),
    ("array of objects", 2, [FIRST, b"\x1c" + ormsgpack.packb([["|O8"], [1], "C", True, b"x" * 8])]),
    ("huge array", 2, [FIRST, b"\x1c" + ormsgpack.packb([["<i8"], [2**40], "C", True, b""])]),
    ("array with more bytes", 2, [FIRST, b"\x1c" + ormsgpack.packb([["<i8"], [0], "C", True, b"x"])]),
    ("items by the dozen", 2, [FIRST, b"\x09" + ormsgpack.packb([None, reference(2)]), ENDLESS]),
    ("pairs by the dozen", 2, [FIRST, b"\x0a" + ormsgpack.packb([reference(2)]), ENDLESS]),
    ("absent fields by the dozen", 2, [FIRST, named(f"{__name__}:Box", [{}, None, reference(2)]), ENDLESS]),
    ("set fields by the dozen", 2, [FIRST, named(f"{__name__}:Claim", MODEL), ENDLESS]),
    ("map in a dict", 2, [FIRST, b"\x05" + ormsgpack.packb({"a": 1}), b"\x05\x91\x01"]),
    ("impossible date", 1, ormsgpack.Ext(19, b"\xff\xff\xff\xff")),
    ("impossible time", 1, ormsgpack.Ext(20, b"\xff" * 8)),
    ("zone outside the database", 1, ormsgpack.Ext(23, b"z../../etc/passwd")),
]  # fmt: skip


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize(("shape", "body"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_bytes_that_no_writer_makes_are_a_storage_error(codec: Codec, shape: int, body: Any) -> None:
    with pytest.raises(StorageError) as caught:
        codec.decode(stored(codec, body, shape), where="state")
    assert caught.value.path.startswith("state")


def test_a_zone_that_this_machine_lacks_is_named(codec: Codec) -> None:
    with pytest.raises(UnknownStoredType, match="'Nowhere/City' is not in this machine's database"):
        codec.decode(stored(codec, [ormsgpack.Ext(23, b"zNowhere/City")], 1))


@pytest.mark.guarantee("G12")
def test_nested_hostile_bytes_do_not_exhaust_a_small_stack(codec: Codec) -> None:
    # Each entry holds the next one under as many lists as msgpack reads. Nested decoding would end the process.
    deep = b"\x91" * 1000
    count = 300
    table = [deep + ormsgpack.packb(reference(1))]
    table += [b"\x06" + deep + ormsgpack.packb(reference(i + 1)) for i in range(1, count)]
    table += [b"\x06\x90"]
    failures: list[BaseException] = []

    def decode() -> None:
        try:
            codec.decode(stored(codec, table, 2))
        except StorageError as exc:
            failures.append(exc)

    previous = threading.stack_size(2**20)
    try:
        thread = threading.Thread(target=decode)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(previous)
    assert ["CorruptValue"] == [type(failure).__name__ for failure in failures]


def test_an_error_inside_a_table_names_the_way_to_it(codec: Codec, registry: TypeRegistry) -> None:
    data = codec.encode({"order": Order(1, items=[0, (Line("a", decimal.Decimal(1)),)])}, where="state")
    smaller = TypeRegistry()
    smaller.register(Order)
    with pytest.raises(UnknownStoredType) as caught:
        Codec(smaller).decode(data, where="state")
    assert "state['order'].items[1][0]" == caught.value.path
    assert f"{__name__}:Line" == caught.value.type_name
