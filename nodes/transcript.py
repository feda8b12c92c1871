"""A conversation with tools, read back: what was asked, which tools were used since, and what they returned.

Invariant: only the messages and the offered tools count. Whatever a tool returned, reading it never raises.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

MOST_OF_REQUEST: Final = 20_000
"""Characters of a request that are read; the rest of a longer one is left aside."""


@dataclass(frozen=True)
class ReadPassage:
    """A passage as the tools return it."""

    document: str
    passage: int
    text: str
    sha256: str = ""
    title: str = ""


@dataclass(frozen=True)
class ToolUse:
    """One tool call with its result. `failed`: it did not do what was asked; `declined`: a person said no."""

    name: str
    args: Mapping[str, Any]
    text: str
    failed: bool
    declined: bool

    @property
    def data(self) -> Any:
        """The result as JSON, or None if it is not JSON. Words before a last line of JSON are passed over."""
        for candidate in (self.text, self.text.rpartition("\n")[2]):
            try:
                return json.loads(candidate)
            except (ValueError, RecursionError):
                continue
        return None

    def passages(self) -> Iterator[ReadPassage]:
        """The passages in the result, none if it failed."""
        if self.failed:
            return
        for item in _objects(self.data):
            text = item.get("text")
            if isinstance(text, str) and text:
                yield ReadPassage(
                    document=str(item.get("document", self.args.get("document", ""))),
                    passage=_number(item.get("passage", self.args.get("passage"))),
                    text=text,
                    sha256=str(item.get("sha256") or ""),
                    title=str(item.get("title") or ""),
                )


@dataclass(frozen=True)
class Transcript:
    """One request and what was done about it. `answers` counts the model's messages in the whole conversation."""

    system: str
    request: str
    answers: int
    rounds: tuple[tuple[ToolUse, ...], ...]  # one per answer with tool calls, in order
    schemas: Mapping[str, Mapping[str, Any]]  # name -> JSON schema of the arguments

    @classmethod
    def of(cls, messages: Sequence[BaseMessage], tools: Sequence[Mapping[str, Any]]) -> Transcript:
        """Read a conversation, from its last human message on; `tools` are in OpenAI's format."""
        last = max((i for i, one in enumerate(messages) if isinstance(one, HumanMessage)), default=-1)
        functions = [tool.get("function", tool) for tool in tools]
        return cls(
            system="\n".join(_text(one) for one in messages if isinstance(one, SystemMessage)),
            request=_text(messages[last])[:MOST_OF_REQUEST] if last >= 0 else "",
            answers=sum(isinstance(one, AIMessage) for one in messages),
            rounds=tuple(_rounds(messages[last + 1 :])),
            schemas={str(one.get("name")): one.get("parameters") or {} for one in functions},
        )

    def used(self, name: str) -> list[ToolUse]:
        """Every use of a tool since the request."""
        return [use for uses in self.rounds for use in uses if use.name == name]

    def times(self, name: str) -> int:
        """In how many answers a tool was called since the request."""
        return sum(any(use.name == name for use in uses) for uses in self.rounds)

    def passages(self, *names: str) -> list[ReadPassage]:
        """The passages that these tools returned, each once, in the order in which they came."""
        found = {
            (passage.document, passage.passage): passage
            for name in reversed(names)
            for use in reversed(self.used(name))
            for passage in reversed(list(use.passages()))
        }
        return list(reversed(found.values()))

    def call(self, name: str, **arguments: Any) -> list[tuple[str, dict[str, Any]]]:
        """The call of an offered tool with those of the arguments that it takes.

        Empty if the tool is not offered, or needs an argument that is not among these.
        """
        schema = self.schemas.get(name)
        if schema is None or not set(schema.get("required", ())) <= set(arguments):
            return []
        takes = schema.get("properties") or arguments
        return [(name, {key: value for key, value in arguments.items() if key in takes})]

    def call_id(self, index: int) -> str:
        """The id of the next answer's call at `index`: the same for the same conversation, and not used in it."""
        return "call_" + hashlib.sha256(f"{self.request}\0{self.answers}\0{index}".encode()).hexdigest()[:24]


def _rounds(messages: Sequence[BaseMessage]) -> Iterator[tuple[ToolUse, ...]]:
    for position, message in enumerate(messages):
        if not isinstance(message, AIMessage) or not message.tool_calls:
            continue
        results: dict[str, ToolMessage] = {}
        for later in messages[position + 1 :]:
            if isinstance(later, AIMessage):
                break  # an id may be used again in a later answer
            if isinstance(later, ToolMessage):
                results[later.tool_call_id] = later
        yield tuple(_use(call["name"], call["args"], results.get(call["id"] or "")) for call in message.tool_calls)


def _use(name: str, args: Mapping[str, Any], result: ToolMessage | None) -> ToolUse:
    if result is None:
        return ToolUse(name, args, "It was not carried out.", failed=True, declined=False)
    return ToolUse(
        name,
        args,
        _text(result),
        failed=result.status == "error",
        declined="approval" in result.additional_kwargs,
    )


def _text(message: BaseMessage) -> str:
    return str(message.text)


def _objects(data: Any) -> list[Mapping[str, Any]]:
    """The objects of a result: a list of them, an object that holds such a list, or one object."""
    if isinstance(data, Mapping):
        lists = [value for value in data.values() if isinstance(value, list)]
        data = [data] if "text" in data or not lists else lists[0]
    return [item for item in data if isinstance(item, Mapping)] if isinstance(data, list) else []


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
