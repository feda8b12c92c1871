"""The events of a run: from LangGraph's stream to what is recorded, and from what is recorded back to text.

Kinds: `run_begin`, `run_resume`, `run_wait`, `run_left` (the drive stopped, and the thread is due), `run_end`;
`step_begin`, `step_end`; `token`, `answer`, `superseded`; `operation_begin`, `progress`, `operation_end`;
`approval_open` (again with each drive), `approval_decided`; `custom`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain_core.messages import AIMessage

from standfast.checkpoint.run_events import RunEvent

StreamEvent = RunEvent


def event_of(namespace: tuple[str, ...], mode: str, part: Any) -> tuple[str, tuple[str, ...], Any] | None:
    """Kind, path and data of one part of LangGraph's stream, if it is an event."""
    outer = tuple(step.split(":", 1)[0] for step in namespace)
    if mode == "tasks":
        path = (*outer, part["name"])
        if "input" in part:
            return "step_begin", path, {"task": part["id"], **_subject(part["input"])}
        if part.get("interrupts"):
            return None
        return "step_end", path, {"task": part["id"], **_said(part.get("result"))}
    if mode == "custom":
        return "custom", outer, part
    return None


def fold_text(events: Iterable[RunEvent]) -> dict[str, str]:
    """The text of each answer, by its message's id, as its tokens have told it so far.

    What a dead attempt had streamed is left out as soon as the events say so: by name, or because the run goes on
    in another drive and the step had not ended. Of a finished answer this is the text of the stored message.
    """
    texts: dict[str, str] = {}
    unfinished: dict[str, tuple[str, ...]] = {}  # the way to the step that each answer belongs to
    for event in events:
        if event.kind in ("token", "answer"):
            unfinished[event.data["message"]] = event.path
        if event.kind == "step_end":
            unfinished = {one: path for one, path in unfinished.items() if path[: len(event.path)] != event.path}
        elif event.kind == "run_resume":
            for message in unfinished:
                texts.pop(message, None)
            unfinished.clear()
        elif event.kind == "token":
            texts[event.data["message"]] = texts.get(event.data["message"], "") + event.data["text"]
        elif event.kind == "superseded":
            texts.pop(event.data["message"], None)
        elif event.kind == "answer" and event.data.get("text") is not None:
            texts[event.data["message"]] = event.data["text"]
    return texts


def _subject(given: Any) -> dict[str, Any]:
    """Which call a step is about, if it is about one: its name, and its short arguments."""
    call = given.get("call") if isinstance(given, dict) else None
    if not isinstance(call, dict) or "name" not in call:
        return {}
    arguments = call.get("args")
    short = {
        key: value
        for key, value in (arguments.items() if isinstance(arguments, dict) else ())
        if isinstance(value, str | int) and len(str(value)) <= 200
    }
    return {"name": call["name"], "args": short}


def _said(result: Any) -> dict[str, Any]:
    messages = result.get("messages") if isinstance(result, dict) else None
    answer = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(answer, AIMessage):
        return {}
    return {"calls": [call["name"] for call in answer.tool_calls], "usage": answer.usage_metadata}
