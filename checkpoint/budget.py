"""What a run may spend. It is stored with the run, sealed, and counts from the run's beginning, over all processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from standfast.checkpoint import errors


@dataclass(frozen=True)
class Price:
    """What a model costs, in any one currency, for a million tokens."""

    input: Decimal
    output: Decimal

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            object.__setattr__(self, name, _amount(getattr(self, name), f"a price's {name}"))

    def of(self, input_tokens: int, output_tokens: int) -> Decimal:
        """The price of one answer."""
        return (self.input * input_tokens + self.output * output_tokens) / 1_000_000


@dataclass(frozen=True)
class Budget:
    """The most that a run may spend; None is without bound.

    `model_calls`: attempts at calling the model, specialists' included. `tokens` and `money` (a decimal number or its
    text) are counted as far as the model reports its usage; money needs the `price`. `steps`: supersteps of the
    graph, those of nested graphs included. Raises `InvalidRequest`.
    """

    model_calls: int | None = None
    tokens: int | None = None
    money: Decimal | None = None
    steps: int | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        for name in ("model_calls", "tokens", "steps"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise errors.InvalidRequest(f"a budget's {name} is a whole number from 1 on, not {value!r}")
        if self.money is not None:
            object.__setattr__(self, "money", _amount(self.money, "a budget's money"))
            if self.price is None:
                raise errors.InvalidRequest("a budget of money needs the price of the model's tokens")

    def as_stored(self) -> dict[str, Any]:
        """The budget as it is sealed."""
        price = None if self.price is None else [self.price.input, self.price.output]
        return {
            "model_calls": self.model_calls,
            "tokens": self.tokens,
            "money": self.money,
            "steps": self.steps,
            "price": price,
        }

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> Budget:
        """The budget that was sealed."""
        price = stored["price"]
        return cls(**{**stored, "price": None if price is None else Price(*price)})


@dataclass(frozen=True)
class Spent:
    """What a run has spent so far, its specialists and children included; `money` is None without a price."""

    model_calls: int = 0
    tokens: int = 0
    money: Decimal | None = None
    steps: int = 0

    def of(self, budget: Budget | None) -> str:
        """In words, such as `3 of 20 model calls, 1,200 tokens, 7 of 50 steps`."""
        most = budget or Budget()
        parts = [
            _used(self.model_calls, most.model_calls, "model calls"),
            _used(self.tokens, most.tokens, "tokens"),
            None if self.money is None else _used(self.money, most.money, "of money"),
            _used(self.steps, most.steps, "steps"),
        ]
        return ", ".join(part for part in parts if part is not None)


def _used(spent: int | Decimal, most: int | Decimal | None, what: str) -> str:
    amount, bound = (format(one, "f") if isinstance(one, Decimal) else f"{one:,}" for one in (spent, most or 0))
    return f"{amount} {what}" if most is None else f"{amount} of {bound} {what.removeprefix('of ')}"


def _amount(value: Any, what: str) -> Decimal:
    try:
        amount = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation as error:
        raise errors.InvalidRequest(f"{what} is a decimal number, not {value!r}") from error
    if not amount.is_finite() or amount < 0:
        raise errors.InvalidRequest(f"{what} is not negative, and not {value!r}")
    return amount
