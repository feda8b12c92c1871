"""What a runtime returns can be named by those who use it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any, Final

import pytest

import standfast.graph as public
from standfast.graph import Runtime

# For the other modules of the house: who uses a runtime has no need of them.
INTERNAL: Final = {"aaccepted", "adrive", "aend_cancelled", "aput_aside", "deployed", "join", "store"}


def our_types(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and hint.__module__.startswith("standfast."):
        yield hint
    for one in typing.get_args(hint):
        yield from our_types(one)


def methods() -> Iterator[tuple[str, Any]]:
    for name, member in inspect.getmembers(Runtime):
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and name not in INTERNAL and inspect.isfunction(function):
            yield name, function


@pytest.mark.parametrize(("name", "function"), list(methods()), ids=lambda one: one if isinstance(one, str) else "")
def test_what_a_method_returns_can_be_imported_from_standfast_graph(name: str, function: Any) -> None:
    named = [getattr(public, one) for one in public.__all__]
    returned = typing.get_type_hints(function).get("return")
    assert [] == [one.__name__ for one in our_types(returned) if not any(one is known for known in named)]


@pytest.mark.parametrize("name", public.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert hasattr(public, name)
    assert name in dir(public)
