"""What a notebook shows of a value: the hook through which the top room gives the rows' types a face.

Invariant: nothing here knows how anything looks. Until somebody has said how, a notebook falls back to the `repr`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Show = Callable[[Any], str | None]


class _Shower:
    show: Show = staticmethod(lambda _: None)


def show_with(show: Show) -> None:
    """From now on `show` makes the HTML of every `Shown` value; None from it means the `repr`."""
    _Shower.show = staticmethod(show)


class Shown:
    """A value that a notebook shows as HTML of its own."""

    def _repr_html_(self) -> str | None:
        return _Shower.show(self)
