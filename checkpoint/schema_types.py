"""Which classes a state schema reaches.

Invariant: every class that a declared field can hold is found, through aliases, unions, generics, forward
references and nested schemas; a field that cannot be understood is an error, never skipped.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import pydantic
import typing_extensions
from langgraph.channels import UntrackedValue

from standfast.checkpoint.errors import UnregisteredType

Known = Callable[[type], bool]

_WRAPPERS: Final = {
    typing.Required,
    typing.NotRequired,
    typing.Final,
    typing.ClassVar,
    typing_extensions.Required,
    typing_extensions.NotRequired,
    typing_extensions.ReadOnly,
}
_UNIONS: Final = {typing.Union, types.UnionType}
_FREE: Final = {Any, object, None, type(None), typing.Never, typing.NoReturn, typing_extensions.Any}


def first_unregistered(schema: Any, known: Known, built_in: Known, *, where: str) -> None:
    """Raise UnregisteredType for the first class reachable from `schema` that is not `known`."""
    for cls, field in _Walk(built_in).reach(schema, where):
        if _stored_by_family(cls, known):
            continue
        name = f"{cls.__module__}:{cls.__qualname__}"
        raise UnregisteredType(f"{field} can hold a {name}, {_advice(cls)}", field=field, type_name=name)


def classes_to_register(schema: Any, known: Known, built_in: Known) -> list[type]:
    """The classes reachable from `schema` that are not `known` and can have instances of their own."""
    found = (cls for cls, _ in _Walk(built_in).reach(schema, "schema"))
    return list(dict.fromkeys(cls for cls in found if not _stored_by_family(cls, known)))


def _advice(cls: type) -> str:
    if hasattr(cls, "get_secret_value"):
        return "which is a secret and is never stored; keep it outside the state and store its name"
    if _is_abstract(cls):
        return "which is abstract, and no class that derives from it is registered; register some"
    return "which is not registered; register it before the graph is compiled"


def _is_abstract(cls: type) -> bool:
    return inspect.isabstract(cls) or getattr(cls, "_is_protocol", False) or cls.__module__ == "collections.abc"


def _stored_by_family(cls: type, known: Known) -> bool:
    """Whether an abstract class or protocol has a member that is known."""
    if known(cls):
        return True
    if not _is_abstract(cls):
        return False
    if getattr(cls, "_is_protocol", False):
        # A protocol names behaviour, not a type: what fills the field is checked when it is written.
        return True
    return any(known(member) for member in _family(cls)) or any(
        issubclass(plain, cls) for plain in (str, int, float, bytes, list, tuple, dict, set, frozenset)
    )


def _family(cls: type) -> Iterator[type]:
    member: type
    for member in cls.__subclasses__():
        yield member
        yield from _family(member)


class _Walk:
    """One walk over a schema. Each class is entered once; its field is where it was first met."""

    def __init__(self, built_in: Known) -> None:
        self._built_in = built_in
        self._entered: set[type] = set()

    def reach(self, annotation: Any, field: str) -> Iterator[tuple[type, str]]:
        """Every class that a value of this annotation can be or hold, with the field where it stands."""
        if isinstance(annotation, str | typing.ForwardRef):
            raise _unreadable(field, annotation, "the forward reference cannot be resolved")
        if isinstance(annotation, typing.TypeVar):
            bounds = annotation.__constraints__ or (annotation.__bound__ or Any,)
            for bound in bounds:
                yield from self.reach(bound, field)
            return
        if isinstance(annotation, typing.NewType):
            yield from self.reach(annotation.__supertype__, field)
            return
        origin = typing.get_origin(annotation)
        if origin is None:
            if hasattr(annotation, "__value__"):
                yield from self.reach(annotation.__value__, field)
            elif not _is_free(annotation):
                yield from self._class(annotation, field)
            return
        arguments = typing.get_args(annotation)
        if origin is Annotated:
            inner, *notes = arguments
            if not any(note is UntrackedValue or isinstance(note, UntrackedValue) for note in notes):
                yield from self.reach(inner, field)
        elif origin is typing.Literal:
            for member in arguments:
                yield from self.reach(type(member), field)
        elif origin in _UNIONS or origin in _WRAPPERS:
            for argument in arguments:
                yield from self.reach(argument, field)
        elif hasattr(origin, "__value__"):
            yield from self.reach(origin.__value__[arguments], field)
        else:
            yield from self._generic(annotation, origin, arguments, field)

    def _generic(
        self, annotation: Any, origin: Any, arguments: tuple[Any, ...], field: str
    ) -> Iterator[tuple[type, str]]:
        yield from self._class(origin, field)
        if origin.__module__ == "numpy":
            return
        for argument in arguments:
            if argument is not Ellipsis:
                yield from self.reach(argument, field)

    def _class(self, cls: Any, field: str) -> Iterator[tuple[type, str]]:
        if not isinstance(cls, type):
            raise _unreadable(field, cls, "it is not a type")
        if cls in (type, collections.abc.Callable):
            raise _unreadable(field, cls, "classes and functions are never stored")
        if cls in self._entered:
            return
        self._entered.add(cls)
        if not typing_extensions.is_typeddict(cls):
            yield cls, field
        if self._built_in(cls):
            return  # what a library's class holds is checked when it is written
        for name, annotation in _fields(cls, field).items():
            yield from self.reach(annotation, f"{field}.{name}")


def _is_free(annotation: Any) -> bool:
    try:
        return annotation in _FREE
    except TypeError:
        return False


def _fields(cls: Any, field: str) -> dict[str, Any]:
    """The annotations of a schema's own fields; empty for a class that is no schema."""
    if issubclass(cls, pydantic.BaseModel):
        if not cls.__pydantic_complete__ and not cls.model_rebuild(raise_errors=False):
            raise _unreadable(field, cls, "its annotations cannot be resolved")
        return {
            name: Annotated[(item.annotation, *item.metadata)] if item.metadata else item.annotation
            for name, item in cls.model_fields.items()
        }
    if dataclasses.is_dataclass(cls):
        names = [item.name for item in dataclasses.fields(cls)]
    elif typing_extensions.is_typeddict(cls):
        names = list(cls.__annotations__)
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        names = list(cls._fields)
    else:
        return {}
    try:
        hints = typing_extensions.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError, SyntaxError) as exc:
        raise _unreadable(field, cls, f"its annotations cannot be resolved ({exc})") from exc
    return {name: hints.get(name, Any) for name in names}


def _unreadable(field: str, what: Any, why: str) -> UnregisteredType:
    name = what if isinstance(what, str) else getattr(what, "__qualname__", repr(what))
    return UnregisteredType(
        f"{field} is declared as {name!r}, which cannot be checked: {why}; "
        "declare it with a class that can be registered, or as Any",
        field=field,
        type_name=str(name),
    )
