"""What is seen of a run while it is driven: LangGraph's stream parts as small events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage, AIMessageChunk

Kind = Literal["step_begin", "step_end", "token", "custom"]


@dataclass(frozen=True)
class StreamEvent:
    """One thing that happened. `path` is the way to the node, by node names, from the root graph; `task` joins
    the begin and the end of one step, of which several of one name may be under way."""

    kind: Kind
    path: tuple[str, ...]
    data: Any = None
    task: str = field(default="", compare=False)

    @property
    def node(self) -> str:
        return self.path[-1] if self.path else ""


def events_of(namespace: tuple[str, ...], mode: str, part: Any) -> list[StreamEvent]:
    """The events of one part of LangGraph's stream; most parts are none."""
    outer = tuple(step.split(":", 1)[0] for step in namespace)
    if mode == "tasks":
        path = (*outer, part["name"])
        if "input" in part:
            return [StreamEvent("step_begin", path, _subject(part["input"]), part["id"])]
        if part.get("interrupts"):
            return []
        return [StreamEvent("step_end", path, _usage(part.get("result")), part["id"])]
    if mode == "messages":
        message = part[0]
        if isinstance(message, AIMessageChunk) and str(message.text):
            return [StreamEvent("token", outer, str(message.text))]
        return []
    if mode == "custom":
        return [StreamEvent("custom", outer, part)]
    return []


def _subject(given: Any) -> dict[str, Any] | None:
    """Which call a step is about, if it is about one."""
    call = given.get("call") if isinstance(given, dict) else None
    return {"name": call["name"], "args": call["args"]} if isinstance(call, dict) else None


def _usage(result: Any) -> dict[str, Any] | None:
    messages = result.get("messages") if isinstance(result, dict) else None
    answer = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(answer, AIMessage):
        return None
    return {"calls": [call["name"] for call in answer.tool_calls], "usage": answer.usage_metadata}
