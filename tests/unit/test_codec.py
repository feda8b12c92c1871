"""The codec: what comes back is what went in, or it is refused by name; what a row says is never run."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import math
import os
import pathlib
import re
import subprocess
import sys
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import numpy as np
import pydantic
import pydantic_core
import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import maybe_add_typed_methods
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy, interrupt

from standfast.checkpoint.codec import Codec
from standfast.checkpoint.stored_types import TypeRegistry

pytestmark = pytest.mark.guarantee("G11")

UTC = dt.UTC
ROME = zoneinfo.ZoneInfo("Europe/Rome")


@dataclass
class Line:
    sku: str
    price: decimal.Decimal


@dataclass
class Order:
    qty: int
    price: int
    total: int = field(init=False)
    items: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.total = self.qty * self.price


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    y: tuple[int, ...] = ()


@dataclass(slots=True)
class Base:
    a: int


@dataclass
class Derived(Base):
    b: int = 0


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Cached:
    n: int

    @cached_property
    def double(self) -> int:
        return self.n * 2


class Color(enum.Enum):
    RED = (255, (0, 0))
    CRIMSON = RED
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Kind(enum.StrEnum):
    A = "a"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag, boundary=enum.KEEP):
    ONE = 1


class Pair(NamedTuple):
    left: Any
    right: Any = None


class Claim(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    amount: int
    note: str = "none"
    _seen: int = pydantic.PrivateAttr(default=0)

    @pydantic.field_validator("amount")
    @classmethod
    def positive(cls, amount: int) -> int:
        if amount <= 0:
            raise ValueError("not positive")
        return amount


class Root(pydantic.RootModel[list[int]]):
    pass


class Celsius(float):
    pass


class Name(str):
    __slots__ = ()


class Loud(str):
    def __str__(self) -> str:
        return "LOUD"


class Tree(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("an overridden method ran")


class Basket(list[Any]):
    owner: str


class Plain:
    def __init__(self) -> None:
        self.x = 1


REGISTERED = (
    Line,
    Order,
    Point,
    Derived,
    Box,
    Cached,
    Color,
    Level,
    Kind,
    Right,
    Bits,
    Pair,
    Claim,
    Root,
    Celsius,
    Loud,
    Tree,
    Basket,
)


@pytest.fixture
def registry() -> TypeRegistry:
    registry = TypeRegistry()
    for cls in REGISTERED:
        registry.register(cls)
    return registry


@pytest.fixture
def codec(registry: TypeRegistry) -> Codec:
    return Codec(registry)


def same(left: Any, right: Any) -> bool:
    """Equal, and of one type at every level of the built-in containers; NaN is itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, float):
        return math.copysign(1, left) == math.copysign(1, right) and left == right
    if isinstance(left, list | tuple | deque):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=False)
        return len(left) == len(right) and all(same(a, b) for a, b in pairs)
    if isinstance(left, set | frozenset):
        return left == right and Counter(map(type, left)) == Counter(map(type, right))
    return bool(left == right)


BUILT_IN: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    10**24,
    -(10**5000),
    [10**24, 1],
    {10**24: 1},
    0.0,
    -0.0,
    5e-324,
    float("inf"),
    float("-inf"),
    float("nan"),
    complex(1, -0.0),
    "",
    "Total\0 42",
    "\ud800",
    "emoji \U0001f600 and half of one \ud83d",
    {"\ud800": "\udfff", "a\0": 1},
    b"",
    b"\x00\xff",
    bytearray(b"abc"),
    [bytearray(b"x"), b"x", {"k": bytearray(b"y")}],
    (),
    (1, (2, 3), [4, (5,)]),
    [((1,),)],
    {("acct", 1), ("acct", 2)},
    frozenset({("a", frozenset({1}))}),
    {("a", 1): "x", 1: "int", None: "none", 1.5: "float", b"k": "bytes", frozenset(): ()},
    {True: "true", 0: "zero"},
    {"z": 1, "a": 2, "m": {"y": 1, "b": 2}},
    {2: "b", 1: "a"},
    OrderedDict([(("b",), 1), ("a", 2)]),
    Counter("abracadabra"),
    Counter({("t",): -1}),
    defaultdict(list, {"a": [1]}),
    defaultdict(None, {1: 2}),
    defaultdict(Counter),
    deque([1, (2,)], maxlen=3),
    deque(),
    range(3, 10**20, 2),
    slice(1, None, (2,)),
    decimal.Decimal("1.10"),
    decimal.Decimal("-0E-7"),
    decimal.Decimal("Infinity"),
    decimal.Decimal("1e999999"),
    fractions.Fraction(1, 3),
    fractions.Fraction(10**30, 7),
    dt.date(2024, 2, 29),
    dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ROME),
    dt.datetime(1, 1, 1),
    dt.datetime.max,
    dt.datetime(2024, 1, 1, tzinfo=UTC),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5, microseconds=1), "Zone\ud800")),
    dt.datetime(2024, 1, 1, tzinfo=pydantic_core.TzInfo(7200)),
    dt.time(23, 59, 59, 999999, tzinfo=UTC, fold=1),
    dt.timedelta(days=-3, microseconds=5),
    dt.timedelta.max,
    UTC,
    dt.timezone(dt.timedelta(0), "UTC"),
    ROME,
    uuid.UUID(int=5),
    pathlib.Path("/a/b c"),
    pathlib.Path(os.fsdecode(b"/latin-\xff")),
    pathlib.PurePosixPath("x"),
    pathlib.PureWindowsPath("C:\\x"),
    ipaddress.ip_address("10.0.0.1"),
    ipaddress.ip_address("fe80::1%eth0"),
    ipaddress.ip_network("10.0.0.0/8"),
    ipaddress.ip_network("fe80::/10"),
    ipaddress.ip_interface("10.0.0.1/8"),
    ipaddress.ip_interface("fe80::1/10"),
    re.compile(r"a(?P<n>\d+)\n", re.IGNORECASE | re.DOTALL),
    re.compile(rb"\x00"),
    pydantic.HttpUrl("https://example.com/a?b=c"),
]


@pytest.mark.parametrize("value", BUILT_IN, ids=lambda value: type(value).__name__)
def test_a_built_in_value_comes_back_as_it_was_at_any_depth(codec: Codec, value: Any) -> None:
    assert same(value, codec.decode(codec.encode(value)))
    deep = {"a": [value, (value, {"b": value})], ("k",): {1: value}}
    assert same(deep, codec.decode(codec.encode(deep)))


def test_settings_of_containers_come_back(codec: Codec) -> None:
    bounded = codec.decode(codec.encode(deque([1, 2], maxlen=2)))
    bounded.append(3)
    assert [2, 3] == list(bounded)
    grown = codec.decode(codec.encode(defaultdict(list)))
    grown["new"].append(1)
    assert {"new": [1]} == grown
    assert [("a", 5)] == codec.decode(codec.encode(Counter("abracadabra"))).most_common(1)
    moved = OrderedDict(a=1, b=2)
    moved.move_to_end("a")
    assert ["b", "a"] == list(codec.decode(codec.encode(moved)))


def test_a_uuid_keeps_what_is_known_of_its_safety(codec: Codec) -> None:
    value = uuid.UUID(int=7, is_safe=uuid.SafeUUID.safe)
    assert uuid.SafeUUID.safe is codec.decode(codec.encode(value)).is_safe


def test_fold_and_zone_come_back(codec: Codec) -> None:
    loaded = codec.decode(codec.encode(dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ROME)))
    assert (1, ROME) == (loaded.fold, loaded.tzinfo)
    assert dt.timedelta(hours=1) == loaded.utcoffset()


INSTANCES: list[Any] = [
    Line("a", decimal.Decimal("1.50")),
    Point(x=1, y=(2, 3)),
    Derived(1, 2),
    Box(content=(1,)),
    Color.RED,
    Level.LOW,
    Kind.A,
    Right.READ,
    Right.READ | Right.WRITE,
    Right(0),
    Bits(9),
    Pair((1,), {"a"}),
    Root([1, 2]),
    Celsius(36.6),
    Tree(a=(1,)),
    {Point(x=1): Color.BLUE, Level.LOW: Kind.A},
    [Pair(Pair(1)), (Point(x=2),)],
]


@pytest.mark.parametrize("value", INSTANCES, ids=lambda value: type(value).__name__)
def test_an_instance_of_a_registered_class_comes_back_as_it_was(codec: Codec, value: Any) -> None:
    assert same(value, codec.decode(codec.encode(value)))
    assert same([(value,)], codec.decode(codec.encode([(value,)])))


def test_an_enum_member_comes_back_as_the_same_object(codec: Codec) -> None:
    assert Color.RED is codec.decode(codec.encode(Color.CRIMSON))
    assert Level.LOW is codec.decode(codec.encode([Level.LOW]))[0]


def test_a_computed_field_comes_back_and_post_init_does_not_run(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(2, 3, items=[1])
    order.total = 7
    data = codec.encode(order)
    monkeypatch.setattr(Order, "__post_init__", lambda self: pytest.fail("__post_init__ ran"))
    monkeypatch.setattr(Order, "__init__", lambda self: pytest.fail("__init__ ran"))
    loaded = codec.decode(data)
    assert (Order, 2, 3, 7, [1]) == (type(loaded), loaded.qty, loaded.price, loaded.total, loaded.items)


def test_attributes_beside_the_fields_come_back(codec: Codec) -> None:
    cached = Cached(2)
    cached.__dict__["extra"] = (1,)
    assert 4 == cached.double
    assert {"n": 2, "double": 4, "extra": (1,)} == vars(codec.decode(codec.encode(cached)))


def test_an_unset_field_stays_unset(codec: Codec) -> None:
    order = Order(2, 3)
    del order.total
    loaded = codec.decode(codec.encode(order))
    assert not hasattr(loaded, "total")
    assert [] == loaded.items


def test_a_parametrised_generic_is_stored_as_its_class(codec: Codec) -> None:
    assert Box(1) == codec.decode(codec.encode(Box[int](1)))


def test_a_model_comes_back_with_all_its_state_and_no_validator_runs(codec: Codec) -> None:
    claim = Claim(amount=1, colour=("red",))  # type: ignore[call-arg]
    claim._seen = 3
    claim.amount = -5
    data = codec.encode(claim)
    loaded = codec.decode(data)
    assert claim == loaded
    assert ({"amount", "colour"}, {"colour": ("red",)}, 3) == (
        loaded.model_fields_set,
        loaded.model_extra,
        loaded._seen,
    )
    assert {"amount": -5} == loaded.model_dump(exclude_unset=True, exclude={"colour"})


def test_a_subclass_of_a_built_in_keeps_its_content_and_attributes(codec: Codec) -> None:
    basket = Basket([1, (2,)])
    basket.owner = "ada"
    loaded = codec.decode(codec.encode(basket))
    assert (Basket, [1, (2,)], "ada") == (type(loaded), list(loaded), loaded.owner)
    assert "quiet" == str.__str__(codec.decode(codec.encode(Loud("quiet"))))


MESSAGES: list[Any] = [
    HumanMessage("hi\0", id="1"),
    SystemMessage([{"type": "text", "text": "x"}, "y"]),
    AIMessage(
        "",
        id="2",
        tool_calls=[{"name": "pay", "args": {"amount": 10**24, "to": ("a",)}, "id": "c1"}],
        invalid_tool_calls=[{"name": "pay", "args": "{", "id": "c2", "error": "bad"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        response_metadata={"at": dt.datetime(2024, 1, 1, tzinfo=UTC)},
        additional_kwargs={"k": {1: 2}},
        example=True,
    ),
    AIMessageChunk("x", tool_call_chunks=[{"name": "a", "args": "{}", "id": "1", "index": 0}]),
    ToolMessage("done", tool_call_id="c1", artifact={"rows": [(1, decimal.Decimal("2.0"))]}, status="error"),
    ChatMessage("x", role="critic"),
    FunctionMessage("x", name="f"),
    RemoveMessage(id="1"),
    Document("text", metadata={"page": 1}, id="d"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(codec: Codec, message: Any) -> None:
    loaded = codec.decode(codec.encode([message]))[0]
    assert type(message) is type(loaded)
    assert same(message.__dict__, loaded.__dict__)
    assert message == loaded
    assert message.model_fields_set == loaded.model_fields_set
    assert message.model_extra == loaded.model_extra


def test_the_text_of_a_message_can_be_state(codec: Codec) -> None:
    text = HumanMessage("hello").text
    assert same({"answer": text}, codec.decode(codec.encode({"answer": text})))


LANGGRAPH: list[Any] = [
    Send("operation", {"call": ("a", 1)}, timeout=TimeoutPolicy(run_timeout=3)),
    Command(update={"a": (1,)}, goto=[Send("x", 1), "y"], resume={"id": {1, 2}}),
    Overwrite([(1,)]),
    _DeltaSnapshot([HumanMessage("x", id="1")]),
    (Interrupt({"ask": (1,)}, id="i1", response_schema={"type": "object"}),),
    Interrupt("v"),
]


@pytest.mark.parametrize("value", LANGGRAPH, ids=lambda value: type(value).__name__)
def test_what_langgraph_writes_comes_back_as_it_was(codec: Codec, value: Any) -> None:
    assert same(value, codec.decode(codec.encode(value)))


def test_a_store_item_comes_back(codec: Codec) -> None:
    now = dt.datetime(2024, 1, 1, tzinfo=UTC)
    item = Item(value={"a": 1}, key="k", namespace=("n", "m"), created_at=now, updated_at=now)
    assert item == codec.decode(codec.encode(item))


ARRAYS: list[Any] = [
    np.arange(6, dtype="i4").reshape(2, 3),
    np.arange(6.0).reshape(2, 3).T,
    np.arange(10)[::3],
    np.zeros((0, 3)),
    np.array(5, dtype=">u2"),
    np.array(["a", "bcd"]),
    np.array([b"x\0y"]),
    np.array(["2024-01-01", "NaT"], dtype="M8[D]"),
    np.array([3], dtype="m8[25s]"),
    np.array([1 + 2j, complex("nan")]),
    np.array([[True], [False]]),
    np.array([1], dtype=np.longlong),
    np.array([0.1], dtype=np.float16),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}-{array.shape}")
def test_an_array_comes_back_with_its_dtype_shape_and_order(codec: Codec, array: Any) -> None:
    loaded = codec.decode(codec.encode({"a": array}))["a"]
    np.testing.assert_array_equal(array, loaded, strict=True)
    assert (array.dtype, array.dtype.char) == (loaded.dtype, loaded.dtype.char)
    assert array.flags.f_contiguous == loaded.flags.f_contiguous or not array.flags.forc
    assert loaded.flags.writeable


def test_a_read_only_array_stays_read_only(codec: Codec) -> None:
    array = np.arange(3)
    array.flags.writeable = False
    assert not codec.decode(codec.encode(array)).flags.writeable


SCALARS: list[Any] = [
    np.float64(0.9),
    np.float32(0.1),
    np.int64(-5),
    np.uint8(255),
    np.longlong(3),
    np.bool_(True),
    np.complex64(1j),
    np.str_("a\0"),
    np.bytes_(b"a\0"),
    np.datetime64("2024-01-01T00:00", "ms"),
    np.timedelta64(3, "D"),
    np.longdouble("0.1"),
]


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: type(scalar).__name__)
def test_a_numpy_scalar_comes_back_with_its_type(codec: Codec, scalar: Any) -> None:
    (loaded,) = codec.decode(codec.encode([scalar]))
    assert (type(scalar), scalar.dtype, scalar.item()) == (type(loaded), loaded.dtype, loaded.item())


def test_numpy_is_not_loaded_by_a_program_that_does_not_use_it() -> None:
    program = (
        "import sys\n"
        "from standfast.checkpoint.codec import Codec\n"
        "before = 'numpy' in sys.modules\n"
        "codec = Codec()\n"
        "assert (1, {2}) == codec.decode(codec.encode((1, {2})))\n"
        "assert before == ('numpy' in sys.modules), 'numpy was loaded'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# --- the format does not move ---


def test_rows_of_this_format_are_read_for_ever(codec: Codec) -> None:
    """A line in the file never changes; a value appended to a list above gets a new line."""
    golden = pathlib.Path(__file__).parent / "data" / "codec-standfast-1.txt"
    rows = dict(line.split("\t") for line in golden.read_text().splitlines())
    plain = {"built-in": BUILT_IN, "message": MESSAGES, "langgraph": LANGGRAPH}
    for kind, values in {**plain, "array": ARRAYS, "scalar": SCALARS}.items():
        for i, value in enumerate(values):
            loaded = codec.decode(bytes.fromhex(rows.pop(f"{kind} {i}")))
            if kind in plain:
                assert same(value, loaded), (kind, i)
            else:
                np.testing.assert_array_equal(value, loaded, strict=True)
    assert {} == rows


# --- under LangGraph ---


def test_langgraph_takes_the_codec_as_its_serializer(codec: Codec) -> None:
    assert codec is maybe_add_typed_methods(codec)
    assert "standfast/1" == codec.dumps_typed({"a": 1})[0]


class State(TypedDict):
    order: Any
    seen: set[tuple[str, int]]


def test_a_graph_keeps_its_values_through_an_interrupt(codec: Codec) -> None:
    def ask(state: State) -> Any:
        answer = interrupt({"total": state["order"].total, "pair": (1, 2)})
        return {"seen": state["seen"] | {("answer", answer)}}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=InMemorySaver(serde=codec))
    config: Any = {"configurable": {"thread_id": "1"}}
    first = graph.invoke({"order": Order(2, 3), "seen": {("a", 1)}}, config)
    assert {"total": 6, "pair": (1, 2)} == first["__interrupt__"][0].value
    end = graph.invoke(Command(resume=10**24), config)
    assert (Order(2, 3), {("a", 1), ("answer", 10**24)}) == (end["order"], end["seen"])
