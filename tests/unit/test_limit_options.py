"""Limits as they are typed."""

from __future__ import annotations

from decimal import Decimal

import pytest

from standfast.checkpoint import errors
from standfast.graph import Budget, Price
from standfast.graph.cli.limits import budget_of_text, seconds_of


@pytest.mark.parametrize(
    ("expected", "text"), [(90.0, "90"), (90.0, "90s"), (900.0, "15m"), (5400.0, "1.5h"), (259_200.0, "3d")]
)
def test_a_time_has_a_unit(expected: float, text: str) -> None:
    assert expected == seconds_of(text)


def test_a_budget_is_a_list() -> None:
    expected = Budget(model_calls=20, tokens=1000, money=Decimal("2.50"), price=Price(Decimal("0.4"), Decimal("1.6")))
    assert expected == budget_of_text("model_calls=20, tokens=1000,money=2.50,price=0.4/1.6")


@pytest.mark.parametrize("text", ["", "soon", "-5", "5 weeks", "1e9"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        seconds_of(text)


@pytest.mark.parametrize(
    "text", ["", "20", "calls=20", "steps=many", "steps=-1", "money=2", "price=3", "money=x,price=1/1"]
)
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        budget_of_text(text)
