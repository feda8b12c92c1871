"""Arguments that a tool describes by a JSON schema instead of a pydantic model, as MCP servers do.

Invariant: what the model is shown is the tool's own schema, word for word; what is kept and passed on is what was
given, with no default added. Names, presence and plain types are checked here, the rest by the tool.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, create_model

_PLAIN: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}


class _Described(BaseModel):
    """Only what was given is dumped: the tool's default for what was left out is its own business."""

    model_config = ConfigDict(strict=True)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        return super().model_dump(**{**options, "exclude_unset": True, "by_alias": True})


def described(title: str, schema: Mapping[str, Any]) -> type[BaseModel]:
    """A model of the arguments that an object's JSON schema describes."""
    required = set(schema.get("required", ()))
    fields: dict[str, Any] = {}
    for number, (name, one) in enumerate(schema.get("properties", {}).items()):
        taken = name.startswith(("_", "model_")) or hasattr(BaseModel, name)  # pydantic's own names
        fields[f"argument_{number}" if taken else name] = (
            _type_of(one),
            Field(default=... if name in required else None, alias=name if taken else None),
        )
    shown = {"type": "object", "properties": {}, **copy.deepcopy(dict(schema))}

    class Arguments(_Described):
        @classmethod
        def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any, /) -> dict[str, Any]:
            return copy.deepcopy(shown)

    return create_model(title, __base__=Arguments, **fields)


def _type_of(schema: Any) -> Any:
    named = schema.get("type") if isinstance(schema, Mapping) else None
    return _PLAIN.get(named, Any) if isinstance(named, str) else Any
