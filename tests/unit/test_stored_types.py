"""The closed list of types: names, moved and changed classes, and what a state schema reaches."""

from __future__ import annotations

import abc
import enum
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
)

import numpy as np
import numpy.typing as npt
import pydantic
import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langgraph.channels import UntrackedValue
from langgraph.graph.message import add_messages
from langgraph.types import Interrupt, Send
from typing_extensions import TypeAliasType

from standfast.checkpoint.codec import Codec
from standfast.checkpoint.errors import (
    ConfigurationError,
    CorruptValue,
    StoredTypeChanged,
    UnknownStoredType,
    UnregisteredType,
    UnstorableValue,
)
from standfast.checkpoint.stored_types import TypeRegistry

pytestmark = pytest.mark.guarantee("G11")


def registry_with(cls: type, **options: Any) -> TypeRegistry:
    registry = TypeRegistry()
    registry.register(cls, **options)
    return registry


def carried(old: Any, before: TypeRegistry, after: TypeRegistry) -> Any:
    """A value written under one release's registry and read under another's."""
    return Codec(after).decode(Codec(before).encode({"claim": old}), where="state")["claim"]


# --- classes that changed between releases ---


@dataclass
class ClaimV1:
    amount: int
    currency: str = "EUR"


def test_a_moved_class_is_refused_until_its_old_name_is_an_alias() -> None:
    @dataclass
    class Claim:
        amount: int
        currency: str

    before = registry_with(ClaimV1, name="old.module:Claim")
    after = registry_with(Claim)
    with pytest.raises(UnknownStoredType) as caught:
        carried(ClaimV1(3), before, after)
    assert ("old.module:Claim", "state['claim']") == (caught.value.type_name, caught.value.path)
    after.alias("old.module:Claim", Claim)
    assert Claim(3, "EUR") == carried(ClaimV1(3), before, after)
    assert Claim(3, "EUR") == carried(Claim(3, "EUR"), after, after)


def test_a_new_field_gets_its_default() -> None:
    @dataclass
    class Claim:
        amount: int
        currency: str
        note: str = "none"
        tags: list[str] = field(default_factory=list)

    loaded = carried(ClaimV1(3), registry_with(ClaimV1, name="Claim"), registry_with(Claim, name="Claim"))
    assert Claim(3, "EUR", "none", []) == loaded


def test_a_new_field_without_a_default_is_a_named_error() -> None:
    @dataclass
    class Claim:
        amount: int
        currency: str
        owner: str

    with pytest.raises(StoredTypeChanged) as caught:
        carried(ClaimV1(3), registry_with(ClaimV1, name="Claim"), registry_with(Claim, name="Claim"))
    assert ("owner", "state['claim']") == (caught.value.field, caught.value.path)


def test_a_removed_field_is_a_named_error_until_an_upgrade_takes_it() -> None:
    @dataclass
    class Claim:
        cents: int

    before = registry_with(ClaimV1, name="Claim")
    with pytest.raises(StoredTypeChanged, match="has no field 'amount' any more"):
        carried(ClaimV1(3), before, registry_with(Claim, name="Claim"))
    after = registry_with(Claim, name="Claim", upgrade=lambda stored: {"cents": stored["amount"] * 100})
    assert Claim(300) == carried(ClaimV1(3), before, after)


def test_an_upgrade_is_called_only_for_rows_that_need_it() -> None:
    calls: list[dict[str, Any]] = []

    def upgrade(stored: dict[str, Any]) -> dict[str, Any]:
        calls.append(stored)
        return stored

    after = registry_with(ClaimV1, name="new", aliases=("old",), upgrade=upgrade)
    carried(ClaimV1(3), after, after)
    assert [] == calls
    carried(ClaimV1(3), registry_with(ClaimV1, name="old"), after)
    assert [{"amount": 3, "currency": "EUR"}] == calls


def test_an_upgrade_that_fails_is_a_corrupt_value_with_its_reason() -> None:
    @dataclass
    class Claim:
        cents: int

    after = registry_with(Claim, name="Claim", upgrade=lambda stored: {"cents": stored["no such field"]})
    with pytest.raises(CorruptValue, match="KeyError"):
        carried(ClaimV1(3), registry_with(ClaimV1, name="Claim"), after)


def test_a_model_and_a_named_tuple_change_by_the_same_rules() -> None:
    class ModelV1(pydantic.BaseModel):
        amount: int

    class ModelV2(pydantic.BaseModel):
        amount: int
        tags: list[str] = pydantic.Field(default_factory=list)
        _cache: dict[str, int] = pydantic.PrivateAttr(default_factory=dict)

    class PairV1(NamedTuple):
        left: int

    class PairV2(NamedTuple):
        right: int = 7
        left: int = 0

    model = carried(ModelV1(amount=1), registry_with(ModelV1, name="M"), registry_with(ModelV2, name="M"))
    assert (ModelV2(amount=1), {"amount"}, {}) == (model, model.model_fields_set, model._cache)
    pair = carried(PairV1(1), registry_with(PairV1, name="P"), registry_with(PairV2, name="P"))
    assert PairV2(right=7, left=1) == pair
    with pytest.raises(StoredTypeChanged):
        carried(ModelV2(amount=1), registry_with(ModelV2, name="M"), registry_with(ModelV1, name="M"))
    with pytest.raises(StoredTypeChanged):
        carried(PairV2(1), registry_with(PairV2, name="P"), registry_with(PairV1, name="P"))


def test_a_renamed_enum_member_is_a_named_error_until_an_upgrade_takes_it() -> None:
    class ColorV1(enum.Enum):
        RED = 1

    class ColorV2(enum.Enum):
        CRIMSON = 1

    before = registry_with(ColorV1, name="C")
    with pytest.raises(StoredTypeChanged, match="no member 'RED' any more"):
        carried(ColorV1.RED, before, registry_with(ColorV2, name="C"))
    after = registry_with(ColorV2, name="C", upgrade=lambda _: {"name": "CRIMSON"})
    assert ColorV2.CRIMSON is carried(ColorV1.RED, before, after)


def test_a_removed_flag_is_a_named_error_until_an_upgrade_takes_it() -> None:
    class RightV1(enum.Flag):
        READ = 1
        WRITE = 2

    class RightV2(enum.Flag):
        READ = 1

    class Loose(enum.IntFlag, boundary=enum.EJECT):
        READ = 1

    before = registry_with(RightV1, name="R")
    both = RightV1.READ | RightV1.WRITE
    for cls in (RightV2, Loose):
        with pytest.raises(StoredTypeChanged):
            carried(both, before, registry_with(cls, name="R"))
    after = registry_with(RightV2, name="R", upgrade=lambda stored: {"value": stored["value"] & 1})
    assert RightV2.READ is carried(both, before, after)


def test_a_class_that_became_an_enum_is_refused() -> None:
    class Claim(enum.Enum):
        A = 1

    with pytest.raises(CorruptValue, match="in a shape that its class does not have"):
        carried(ClaimV1(3), registry_with(ClaimV1, name="C"), registry_with(Claim, name="C"))


# --- registration ---


class Opaque:
    def __init__(self) -> None:
        self.x = 1


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self) -> None: ...


@dataclass
class Concrete(Abstract):
    x: int

    def run(self) -> None: ...


class Slotted:
    __slots__ = ("x",)


class WeirdList(list[int]):
    __slots__ = ("x",)


@dataclass
class Hidden:
    """A field whose value lives elsewhere than on the instance."""

    x: int = 0

    def __init_subclass__(cls) -> None: ...


class Stored:
    def __get__(self, instance: Any, owner: Any) -> int:
        return 0

    def __set__(self, instance: Any, value: int) -> None: ...


@dataclass
class Descriptor:
    x: Stored = Stored()


class SlottedModel(pydantic.BaseModel):
    __slots__ = ("extra_slot",)
    x: int


class Fault(Exception):
    pass


@pytest.mark.parametrize(
    "cls",
    [Opaque, Abstract, WeirdList, Descriptor, SlottedModel, Fault, defaultdict[str, int], 3],
    ids=str,
)
def test_a_class_that_cannot_be_stored_exactly_cannot_be_registered(cls: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be registered"):
        TypeRegistry().register(cls)


class Token(pydantic.Secret[int]):
    pass


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("cls", [pydantic.SecretStr, pydantic.SecretBytes, pydantic.Secret, Token])
def test_a_secret_cannot_be_registered(cls: Any) -> None:
    with pytest.raises(ConfigurationError, match="holds a secret"):
        TypeRegistry().register(cls)


def test_a_name_belongs_to_one_class() -> None:
    registry = registry_with(ClaimV1, name="claim")
    with pytest.raises(ConfigurationError, match="belongs to"):
        registry.register(Concrete, name="claim")
    with pytest.raises(ConfigurationError, match="register the class first"):
        registry.alias("other", Concrete)
    registry.register(Concrete)
    registry.alias(f"{__name__}:Concrete", Concrete)
    assert Concrete(1) == Codec(registry).decode(Codec(registry).encode(Concrete(1)))
    with pytest.raises(ConfigurationError, match="belongs to"):
        registry.alias("claim", Concrete)
    with pytest.raises(ConfigurationError, match="cannot be a stored name"):
        registry.register(Slotted, name="x" * 70_000)


def test_a_class_defined_again_takes_the_place_of_the_old_one() -> None:
    def define() -> type:
        @dataclass
        class Cell:
            x: int

        return Cell

    old, new = define(), define()
    registry = registry_with(old)
    data = Codec(registry).encode(old(1))
    registry.register(new)
    assert new is type(Codec(registry).decode(data))
    with pytest.raises(UnstorableValue):
        Codec(registry).encode(old(1))


def test_registering_a_built_in_type_changes_nothing() -> None:
    registry = registry_with(Decimal)
    assert Decimal("1.0") == Codec(registry).decode(Codec().encode(Decimal("1.0")))
    with pytest.raises(ConfigurationError, match="cannot be changed"):
        registry.register(AIMessage, name="mine")


def test_one_registry_does_not_reach_into_another() -> None:
    registry_with(ClaimV1)
    assert not TypeRegistry().knows(ClaimV1)


def test_a_registered_class_can_be_the_factory_of_a_defaultdict() -> None:
    @dataclass
    class Tally:
        n: int = 0

    registry = registry_with(Tally)
    loaded = Codec(registry).decode(Codec(registry).encode(defaultdict(Tally)))
    assert Tally() == loaded["new"]
    with pytest.raises(UnknownStoredType, match="factory"):
        Codec().decode(Codec(registry).encode(defaultdict(Tally)))


def test_slots_alone_declare_a_class() -> None:
    value = Slotted()
    value.x = (1,)  # type: ignore[attr-defined]
    registry = registry_with(Slotted)
    assert (1,) == Codec(registry).decode(Codec(registry).encode(value)).x


# --- what a schema reaches ---


@dataclass
class Item:
    price: Decimal
    colour: Color | None = None


class Color(enum.Enum):
    RED = 1


class Order(pydantic.BaseModel):
    items: dict[str, list[Item]]
    parent: Order | None = None


T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    rows: list[T]


class Runs(Protocol):
    def run(self) -> None: ...


Sku = NewType("Sku", str)
Alias = TypeAliasType("Alias", list[Item])


class Nested(TypedDict):
    page: Page[Order]


class State(TypedDict, total=False):
    messages: Required[Annotated[list[AnyMessage], add_messages]]
    order: NotRequired[Order]
    nested: Nested
    free: Any
    thing: object
    client: Annotated[Opaque, UntrackedValue]
    other: Annotated[Opaque, UntrackedValue(Opaque)]
    mode: Literal["a", 1, None]
    sku: Sku
    alias: Alias
    rows: Sequence[Mapping[str, tuple[int, ...]]]
    array: npt.NDArray[np.float64]
    base: BaseMessage
    sends: list[Send]
    question: Interrupt
    runs: Runs
    shape: Abstract


def test_register_schema_makes_every_reachable_class_storable() -> None:
    registry = registry_with(Concrete)
    registry.register_schema(State)
    registry.require(State, where="state")
    assert [True] * 4 == [registry.knows(cls) for cls in (Item, Color, Order, Page)]
    assert not registry.knows(Opaque)


@pytest.mark.parametrize("left_out", [Item, Color, Order, Page])
def test_a_forgotten_class_is_named_with_its_field(left_out: type) -> None:
    registry = registry_with(Concrete)
    for cls in {Item, Color, Order, Page} - {left_out}:
        registry.register(cls)
    with pytest.raises(UnregisteredType) as caught:
        registry.require(State, where="state")
    assert f"{__name__}:{left_out.__qualname__}" == caught.value.type_name
    assert caught.value.field.startswith("state.")
    assert caught.value.field in str(caught.value)


class OfUnknown(TypedDict):
    a: NoSuchClass  # type: ignore[name-defined]  # noqa: F821


@dataclass
class OfCallable:
    call: Callable[[int], int]
    shared: ClassVar[Opaque]


REJECTED: list[tuple[Any, str]] = [
    (dict[str, list[Opaque]], f"{__name__}:Opaque"),
    (int | Opaque, f"{__name__}:Opaque"),
    (Literal[Color.RED], f"{__name__}:Color"),
    (Abstract, f"{__name__}:Abstract"),
    (dict[str, Exception], "builtins:Exception"),
    (Callable[[int], int], "Callable"),
    (type[Item], "type"),
    (list["Order"], "Order"),
    (OfUnknown, "OfUnknown"),
    (pydantic.SecretStr, "pydantic.types:SecretStr"),
    (Annotated[list[Page[Opaque]], "note"], f"{__name__}:Page"),
]


@pytest.mark.parametrize(("schema", "type_name"), REJECTED, ids=lambda item: str(item)[:40])
def test_a_schema_that_reaches_what_cannot_be_stored_is_refused(schema: Any, type_name: str) -> None:
    with pytest.raises(UnregisteredType) as caught:
        TypeRegistry().require(schema, where="state")
    assert type_name == caught.value.type_name.replace("collections.abc.", "")


def test_the_field_of_a_callable_is_named() -> None:
    with pytest.raises(UnregisteredType, match=r"^state\.call is declared as") as caught:
        registry_with(OfCallable).require(OfCallable, where="state")
    assert "state.call" == caught.value.field


def test_a_generic_argument_is_reached() -> None:
    registry = registry_with(Page)
    with pytest.raises(UnregisteredType, match="Opaque"):
        registry.require(Page[Opaque], where="state")
    registry.require(Page[int], where="state")


def test_a_secret_in_a_schema_is_refused_with_advice() -> None:
    @dataclass
    class Login:
        password: pydantic.SecretStr

    with pytest.raises(UnregisteredType, match="is a secret and is never stored") as caught:
        registry_with(Login).require(dict[str, Login], where="state")
    assert "state.password" == caught.value.field
