"""`--deadline` and `--budget` as text. Raises `InvalidRequest` with one sentence for what cannot be read."""

from __future__ import annotations

import re
from typing import Any, Final

from standfast.checkpoint import errors
from standfast.checkpoint.budget import Budget, Price

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_WHOLE: Final = ("model_calls", "tokens", "steps")


def seconds_of(text: str | None) -> float | None:
    """A time such as `90`, `15m`, `2h` or `3d`, in seconds."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd]?)", text.strip())
    if found is None:
        raise errors.InvalidRequest(f"a time is a number with s, m, h or d, such as 15m, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def budget_of_text(text: str | None) -> Budget | None:
    """A budget such as `model_calls=20,tokens=100000`."""
    if text is None:
        return None
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (one.strip() for one in part.partition("="))
        if name in _WHOLE and value.isdecimal():
            given[name] = int(value)
        elif name == "money" and value:
            given[name] = value
        elif name == "price" and value.count("/") == 1:
            given[name] = Price(*value.split("/"))  # type: ignore[arg-type]
        else:
            raise errors.InvalidRequest(
                f"a budget is {', '.join(f'{one}=NUMBER' for one in _WHOLE)}, money=AMOUNT or price=IN/OUT, "
                f"with commas between, not {part!r}"
            )
    return Budget(**given)
