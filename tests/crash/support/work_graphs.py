"""Graphs for workers to drive. Whatever happens is a line in the file `log` of the state: when, by whom, what."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from standfast.graph import build_agent, wait_for_event
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel


class Work(TypedDict, total=False):
    log: str
    steps: int
    seconds: float
    done: int
    answer: str


@dataclass(frozen=True)
class Line:
    """What happened, when (by the machine's clock), in which process."""

    at: float
    pid: int
    what: str


def write(state: Work, what: str) -> None:
    with open(state["log"], "a") as log:
        log.write(f"{time.time()} {os.getpid()} {what}\n")


def read(path: Path) -> list[Line]:
    """What was written, oldest first; a line that is being written is left out."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    rows = [line.split(" ", 2) for line in whole.splitlines()]
    return [Line(float(at), int(pid), what) for at, pid, what in rows]


async def step(state: Work) -> Work:
    number = state.get("done", 0)
    write(state, f"begin {number}")
    await asyncio.sleep(state.get("seconds", 0.0))
    write(state, f"end {number}")
    return {"done": number + 1}


def more(state: Work) -> Literal["step", "__end__"]:
    return "step" if state["done"] < state.get("steps", 1) else END


def steps() -> StateGraph[Work]:
    """`steps` steps of `seconds` seconds each."""
    graph = StateGraph(Work)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", more)
    return graph


def nested() -> StateGraph[Work]:
    """The same steps, in a graph inside a node."""
    graph = StateGraph(Work)
    graph.add_node("inner", steps().compile())
    graph.add_edge(START, "inner")
    return graph


def one(node: Callable[[Work], object]) -> Callable[[], StateGraph[Work]]:
    """A graph of one node."""

    def build() -> StateGraph[Work]:
        graph = StateGraph(Work)
        graph.add_node("only", node)  # type: ignore[call-overload]
        graph.add_edge(START, "only")
        return graph

    return build


async def _block(state: Work) -> Work:
    """Holds the event loop up; beats come from elsewhere."""
    write(state, "begin")
    time.sleep(state["seconds"])  # noqa: ASYNC251 - that is the point
    write(state, "end")
    return {"done": 1}


def _in_a_thread(state: Work) -> Work:
    write(state, "begin")
    time.sleep(state["seconds"])
    write(state, "end")
    return {"done": 1}


async def _die(state: Work) -> Work:
    write(state, "died")
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


async def _raise(state: Work) -> Work:
    write(state, "raised")
    raise ValueError("it cannot be done")


async def _stubborn(state: Work) -> Work:
    """Works on through its cancellation, and says that all went well."""
    write(state, "begin")
    try:
        await asyncio.sleep(state["seconds"])
    except asyncio.CancelledError:
        write(state, "cancelled")
    write(state, "end")
    return {"done": 1}


async def _ask(state: Work) -> Work:
    return {"answer": interrupt("Which one?")}


async def _wait(state: Work) -> Work:
    event = await wait_for_event("go", timeout=60)
    return {"answer": "timed out" if event is None else str(event.payload)}


blocking = one(_block)
threaded = one(_in_a_thread)
dying = one(_die)
failing = one(_raise)
stubborn = one(_stubborn)
asking = one(_ask)
waiting = one(_wait)


def calling() -> StateGraph[Any, Any, Any, Any]:
    """The agent, with a model that says what it is told to."""
    return build_agent(model=ScriptedModel(), operations=OPERATIONS)
