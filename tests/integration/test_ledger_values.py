"""Values through the ledger, end to end: arguments, state and results come back as they were, or are refused first."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import ToolMessage
from pydantic import BaseModel

from standfast.graph import Happened, OutcomeContext, Pending, Policy, TypeRegistry, operation
from standfast.tools.pending import FIRST_DELAY
from tests.conftest import Clock
from tests.crash.support.scripted_model import call, script

pytestmark = pytest.mark.guarantee("G11")
Open = Callable[..., Any]


class Colour(Enum):
    """A colour."""

    RED = "red"


@dataclass(frozen=True)
class Point:
    """A place."""

    x: int
    y: Decimal


class Order(BaseModel):
    """What somebody wants."""

    amount: Decimal
    due: date
    colour: Colour
    to: list[Point]


VALUES = [
    Decimal("12.50"),
    Decimal("NaN").copy_negate(),
    date(2026, 2, 28),
    datetime(2026, 2, 28, 12, 30, 0, 5, tzinfo=UTC),
    time(23, 59, 59, 999_999),
    timedelta(days=-1, microseconds=1),
    Colour.RED,
    Point(1, Decimal("0.10")),
    Order(amount=Decimal("1.10"), due=date(2026, 1, 1), colour=Colour.RED, to=[Point(0, Decimal(1))]),
    uuid.UUID(int=7),
    b"\x00\xff",
    (1, (2.5, "three"), ()),
    {1, "two", (3,)},
    frozenset({Decimal("0.1")}),
    2**200,
    -(2**64) - 1,
    "NUL \x00, a lone surrogate \ud800, and \N{PILE OF POO}",
    {"nested": [{"tuple": (1, {"set": {2}})}], 3: "three"},
    np.float32(0.1),
    np.int64(-(2**63)),
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.array([np.datetime64("2026-01-01")]),
]


def same(left: Any, right: Any) -> bool:
    """Equal, of the same type, at every level."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return repr(left) == repr(right) if isinstance(left, Decimal) else bool(left == right)


@pytest.fixture
def registry() -> TypeRegistry:
    registry = TypeRegistry()
    for one in (Colour, Point, Order):
        registry.register(one)
    return registry


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
async def test_a_result_comes_back_from_the_ledger_as_it_was(opened: Open, registry: TypeRegistry, value: Any) -> None:
    @operation(policy=Policy(effect="idempotent"))
    async def make() -> Any:
        """Make it."""
        return value

    async with opened(make, registry=registry) as runtime:
        end = await runtime.ainvoke(script([call("make")]), thread_id="t")
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "make"]

    assert "succeeded" == end.status
    assert same(value, known.result), known.result
    assert same(value, end.outcome["effects"][0]["result"])


async def test_what_a_poll_found_and_the_handle_that_it_was_given_come_back_as_they_were(
    opened: Open, registry: TypeRegistry, clock: Clock
) -> None:
    handles: list[Any] = []
    handle, found = (Point(1, Decimal("0.10")), {uuid.UUID(int=7)}), np.arange(3)

    async def poll(given: Any, context: OutcomeContext) -> Happened:
        handles.append(given)
        return Happened(found)

    @operation(policy=Policy(effect="idempotent"), poll=poll)
    async def make() -> Pending:
        """Have it made."""
        return Pending(handle)

    async with opened(make, registry=registry) as runtime:
        await runtime.ainvoke(script([call("make")]), thread_id="t")
        clock.move(FIRST_DELAY)
        await runtime.aresume("t")
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "make"]

    assert same(handle, handles[0])
    assert same(found, known.result)


async def test_arguments_reach_the_operation_as_the_types_that_it_declares(
    opened: Open, registry: TypeRegistry
) -> None:
    """A model speaks JSON; what is stored and hashed is JSON, and the function gets its own types."""
    got: list[Any] = []

    @operation(policy=Policy(effect="idempotent"))
    async def place(order: Order, key: uuid.UUID, many: tuple[int, ...], big: int, when: datetime) -> str:
        """Place an order."""
        got.extend((order, key, many, big, when))
        return "placed"

    order = {"amount": "1.10", "due": "2026-01-01", "colour": "red", "to": [{"x": 0, "y": "1"}]}
    arguments = {
        "order": order,
        "key": str(uuid.UUID(int=7)),
        "many": [1, 2],
        "big": 2**80,
        "when": "2026-02-28T12:30:00Z",
    }
    async with opened(place, registry=registry) as runtime:
        end = await runtime.ainvoke(script([call("place", **arguments)]), thread_id="t")

    assert "succeeded" == end.status
    assert same(
        [VALUES[8], uuid.UUID(int=7), (1, 2), 2**80, datetime(2026, 2, 28, 12, 30, tzinfo=UTC)],
        [*got[:4], got[4].astimezone(UTC)],
    )


@pytest.mark.parametrize(
    "value", [object(), {"deep": [lambda: 1]}, np.array([object()])], ids=["object", "lambda", "array of objects"]
)
async def test_a_result_that_would_not_come_back_is_done_once_and_named(opened: Open, value: Any) -> None:
    calls: list[int] = []

    @operation(policy=Policy(effect="idempotent"))
    async def make() -> Any:
        """Make it."""
        calls.append(1)
        return value

    async with opened(make) as runtime:
        end = await runtime.ainvoke(script([call("make")]), thread_id="t")
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "make"]

    [text] = [str(one.text) for one in end.messages if isinstance(one, ToolMessage)]
    assert [1] == calls
    assert ("succeeded", "unstorable_result") == (known.state, known.failure_class)
    assert text.startswith("This call failed (unstorable_result): ")


async def test_a_handle_that_would_not_come_back_is_named_and_the_work_is_not_begun_again(opened: Open) -> None:
    calls: list[int] = []

    @operation(policy=Policy(effect="idempotent"))
    async def make() -> Pending:
        """Have it made."""
        calls.append(1)
        return Pending(object())

    async with opened(make) as runtime:
        await runtime.ainvoke(script([call("make")]), thread_id="t")
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "make"]

    assert ([1], "unstorable_result") == (calls, known.failure_class)
