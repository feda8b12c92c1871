"""Blocking twins of the runtime's async methods: the same arguments and documentation, the same errors, told shortly.

Invariant: a twin has nothing of its own. It calls the async method by its name, so a subclass that overrides that one
has its twin overridden too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from standfast.checkpoint import errors
from standfast.graph.runtime import AsyncRuntime
from standfast.graph.signatures import require
from standfast.graph.tracebacks import shortened

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")

_ASYNC_NAME: Final = re.compile(r"`a(\w+)`")


def twin(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The blocking twin of `averb`, for a class that can `_wait`."""
    signature = inspect.signature(method)

    def waiting(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        require(waiting.__name__, signature, (self, *args), kwargs)
        try:
            result: T = self._wait(lambda: getattr(self, method.__name__)(*args, **kwargs))
        except errors.StandfastError as error:
            raise shortened(error)  # noqa: B904 - what caused it stays with it
        return result

    return _named(waiting, method)


def iterating_twin(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """The blocking twin of an `averb` that is iterated over; each item is waited for when it is asked for."""
    signature = inspect.signature(method)

    def iterating(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        require(iterating.__name__, signature, (self, *args), kwargs)
        return _one_by_one(self, getattr(self, method.__name__)(*args, **kwargs))

    return _named(iterating, method)


def _one_by_one(runtime: Any, items: Any) -> Iterator[Any]:
    async def following() -> list[Any]:
        async for item in items:
            return [item]
        return []

    try:
        while item := runtime._wait(following):
            yield item[0]
    except errors.StandfastError as error:
        raise shortened(error)  # noqa: B904 - what caused it stays with it
    finally:
        runtime._wait(items.aclose)


def _named(function: F, method: Callable[..., Any]) -> F:
    """The function under the name, signature and documentation of the method, without the `a` in front."""
    name = method.__name__.removeprefix("a")
    signature = inspect.signature(method)
    returned = str(signature.return_annotation).replace("AsyncIterator", "Iterator")
    function.__name__, function.__qualname__ = name, f"Runtime.{name}"
    function.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    function.__doc__ = _ASYNC_NAME.sub(_twins_name, inspect.getdoc(method) or "")
    return function


def _twins_name(found: re.Match[str]) -> str:
    return f"`{found[1]}`" if hasattr(AsyncRuntime, f"a{found[1]}") else found[0]
