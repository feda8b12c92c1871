"""Conditions over a call's arguments: what a rule of a policy looks at.

Invariant: a condition is data, never code that a file brings along, and decides True, False or None. None is
undecided: an argument that is missing, or of a type that cannot be compared. Nothing is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Scalar = str | bool | int | float | None
_COMPARISONS: Final = (
    "over",
    "at_least",
    "under",
    "at_most",
    "equals",
    "one_of",
    "starts_with",
    "contains",
    "is_missing",
)
_MISSING: Final = object()


def _number(text: str) -> str:
    if (value := _decimal(text)) is None or not value.is_finite():
        raise ValueError(f"{text!r} is not a number")
    return text


Number = int | float | Annotated[str, AfterValidator(_number)]  # text such as "12.50" is exact


class Condition(BaseModel):
    """One comparison of one argument, or several conditions together.

    `argument` is a name, dots lead inside. Numbers compare exactly, also when they are decimal text; `equals` and
    `one_of` tell 1 from true and from "1". `all_of`, `any_of` and `none_of` hold further conditions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    argument: str | None = Field(None, min_length=1)
    over: Number | None = None
    at_least: Number | None = None
    under: Number | None = None
    at_most: Number | None = None
    equals: Scalar = None
    one_of: list[Scalar] | None = Field(None, min_length=1)
    starts_with: str | None = None
    contains: Scalar = None
    is_missing: bool | None = None
    all_of: list[Condition] | None = Field(None, min_length=1)
    any_of: list[Condition] | None = Field(None, min_length=1)
    none_of: list[Condition] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        given = self.model_fields_set
        together = given & {"all_of", "any_of", "none_of"}
        compared = given & set(_COMPARISONS)
        if self.argument is None and (compared or len(together) != 1):
            raise ValueError("a condition has an argument and a comparison, or one of all_of, any_of, none_of")
        if self.argument is not None and (len(compared) != 1 or together):
            raise ValueError(f"a condition on {self.argument!r} has exactly one of {', '.join(_COMPARISONS)}")
        return self

    def holds(self, arguments: Mapping[str, Any]) -> bool | None:
        """Whether it holds for these arguments; None if that cannot be said."""
        for together, decide in ((self.all_of, _all), (self.any_of, _any), (self.none_of, _none)):
            if together is not None:
                return decide([one.holds(arguments) for one in together])
        assert self.argument is not None
        found = _at(arguments, self.argument.split("."))
        if self.is_missing is not None:
            return (found is _MISSING or found is None) is self.is_missing
        return None if found is _MISSING else self._compared(found)

    def arguments(self) -> set[str]:
        """The top-level arguments that it looks at."""
        inner = [*(self.all_of or ()), *(self.any_of or ()), *(self.none_of or ())]
        own = set() if self.argument is None else {self.argument.split(".")[0]}
        return own.union(*(one.arguments() for one in inner))

    def _compared(self, found: Any) -> bool | None:
        if "equals" in self.model_fields_set:
            return _same(found, self.equals)
        if self.one_of is not None:
            return any(_same(found, one) for one in self.one_of)
        if self.starts_with is not None:
            return found.startswith(self.starts_with) if isinstance(found, str) else None
        if "contains" in self.model_fields_set:
            if isinstance(found, str):
                return self.contains in found if isinstance(self.contains, str) else None
            return any(_same(one, self.contains) for one in found) if isinstance(found, list | tuple) else None
        number = _decimal(found)
        if number is None or not number.is_finite():
            return None
        over, at_least, under, at_most = map(_decimal, (self.over, self.at_least, self.under, self.at_most))
        return (
            (over is None or number > over)
            and (at_least is None or number >= at_least)
            and (under is None or number < under)
            and (at_most is None or number <= at_most)
        )


def _at(value: Any, way: Sequence[str]) -> Any:
    for step in way:
        if not isinstance(value, Mapping) or step not in value:
            return _MISSING
        value = value[step]
    return value


def _same(found: Any, wanted: Scalar) -> bool:
    return isinstance(found, bool) is isinstance(wanted, bool) and bool(found == wanted)


def _decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return Decimal(str(value).strip())
    except InvalidOperation:
        return None


def _all(held: list[bool | None]) -> bool | None:
    return False if False in held else None if None in held else True


def _any(held: list[bool | None]) -> bool | None:
    return True if True in held else None if None in held else False


def _none(held: list[bool | None]) -> bool | None:
    held_by_any = _any(held)
    return None if held_by_any is None else not held_by_any
