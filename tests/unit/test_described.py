"""Arguments that a JSON schema describes: what a tool of an MCP server takes."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import StructuredTool

from standfast.graph import InvalidArguments, Policy, operation

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "item": {"type": "string", "description": "What to reserve"},
        "count": {"type": "integer", "default": 1},
        "schema": {"type": ["string", "null"]},
        "_meta": {"type": "object"},
    },
    "required": ["item"],
}


async def reserve(**arguments: Any) -> Any:
    return [{"type": "text", "text": f"{sorted(arguments.items())}"}]


RESERVE = operation(
    StructuredTool(name="reserve", description="Reserve items.", args_schema=SCHEMA, coroutine=reserve),
    policy=Policy(effect="read"),
)


def test_the_model_is_shown_the_schema_as_it_is() -> None:
    shown = RESERVE.tool_schema()["function"]
    assert ("reserve", "Reserve items.") == (shown["name"], shown["description"])
    assert SCHEMA["properties"] == shown["parameters"]["properties"]
    assert ["item"] == shown["parameters"]["required"]


def test_what_was_given_is_kept_and_no_default_is_added() -> None:
    assert {"item": "lamp"} == RESERVE.validate({"item": "lamp"})
    given = {"item": "lamp", "count": 2, "schema": None, "_meta": {"a": 1}}
    assert given == RESERVE.validate(given)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "item"),
        ({"item": 7}, "item"),
        ({"item": "lamp", "count": "2"}, "count"),
        ({"item": "a", "size": 1}, "size"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArguments, match=named):
        RESERVE.validate(arguments)


async def test_blocks_of_text_are_the_text_that_they_are() -> None:
    assert "[('item', 'lamp')]" == await RESERVE.call({"item": "lamp"}, None)  # type: ignore[arg-type]
