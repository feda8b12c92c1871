"""Graphs built from a plan, for a child that finds the plan in its environment and for whoever compares.

A plan is a list of stages, one after the other: `[kind, name]`, `[kind, name, count]` or `["sub", name, plan]`. Every
node adds what it did to `done`, with a mark of this execution, so what is executed and kept twice stands there twice.
"""

from __future__ import annotations

import json
import os
import uuid
from typing import Annotated, Any, Final, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

from standfast.graph import durable_step, wait_for_event

PLAN: Final = "STANDFAST_TEST_PLAN"
Plan = list[list[Any]]
_MARK: Final = "~"


def names(done: list[str]) -> list[str]:
    """What was done, without the marks."""
    return [one.partition(_MARK)[0] for one in done]


def events(plan: Plan, kind: str) -> list[str]:
    """The names of the events of a kind that a plan waits for, in its subgraphs too."""
    return [
        one
        for found, name, *rest in plan
        for one in (events(rest[0], kind) if found == "sub" else [name] if found == kind else [])
    ]


def _told(name: str) -> State:
    return {"done": [f"{name}{_MARK}{uuid.uuid4().hex}"]}


def _merge(known: list[str], new: list[str]) -> list[str]:
    """A subgraph returns what it was given too; that has the same marks."""
    return known + [one for one in new if one not in known]


class State(TypedDict, total=False):
    done: Annotated[list[str], _merge]


class Branch(TypedDict, total=False):
    name: str
    done: Annotated[list[str], _merge]


def from_environment() -> StateGraph[Any, Any, Any, Any]:
    """The graph of the plan in this process's environment."""
    return build(json.loads(os.environ[PLAN]))


def build(plan: Plan, *, plain: bool = False) -> StateGraph[Any, Any, Any, Any]:
    """The graph of a plan; `plain` for LangGraph without Standfast."""
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    last = START
    for stage in plan:
        last = _add(graph, last, stage, plain)
    graph.add_edge(last, END)
    return graph


def _add(graph: StateGraph[Any, Any, Any, Any], last: str, stage: list[Any], plain: bool) -> str:
    """Add one stage behind `last`; the name of its last node."""
    kind, name, *rest = stage
    match kind:
        case "step":
            graph.add_node(name, _step(name))
        case "durable":
            graph.add_node(name, _durable(name, plain))
        case "ask":
            graph.add_node(name, _ask(name))
        case "event" | "early_event":
            graph.add_node(name, _ask(name) if plain else _event(name))
        case "sub":
            graph.add_node(name, build(rest[0], plain=plain).compile())
        case "loop":
            graph.add_node(name, _turn(name))
            graph.add_node(f"{name}-out", _step(f"{name}-out"))
            graph.add_conditional_edges(name, _again(name, rest[0]), [name, f"{name}-out"])
        case "fan" | "asking_fan":
            graph.add_node(name, _step(name))
            graph.add_node(f"{name}-branch", _asking_branch if kind == "asking_fan" else _branch)
            graph.add_node(f"{name}-join", _step(f"{name}-join"))
            graph.add_conditional_edges(name, _spread(name, rest[0]), [f"{name}-branch"])
            graph.add_edge(f"{name}-branch", f"{name}-join")
    graph.add_edge(last, name)
    return {"loop": f"{name}-out", "fan": f"{name}-join", "asking_fan": f"{name}-join"}.get(kind, name)


def _step(name: str) -> Any:
    async def step(state: State) -> State:
        return _told(name)

    return step


def _durable(name: str, plain: bool) -> Any:
    async def record() -> str:
        return f"{name} recorded"

    async def durable(state: State) -> State:
        return _told(await record() if plain else await durable_step(record, name=name)())

    return durable


def _ask(name: str) -> Any:
    async def ask(state: State) -> State:
        return _told(f"{name}: {interrupt(name)}")

    return ask


def _event(name: str) -> Any:
    async def event(state: State, config: RunnableConfig) -> State:
        came = await wait_for_event(name, match=config["configurable"]["thread_id"])
        assert came is not None
        return _told(f"{name}: {came.payload}")

    return event


def _turn(name: str) -> Any:
    async def turn(state: State) -> State:
        return _told(f"{name}#{_turns(name, state)}")

    return turn


def _turns(name: str, state: State) -> int:
    return sum(one.startswith(f"{name}#") for one in state.get("done", ()))


def _again(name: str, count: int) -> Any:
    return lambda state: name if _turns(name, state) < count else f"{name}-out"


def _spread(name: str, count: int) -> Any:
    return lambda state: [Send(f"{name}-branch", {"name": f"{name}.{number}"}) for number in range(count)]


async def _branch(state: Branch) -> State:
    return _told(state["name"])


async def _asking_branch(state: Branch) -> State:
    return _told(f"{state['name']}: {interrupt(state['name'])}")
