"""Where the agent goes after each step. Pure functions of the state.

Invariant: every call that a model made leads to exactly one tool message, and no loop is without a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import END
from langgraph.types import Send

from standfast.nodes.analysis import is_empty
from standfast.nodes.state import OperationState, ToolCall, answers_since_request
from standfast.nodes.validation import INVALID, MENDABLE

DELEGATE: Final = "delegate"
_MOST_EMPTY: Final = 3


def after_analysis(
    *, specialists: Collection[str], max_turns: int, finish: str
) -> Callable[[Any], Sequence[Send] | str]:
    """Fan the model's calls out, one `Send` each; ask again after an empty answer; else finish."""

    def route(state: Any) -> Sequence[Send] | str:
        messages: list[AnyMessage] = state["messages"]
        answer = messages[-1]
        if not isinstance(answer, AIMessage):
            return finish
        if is_empty(answer):
            return "analysis" if _trailing_empty(messages) < _MOST_EMPTY else finish
        calls = tool_calls(answer, messages, state["turn"], state.get("namespace", ""))
        if not calls or answers_since_request(messages) >= max_turns:
            return finish
        return [_send(call, specialists) for call in calls]

    return route


def tool_calls(answer: AIMessage, messages: list[AnyMessage], turn: int, namespace: str) -> list[ToolCall]:
    """The calls of one answer, well-formed ones first, each with its place in the run."""
    mended, refused = _marked(messages, MENDABLE), _marked(messages, INVALID)
    calls: list[ToolCall] = [
        {
            "id": call["id"] or f"call-{turn}-{index}",
            "name": call["name"],
            "args": call["args"],
            "turn": turn,
            "index": index,
            "namespace": namespace,
            "mended": mended.get(call["name"], 0),
            "malformed": None,
            "refused": refused.get(call["name"], 0),
        }
        for index, call in enumerate(answer.tool_calls)
    ]
    for index, broken in enumerate(answer.invalid_tool_calls, len(calls)):
        calls.append(
            {
                "id": broken["id"] or f"call-{turn}-{index}",
                "name": broken["name"] or "",
                "args": {},
                "turn": turn,
                "index": index,
                "namespace": namespace,
                "mended": 0,
                "malformed": broken["error"] or "its arguments are not a JSON object",
            }
        )
    return calls


def after_validation(state: OperationState) -> str:
    """A planned call goes on; one that was sent back has its message already."""
    return "approval" if "planned" in state else END


def after_approval(state: OperationState) -> str:
    """Granted, asked again, or declined with a message."""
    if state.get("granted"):
        return "operate"
    return END if state.get("messages") else "approval"


def after_operate(state: OperationState) -> str:
    """Done, or back for a grant that was missing."""
    return END if state.get("granted") else "approval"


def _send(call: ToolCall, specialists: Collection[str]) -> Send:
    if call["name"] != DELEGATE or call["malformed"]:
        return Send("operation", {"call": call})
    specialist = call["args"].get("specialist")
    if specialist not in specialists:
        reason = f"there is no specialist {specialist!r}; there are: {', '.join(sorted(specialists)) or 'none'}"
        return Send("operation", {"call": {**call, "malformed": reason}})
    return Send("specialist", {"call": call})


def _marked(messages: list[AnyMessage], mark: str) -> dict[str, int]:
    """How many tool messages since the request bear this mark, by the operation's name."""
    counts: dict[str, int] = {}
    for one in reversed(messages):
        if isinstance(one, HumanMessage):
            break
        if isinstance(one, ToolMessage) and one.additional_kwargs.get(mark):
            counts[one.name or ""] = counts.get(one.name or "", 0) + 1
    return counts


def _trailing_empty(messages: list[AnyMessage]) -> int:
    count = 0
    for one in reversed(messages):
        if not is_empty(one):
            break
        count += 1
    return count
