"""The closed list of types that may be stored, each under a stable name.

Invariant: a name in a row is only ever looked up in this list. What is not in it is refused by name, when it
is written and when it is read; nothing is imported, and nothing is guessed.
"""

from __future__ import annotations

import builtins
import collections
from collections import defaultdict
from functools import cache
from typing import Any, Final

import langchain_core.documents
import langchain_core.messages
import langchain_core.outputs
import langchain_core.prompt_values
import langgraph.store.base
import langgraph.types
import pydantic
from langchain_core.messages.base import TextAccessor
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from standfast.checkpoint.artifact import ARTIFACT_FORM, Artifact
from standfast.checkpoint.child import CHILD_END_FORM, CHILD_FORM, Child, ChildEnd
from standfast.checkpoint.class_forms import MAX_NAME, Upgrade, attributes_form, class_form, named_form
from standfast.checkpoint.errors import ConfigurationError, UnknownStoredType
from standfast.checkpoint.forms import DEFAULT_DICT, FORMS, Form, Layout, Unfit, form, typed
from standfast.checkpoint.numpy_forms import NUMPY_FORMS, numpy_forms
from standfast.checkpoint.schema_types import classes_to_register, first_unregistered


class RecordedError(Exception):
    """What is stored of an exception: the name of its type, and its message.

    This is the one conversion that the codec makes on purpose. LangGraph writes a failed task's exception to
    its error channel; an exception holds frames, causes and handles that cannot be stored, so any exception
    that is itself the value to store is recorded as this, and read back as this.
    """

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message

    @classmethod
    def of(cls, error: BaseException) -> RecordedError:
        if isinstance(error, RecordedError):
            return error
        try:
            message = str(error)
        except Exception as exc:  # noqa: BLE001 - any exception class may have a broken __str__
            message = f"(its message could not be made: {type(exc).__qualname__})"
        return cls(type_name_of(type(error)), message)

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordedError):
            return NotImplemented
        return self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


def type_name_of(cls: type) -> str:
    """The default name of a class in rows: `module:qualname`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= MAX_NAME:
        raise ConfigurationError(f"{name[:80]!r} cannot be a stored name: it has no or too many characters")


def is_secret(cls: type) -> bool:
    """Whether instances of `cls` wrap a secret that must not reach the database."""
    return issubclass(cls, pydantic.Secret | pydantic.SecretStr | pydantic.SecretBytes) or hasattr(
        cls, "get_secret_value"
    )


class TypeRegistry:
    """The types that a codec stores and loads.

    It starts with the built-in types that can be stored exactly, LangChain's messages and documents, and the
    values that LangGraph writes. Everything else is registered by the program, before a graph runs.
    """

    def __init__(self) -> None:
        by_type, by_name, by_code = _core()
        self.by_type: dict[type, Form] = dict(by_type)
        self.by_name: dict[str, Form] = dict(by_name)
        self.by_code: dict[int, Form] = dict(by_code)
        self._owners: dict[str, type] = {entry.name: cls for cls, entry in by_type.items()}
        self._upgrades: dict[type, Upgrade | None] = {}
        self._default_dict = form(
            DEFAULT_DICT, "collections:defaultdict", Layout.PARTS, self._lower_default, self._restore_default
        )
        self.by_type[defaultdict] = self.by_code[DEFAULT_DICT] = self._default_dict

    def register(
        self,
        cls: type,
        *,
        name: str | None = None,
        aliases: tuple[str, ...] = (),
        upgrade: Upgrade | None = None,
    ) -> None:
        """Let exact instances of `cls` be stored and loaded.

        `name` is what rows call it (default `module:qualname`); `aliases` are names that older rows call it.
        `upgrade` turns the stored fields of an older row into the fields of today: it is called only for
        rows whose fields differ from the class's, or that carry an alias. For an Enum it gets `{"name":
        ...}`, for a Flag `{"value": ...}`, of a member that is gone.

        Dataclasses, pydantic models, enums, NamedTuples, classes with slots, and subclasses of str, int,
        float, bytes, bytearray, tuple, list, dict, set and frozenset can be registered. Registering a class
        again replaces what was said before. Raises ConfigurationError for a class that cannot be stored
        exactly, or a name that is taken.
        """
        if not isinstance(cls, type):
            raise ConfigurationError(f"{cls!r} cannot be registered: it is not a class")
        if is_secret(cls):
            raise ConfigurationError(
                f"{type_name_of(cls)} cannot be registered: it holds a secret; keep the secret outside the "
                "state and store its name"
            )
        if self.built_in(cls):
            if name is None and not aliases and upgrade is None:
                return
            raise ConfigurationError(f"{type_name_of(cls)} is stored already, and its name cannot be changed")
        name = name if name is not None else type_name_of(cls)
        _check_name(name)
        entry = class_form(cls, name, upgrade=upgrade)
        self._claim(name, cls)
        self.by_type[cls] = self.by_name[name] = entry
        self._upgrades[cls] = upgrade
        for alias in aliases:
            self.alias(alias, cls)

    def alias(self, name: str, cls: type) -> None:
        """Let rows that call their type `name` be loaded as `cls`, which must be registered."""
        entry = self._named(cls)
        if entry is None:
            raise ConfigurationError(f"{type_name_of(cls)} cannot have the alias {name!r}: register the class first")
        if entry.name == name:
            return
        _check_name(name)
        self._claim(name, cls)
        self.by_name[name] = class_form(cls, name, upgrade=self._upgrades.get(cls), moved=True)

    def register_schema(self, schema: Any) -> None:
        """Register every class that a state schema reaches, under its default name."""
        for cls in classes_to_register(schema, self.knows, self.built_in):
            self.register(cls)

    def require(self, schema: Any, *, where: str) -> None:
        """Check that every class that a state schema reaches can be stored.

        The schema is a TypedDict, a dataclass, a pydantic model, or any annotation. `Any` and `object`
        promise nothing and are allowed; what they hold is checked when it is written. An abstract class or
        protocol is allowed if a registered class derives from it. Raises UnregisteredType with `field` and
        `type_name`.
        """
        first_unregistered(schema, self.knows, self.built_in, where=where)

    def knows(self, cls: type) -> bool:
        """Whether exact instances of `cls` can be stored."""
        return cls in _NATIVE or self.form_of(cls) is not None

    def built_in(self, cls: type) -> bool:
        """Whether `cls` is stored without having been registered by the program."""
        return cls in _NATIVE or cls is defaultdict or cls in _core()[0] or cls.__module__ == "numpy"

    def form_of(self, cls: type) -> Form | None:
        """The form for exact instances of `cls`, or None."""
        found = self.by_type.get(cls)
        if found is None and cls.__module__ == "numpy":
            self.by_type.update(numpy_forms())
            found = self.by_type.get(cls)
        return found

    def _named(self, cls: type) -> Form | None:
        """The form of a class that rows know by a name."""
        entry = self.by_type.get(cls)
        return entry if entry is not None and self.by_name.get(entry.name) is entry else None

    def _claim(self, name: str, cls: type) -> None:
        owner = self._owners.get(name)
        if owner is not None and owner is not cls:
            if type_name_of(owner) != type_name_of(cls):
                raise ConfigurationError(
                    f"the stored name {name!r} belongs to {type_name_of(owner)}; give {type_name_of(cls)} another name"
                )
            # The same class, defined again (a notebook's cell, a reloaded module): the old one is forgotten.
            self.by_type.pop(owner, None)
        self._owners[name] = cls

    def _lower_default(self, value: defaultdict[Any, Any]) -> list[Any]:
        factory: Any = value.default_factory
        if factory is None:
            return [None, dict(value)]
        if isinstance(factory, type):
            entry = self._named(factory)
            name = entry.name if entry is not None else _FACTORY_NAMES.get(factory)
            if name is not None:
                return [name, dict(value)]
        raise Unfit(
            f"its default_factory {factory!r} is neither a plain built-in type nor a registered class; store a dict"
        )

    def _restore_default(self, parts: list[Any]) -> defaultdict[Any, Any]:
        name, content = typed(parts, (str, type(None)), (dict,))
        if name is None:
            return defaultdict(None, content)
        factory = _FACTORIES.get(name) or self._owners.get(name)
        if factory is None:
            raise UnknownStoredType(
                f"a defaultdict was stored with the factory {name[:80]!r}, which is not registered",
                type_name=name,
            )
        return defaultdict(factory, content)


_NATIVE: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict})
_FACTORIES: Final[dict[str, type]] = {
    **{
        name: getattr(builtins, name)
        for name in ("bool", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple")
    },
    **{name: getattr(collections, name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")},
}
_FACTORY_NAMES: Final = {factory: name for name, factory in _FACTORIES.items()}

# Stored names of the libraries' classes are ours: they stay when a library moves a class.
_LANGCHAIN: Final[tuple[type, ...]] = (
    *(
        getattr(langchain_core.messages, kind + suffix)
        for kind in (
            "AIMessage",
            "BaseMessage",
            "ChatMessage",
            "FunctionMessage",
            "HumanMessage",
            "SystemMessage",
            "ToolMessage",
        )
        for suffix in ("", "Chunk")
    ),
    langchain_core.messages.RemoveMessage,
    TextAccessor,
    langchain_core.documents.Document,
    langchain_core.prompt_values.ChatPromptValue,
    langchain_core.prompt_values.StringPromptValue,
    langchain_core.outputs.ChatGeneration,
    langchain_core.outputs.ChatGenerationChunk,
    langchain_core.outputs.ChatResult,
    langchain_core.outputs.Generation,
    langchain_core.outputs.GenerationChunk,
    langchain_core.outputs.LLMResult,
    langchain_core.outputs.RunInfo,
)
_LANGGRAPH: Final[tuple[type, ...]] = (
    langgraph.types.Command,
    langgraph.types.Interrupt,
    langgraph.types.Overwrite,
    langgraph.types.PregelTask,
    langgraph.types.Send,
    langgraph.types.StateSnapshot,
    langgraph.types.StateUpdate,
    langgraph.types.TimeoutPolicy,
    langgraph.store.base.GetOp,
    langgraph.store.base.Item,
    langgraph.store.base.SearchItem,
    _DeltaSnapshot,
)
_URLS: Final[tuple[type, ...]] = (
    pydantic.AnyUrl,
    pydantic.AnyHttpUrl,
    pydantic.HttpUrl,
    pydantic.FileUrl,
    pydantic.FtpUrl,
    pydantic.AnyWebsocketUrl,
    pydantic.WebsocketUrl,
)


def _restore_error(parts: list[Any]) -> RecordedError:
    type_name, message = typed(parts, (str,), (str,))
    return RecordedError(type_name, message)


@cache
def _core() -> tuple[dict[type, Form], dict[str, Form], dict[int, Form]]:
    named = {
        **{cls: class_form(cls, f"langchain:{cls.__qualname__}") for cls in _LANGCHAIN},
        **{cls: class_form(cls, f"langgraph:{cls.__qualname__}") for cls in _LANGGRAPH},
        **{cls: attributes_form(cls, f"pydantic:{cls.__qualname__}", ("_url",)) for cls in _URLS},
        Artifact: ARTIFACT_FORM,
        Child: CHILD_FORM,
        ChildEnd: CHILD_END_FORM,
        RecordedError: named_form(
            "standfast:RecordedError",
            Layout.PARTS,
            lambda error: [error.type_name, error.message],
            _restore_error,
        ),
    }
    by_code = {entry.code: entry for entry in (*FORMS.values(), *NUMPY_FORMS)}
    return {**FORMS, **named}, {entry.name: entry for entry in named.values()}, by_code
