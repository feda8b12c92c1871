"""The graph of those who work beside a crowd that waits: it waits for an event of the name that the crowd waits for."""

from __future__ import annotations

from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from standfast.graph import wait_for_event


class State(TypedDict, total=False):
    key: str


async def _wait(state: State) -> State:
    await wait_for_event("paid", match=state["key"])
    return {}


def waiting() -> StateGraph[Any, Any, Any, Any]:
    """Wait once."""
    graph = StateGraph(State)
    graph.add_node("wait", _wait)
    graph.add_edge(START, "wait")
    graph.add_edge("wait", END)
    return graph
