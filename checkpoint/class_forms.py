"""How instances of registered classes are taken apart for storage and put together again.

Invariant: loading runs no code of the class: no `__init__`, `__new__`, `__post_init__`, validator, property.
An instance gets back the very attributes it had, as pickle would give them, without pickle.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, Flag
from functools import partial
from inspect import getattr_static
from typing import Any, Final

import pydantic
import pydantic.fields
from pydantic_core import PydanticUndefined

from standfast.checkpoint.errors import ConfigurationError, StoredTypeChanged
from standfast.checkpoint.forms import NAMED, NAMED_RAW, Form, Layout, Unfit, decode_text, encode_text, typed

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

MAX_NAME: Final = 0xFFFF

_MISSING: Final = object()
_OPTIONAL_DICT: Final = (dict, type(None))
_set = object.__setattr__
_BASES: Final = (str, int, float, bytes, bytearray, tuple, list, dict, set, frozenset)


def named_form(name: str, layout: Layout, lower: Callable[[Any], Any], restore: Callable[[Any], Any]) -> Form:
    """The form of a class that rows know by `name` (at most MAX_NAME bytes of UTF-8)."""
    raw = name.encode()
    head = len(raw).to_bytes(2, "big") + raw
    if layout is Layout.RAW:
        return Form(NAMED_RAW, name, layout, lower, restore, head)
    return Form(NAMED, name, layout, lower, restore, bytes([NAMED]) + head)


def class_form(cls: type, name: str, *, upgrade: Upgrade | None = None, moved: bool = False) -> Form:
    """The form for exact instances of `cls`, stored under `name`.

    `upgrade` gets the stored fields of a row whose names differ from the class's, or that was stored under an
    alias (`moved`), and returns the fields of today. A class that cannot be stored raises ConfigurationError.
    """
    if issubclass(cls, Enum):
        return _enum_form(cls, name, upgrade)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _named_tuple_form(cls, name, _Fields.of(cls, upgrade, moved))
    if issubclass(cls, pydantic.BaseModel):
        return _model_form(cls, name, _Fields.of(cls, upgrade, moved))
    base = next((base for base in _BASES if issubclass(cls, base)), None)
    if base is not None and not dataclasses.is_dataclass(cls):
        return _subclass_form(cls, base, name)
    return _record_form(cls, name, _Fields.of(cls, upgrade, moved))


# --- fields ---


@dataclass(frozen=True, slots=True)
class _Fields:
    """The declared fields of a class, and how stored fields are brought to them."""

    cls: type
    names: frozenset[str]
    order: tuple[str, ...]
    default: Callable[[str], Any]
    upgrade: Upgrade | None
    moved: bool

    @classmethod
    def of(cls, owner: type, upgrade: Upgrade | None, moved: bool) -> _Fields:
        order, default = _declared(owner)
        return cls(owner, frozenset(order), order, default, upgrade, moved)

    def split(self, state: Mapping[str, Any], extras: Mapping[str, Any]) -> list[Any]:
        """The parts that hold attributes: the fields, and what differs from the declaration, if anything."""
        if not all(type(name) is str for name in extras):
            raise Unfit("it carries an attribute whose name is not text")
        fields = {name: state[name] for name in state if name in self.names}
        extras = {name: value for name, value in extras.items() if name != "__orig_class__"}
        absent = [name for name in self.order if name not in fields]
        return [fields, extras or None, absent or None]

    def join(self, fields: Any, extras: Any, absent: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fields and extra attributes of today's class from the stored parts."""
        plain = extras is None and absent is None and not self.moved
        if plain and type(fields) is dict and fields.keys() == self.names:
            return fields, {}
        _, extras, absent = typed([fields, extras or {}, absent or []], (dict,), (dict,), (list,))
        _check_names(fields)
        _check_names(extras)
        if self.upgrade is not None and (self.moved or {*fields, *absent} != self.names):
            fields, absent = self.upgrade(dict(fields)), []
            _check_names(fields)
        for name in fields:
            if name not in self.names:
                raise StoredTypeChanged(
                    f"{self.cls.__qualname__} has no field {name!r} any more, but a stored value has it; "
                    "register the class with upgrade= to say what becomes of it",
                    type_name=self.cls.__qualname__,
                    field=name,
                )
        missing = [name for name in self.order if name not in fields and name not in absent]
        return fields | {name: self._default_of(name) for name in missing}, extras

    def _default_of(self, name: str) -> Any:
        value = self.default(name)
        if value is _MISSING:
            raise StoredTypeChanged(
                f"{self.cls.__qualname__} has a field {name!r} without a default that a stored value lacks; "
                "give it a default, or register the class with upgrade=",
                type_name=self.cls.__qualname__,
                field=name,
            )
        return value


def _check_names(fields: Any) -> None:
    if type(fields) is not dict or not all(type(name) is str for name in fields):
        raise TypeError("the fields of a class are not a dict with names for keys")


def _declared(cls: type) -> tuple[tuple[str, ...], Callable[[str], Any]]:
    if issubclass(cls, pydantic.BaseModel):
        return tuple(cls.model_fields), lambda name: _model_default(cls, name)
    if dataclasses.is_dataclass(cls):
        by_name = {field.name: field for field in dataclasses.fields(cls)}
        return tuple(by_name), lambda name: _dataclass_default(by_name[name])
    if hasattr(cls, "_fields"):
        defaults: Mapping[str, Any] = getattr(cls, "_field_defaults", {})
        return tuple(cls._fields), lambda name: defaults.get(name, _MISSING)
    return tuple(_slots(cls)), lambda _: _MISSING


def _dataclass_default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _MISSING if field.default is dataclasses.MISSING else field.default


def _model_default(cls: type[pydantic.BaseModel], name: str) -> Any:
    field = cls.model_fields[name]
    if field.is_required() or field.default_factory_takes_validated_data:
        return _MISSING
    return field.get_default(call_default_factory=True)


def _private_default(attribute: pydantic.fields.ModelPrivateAttr, state: dict[str, Any]) -> Any:
    factory: Any = attribute.default_factory
    if factory is None:
        return copy.deepcopy(attribute.default)
    return factory(dict(state)) if getattr(attribute, "default_factory_takes_validated_data", False) else factory()


# --- one form per kind of class ---


def _slots(cls: type) -> dict[str, types.MemberDescriptorType]:
    """The slots of a class by attribute name, its bases' first."""
    return {
        name: member
        for base in reversed(cls.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    }


def _record_form(cls: type, name: str, fields: _Fields) -> Form:
    """Dataclasses, and classes whose attributes are all slots."""
    slots, has_dict = _slots(cls), cls.__dictoffset__ != 0
    if not dataclasses.is_dataclass(cls) and (has_dict or not slots):
        raise ConfigurationError(
            f"{cls.__qualname__} cannot be registered: nothing declares its attributes; make it a dataclass, "
            "a pydantic model, an Enum or a NamedTuple"
        )
    for field in fields.order:
        if field not in slots and (not has_dict or hasattr(type(getattr_static(cls, field, None)), "__set__")):
            raise ConfigurationError(
                f"{cls.__qualname__} cannot be registered: its field {field!r} is not stored on the instance"
            )
    return record_form(cls, name, fields, slots=slots)


def attributes_form(cls: type, name: str, attributes: tuple[str, ...]) -> Form:
    """The form of a plain class whose instances have exactly these attributes, by our own knowledge of it."""
    fields = _Fields(cls, frozenset(attributes), attributes, lambda _: _MISSING, None, moved=False)
    return record_form(cls, name, fields, slots={})


def record_form(cls: type, name: str, fields: _Fields, *, slots: Mapping[str, types.MemberDescriptorType]) -> Form:
    new = _maker(cls)
    names, order = fields.names, fields.order

    def lower_dict(value: Any) -> list[Any]:
        state = value.__dict__
        return [state, None, None] if state.keys() == names else fields.split(state, _without(state, names))

    def lower_slots(value: Any) -> list[Any]:
        state = dict(getattr(value, "__dict__", ()))
        for slot, member in slots.items():
            try:
                state[slot] = member.__get__(value)
            except AttributeError:
                continue
        return fields.split({name: state[name] for name in order if name in state}, _without(state, names))

    def restore(parts: list[Any]) -> Any:
        state, extras = fields.join(*parts)
        value = new()
        if not slots:
            _set(value, "__dict__", {**state, **extras} if extras else state)
            return value
        for name, content in (*state.items(), *extras.items()):
            if name in slots:
                slots[name].__set__(value, content)
            else:
                value.__dict__[name] = content
        return value

    return named_form(name, Layout.FIELDS, lower_slots if slots else lower_dict, restore)


def _model_form(cls: type[pydantic.BaseModel], name: str, fields: _Fields) -> Form:
    new = _maker(cls)
    if _slots(cls).keys() != _slots(pydantic.BaseModel).keys():
        raise ConfigurationError(f"{cls.__qualname__} cannot be registered: a pydantic model with slots")
    names = fields.names
    private = cls.__private_attributes__

    def lower(value: Any) -> list[Any]:
        state = value.__dict__
        head = [state, None, None] if state.keys() == names else fields.split(state, _without(state, names))
        hidden = value.__pydantic_private__
        if hidden is not None:
            hidden = {key: content for key, content in hidden.items() if content is not PydanticUndefined}
        return [*head, sorted(value.__pydantic_fields_set__), value.__pydantic_extra__, hidden]

    def restore(parts: list[Any]) -> Any:
        *stored, fields_set, extra, hidden = parts
        state, extras = fields.join(*stored)
        typed([fields_set, extra, hidden], (list,), _OPTIONAL_DICT, _OPTIONAL_DICT)
        if private:
            hidden = hidden or {}
            for key in private.keys() - hidden.keys():
                default = _private_default(private[key], state)
                if default is not PydanticUndefined:
                    hidden[key] = default
        value = new()
        _set(value, "__dict__", {**state, **extras} if extras else state)
        _set(value, "__pydantic_fields_set__", set(fields_set))
        _set(value, "__pydantic_extra__", extra)
        _set(value, "__pydantic_private__", hidden)
        return value

    return named_form(name, Layout.FIELDS, lower, restore)


def _named_tuple_form(cls: Any, name: str, fields: _Fields) -> Form:
    order = fields.order

    def lower(value: Any) -> list[Any]:
        if getattr(value, "__dict__", None):
            raise Unfit("it carries attributes beside its fields")
        return [dict(zip(order, value, strict=True))]

    def restore(parts: list[Any]) -> Any:
        (stored,) = parts
        state, _ = fields.join(stored, None, None)
        return tuple.__new__(cls, [state[field] for field in order])

    return named_form(name, Layout.FIELDS, lower, restore)


def _enum_form(cls: type[Enum], name: str, upgrade: Upgrade | None) -> Form:
    """A member is stored by its name; a combination of flags, which may have none, by its value."""

    def changed(what: str) -> StoredTypeChanged:
        return StoredTypeChanged(
            f"{cls.__qualname__} has no member {what} any more, but a stored value is that member; "
            "put it back, or register the class with upgrade=",
            type_name=cls.__qualname__,
        )

    def lower_member(value: Any) -> bytes:
        return encode_text(value._name_)

    def restore_member(data: bytes) -> Any:
        stored = decode_text(data)
        member = cls.__members__.get(stored)
        if member is None and upgrade is not None:
            member = cls.__members__.get(upgrade({"name": stored}).get("name", ""))
        if member is None:
            raise changed(repr(stored[:80]))
        return member

    def lower_flags(value: Any) -> bytes:
        number = int(value._value_)
        return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)

    def flags_of(number: int) -> Any:
        try:
            flags = cls(number)
        except ValueError:
            return None
        return flags if type(flags) is cls else None

    def restore_flags(data: bytes) -> Any:
        number = int.from_bytes(data, "big", signed=True)
        flags = flags_of(number)
        if flags is None and upgrade is not None:
            flags = flags_of(upgrade({"value": number})["value"])
        if flags is None:
            raise changed(f"with the value {number}")
        return flags

    if issubclass(cls, Flag):
        return named_form(name, Layout.RAW, lower_flags, restore_flags)
    return named_form(name, Layout.RAW, lower_member, restore_member)


def _subclass_form(cls: Any, base: Any, name: str) -> Form:
    """A subclass of a built-in: the built-in value and the attributes that the instance carries."""
    if _slots(cls):
        raise ConfigurationError(f"{cls.__qualname__} cannot be registered: a {base.__name__} with slots")
    new: Callable[..., Any] = base.__new__
    mutable = base in (list, dict, set, bytearray)
    try:
        new(cls)
    except TypeError as exc:
        raise ConfigurationError(f"{cls.__qualname__} cannot be registered: {exc}") from exc

    def restore(parts: list[Any]) -> Any:
        content, attributes = parts
        if type(content) is not base:
            raise TypeError(f"not a {base.__name__}")
        value = new(cls) if mutable else new(cls, content)
        if mutable:
            base.__init__(value, content)
        if attributes is not None:
            _check_names(attributes)
            value.__dict__.update(attributes)
        return value

    def lower(value: Any) -> list[Any]:
        return [_base_value(value, base), getattr(value, "__dict__", None) or None]

    return named_form(name, Layout.PARTS, lower, restore)


def _base_value(value: Any, base: Any) -> Any:
    """The exact built-in value inside an instance of its subclass, whatever the subclass overrides."""
    if base is str:
        return str.__str__(value)
    if base is int:
        return int.__int__(value)
    if base is float:
        return float.__float__(value)
    if base is dict:
        return dict.copy(value)
    if base in (set, frozenset):
        return base().union(value)
    return base.__getitem__(value, slice(None))


def _maker(cls: type) -> Callable[[], Any]:
    try:
        object.__new__(cls)
    except TypeError as exc:
        raise ConfigurationError(
            f"{cls.__qualname__} cannot be registered: {exc}; register the concrete classes instead"
        ) from exc
    return partial(object.__new__, cls)


def _without(state: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in names}
