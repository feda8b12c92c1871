"""What a method takes, told in full, and what it was wrongly given, in one sentence.

Invariant: wrong arguments are refused before anything of the method has run.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar, cast

from standfast.checkpoint.errors import WrongArguments

F = TypeVar("F", bound=Callable[..., Any])

_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def takes(options: type, *, like: type) -> Callable[[F], F]:
    """For a method with `**options: Unpack[options]`: its signature lists them, with the defaults of dataclass `like`.

    The method then refuses what it does not take with `WrongArguments`.
    """

    def spelled_out(method: F) -> F:
        whole = inspect.signature(method)
        own = [one for one in whole.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        types = options.__annotations__
        more = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=getattr(types[one.name], "__forward_arg__", types[one.name]),
            )
            for one in fields(like)
            if one.name in types
        ]
        signature = whole.replace(parameters=[*own, *more])

        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def checked(*args: Any, **kwargs: Any) -> Any:
                require(method.__name__, signature, args, kwargs)
                return await method(*args, **kwargs)
        else:

            @functools.wraps(method)
            def checked(*args: Any, **kwargs: Any) -> Any:
                require(method.__name__, signature, args, kwargs)
                return method(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return cast("F", checked)

    return spelled_out


def require(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise `WrongArguments` if a method of this signature cannot be called so; `args` begin with its object."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise WrongArguments(_sentence(name, signature, args, kwargs, str(error)), method=name) from None


def _sentence(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], why: str
) -> str:
    known = list(signature.parameters)[1:]
    by_position = [key for key, one in signature.parameters.items() if one.kind in _BY_POSITION]
    unknown = [key for key in kwargs if key not in known]
    config = _config_of([*args[len(by_position) :], *(kwargs[key] for key in unknown)])
    if config is not None or "config" in unknown:
        thread = (config or {}).get("configurable", {}).get("thread_id", "...")
        how = f"thread_id={thread!r}" if "thread_id" in known else "its arguments by name"
        return f"{name} does not take LangGraph's config; give {how} instead. {_taken(known)}"
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else "."
        return f"{name} takes no argument {unknown[0]!r}{meant} {_taken(known)}"
    if len(args) > len(by_position):
        most = len(by_position) - 1
        many = f"{most} argument{'' if most == 1 else 's'}"
        return f"{name} takes at most {many} by position, the others by name. {_taken(known)}"
    return f"{name}: {why}. {_taken(known)}"


def _config_of(values: list[Any]) -> Mapping[str, Any] | None:
    """What was meant as LangGraph's config, if anything was."""
    found = (one for one in values if isinstance(one, Mapping) and isinstance(one.get("configurable"), Mapping))
    return next(found, None)


def _taken(known: list[str]) -> str:
    return f"It takes {', '.join(known)}" if known else "It takes no arguments"
