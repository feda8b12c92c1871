"""The graphs that are driven under fire: the main agent and small ones. Each end can be told before it begins.

Effects go to the receiver at `url`, each under a key of its own, or into the table public.entries.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import random
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

import httpx
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

from standfast.graph import (
    Effect,
    OperationContext,
    Policy,
    RetryPolicy,
    all_of,
    build_agent,
    durable_step,
    event,
    first_of,
    operation,
    sleep,
    timer,
    wait_for_event,
)
from tests.crash.chaos.unfenced import take_out_if_told
from tests.crash.support.scripted_model import ScriptedModel, call, script

PLACE = "tests.crash.chaos.graphs"
ONCE = "not at the first attempt"
ALWAYS = "it cannot be done"
_LONGEST_NAP = 0.2  # seconds


class Job(TypedDict, total=False):
    key: str
    url: str
    size: int
    item: int
    done: Annotated[list[Any], operator.add]


async def _nap() -> None:
    await asyncio.sleep(random.random() * _LONGEST_NAP)


async def _note(url: str, thread: str, text: str, key: str | None = None) -> int:
    """Have the effect `text` at the receiver; 201 if it is the first of its key."""
    headers = {"Idempotency-Key": key or f"{thread}/{text}"}
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(url, json={"text": text, "thread": thread}, headers=headers)
    answer.raise_for_status()
    return answer.status_code


def _graph(**nodes: Any) -> StateGraph[Job]:
    """Nodes one after the other."""
    graph = StateGraph(Job)
    names = [START, *nodes, END]
    for name, node in nodes.items():
        graph.add_node(name, node)
    for one, other in itertools.pairwise(names):
        graph.add_edge(one, other)
    return graph


async def _begin(state: Job) -> Job:
    await _nap()
    return {}


# -- branches at a time


async def _branch(state: Job) -> Job:
    await _nap()
    await _note(state["url"], state["key"], f"branch {state['item']}")
    await _nap()
    return {"done": [state["item"]]}


def _branches(state: Job) -> list[Send]:
    return [Send("branch", {"key": state["key"], "url": state["url"], "item": item}) for item in range(state["size"])]


def parallel() -> StateGraph[Job]:
    """`size` branches at a time, each with an effect."""
    graph = StateGraph(Job)
    graph.add_node("begin", _begin)
    graph.add_node("branch", _branch)
    graph.add_node("join", _begin)
    graph.add_edge(START, "begin")
    graph.add_conditional_edges("begin", _branches, ["branch"])
    graph.add_edge("branch", "join")
    graph.add_edge("join", END)
    return graph


# -- loops


async def _step(state: Job) -> Job:
    number = len(state.get("done", ()))
    await _nap()
    await durable_step(_note)(state["url"], state["key"], f"step {number}")
    return {"done": [number]}


def _more(state: Job) -> Literal["step", "__end__"]:
    return "step" if len(state["done"]) < state["size"] else END


def loop() -> StateGraph[Job]:
    """`size` steps, each with an effect."""
    graph = StateGraph(Job)
    graph.add_node("step", _step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", _more)
    return graph


def nested() -> StateGraph[Job]:
    """The loop as a graph inside a node."""
    return _graph(begin=_begin, inner=loop().compile(), end=_begin)


# -- waits


async def _two_events(state: Job) -> Job:
    first = await wait_for_event("first", match=state["key"])
    second = await wait_for_event("second", match=state["key"])
    assert first is not None
    assert second is not None
    return {"done": [first.payload, second.payload]}


async def _both_events(state: Job) -> Job:
    ended = await all_of(event("third", match=state["key"]), event("fourth", match=state["key"]))
    return {"done": [one.event.payload for one in ended if one.event is not None]}


async def _doze(state: Job) -> Job:
    await sleep(for_=random.random())
    return {}


async def _race(state: Job) -> Job:
    ended = await first_of(event("never", match=state["key"]), timer(for_=0.5))
    return {"done": ["the timer" if ended.timed_out else "an event"]}


def waiting() -> StateGraph[Job]:
    """Times and events, one after the other, both of two, the first of two."""
    return _graph(doze=_doze, two=_two_events, both=_both_events, race=_race)


async def _ask(state: Job) -> Job:
    return {"done": [[state["item"], interrupt({"item": state["item"]})]]}


def asking() -> StateGraph[Job]:
    """`size` questions at a time."""
    graph = StateGraph(Job)
    graph.add_node("begin", _begin)
    graph.add_node("branch", _ask)
    graph.add_edge(START, "begin")
    graph.add_conditional_edges("begin", _branches, ["branch"])
    graph.add_edge("branch", END)
    return graph


# -- failures


async def _fail_once(state: Job) -> Job:
    """Raises the first time; it is the receiver who remembers it."""
    if await _note(state["url"], state["key"], "tried") == 201:
        raise ValueError(ONCE)
    return {"done": ["tried again"]}


def failing() -> StateGraph[Job]:
    """A node that raises once: somebody has to make it go on."""
    return _graph(begin=_begin, fail=_fail_once, end=_begin)


async def _fail(state: Job) -> Job:
    raise ValueError(ALWAYS)


def hopeless() -> StateGraph[Job]:
    """A node that always raises: somebody has to cancel it."""
    return _graph(begin=_begin, fail=_fail)


# -- the main agent


# Whoever is stopped for less than an attempt's deadline, and goes on, must not be asked about before it.
DEADLINE = 6.0  # seconds


async def _post(text: str, context: OperationContext) -> str:
    url = context.run.settings.reports_url
    assert url is not None
    await _nap()
    await _note(url, context.thread_id, text, context.operation_id)
    await _nap()
    return text


@operation(policy=Policy(effect=Effect.IDEMPOTENT, timeout=DEADLINE))
async def jot(text: str, context: OperationContext) -> str:
    """Write a note without asking."""
    return await _post(text, context)


@operation(policy=Policy(effect=Effect.IDEMPOTENT, timeout=DEADLINE, approval=True))
async def note(text: str, context: OperationContext) -> str:
    """Write a note, which a person must allow."""
    return await _post(text, context)


@operation(policy=Policy(effect=Effect.IDEMPOTENT, timeout=DEADLINE, retry=RetryPolicy(4, 0.2)))
async def insist(text: str, context: OperationContext) -> str:
    """Write a note at the second attempt; the receiver remembers that there was a first."""
    url = context.run.settings.reports_url
    assert url is not None
    if await _note(url, context.thread_id, f"{text}, at first", f"{context.operation_id} at first") == 201:
        raise ConnectionError("nobody there")
    return await _post(text, context)


@operation(policy=Policy(effect=Effect.AT_MOST_ONCE, timeout=DEADLINE))
async def shout(text: str, context: OperationContext) -> str:
    """Write a note where a second one would be heard too."""
    return await _post(text, context)


@operation(policy=Policy(effect=Effect.TRANSACTIONAL, timeout=DEADLINE))
async def enter(text: str, context: OperationContext) -> str:
    """Enter a line into the table `entries` of the same database."""
    await context.connection.execute("insert into public.entries (text) values (%s)", (text,))
    await _nap()
    return text


def agent() -> Any:
    """The built-in agent, with the scripted model."""
    take_out_if_told()
    return build_agent(model=ScriptedModel(), operations=[jot, note, insist, shout, enter])


def errand(key: str) -> str:
    """What the agent is asked: every kind of effect, with a person in between."""
    return script(
        [call("jot", text="jotted"), call("enter", text=f"{key}: entered"), call("jot", text="jotted too")],
        [call("note", text="noted"), call("insist", text="insisted")],
        [call("shout", text="shouted")],
        [call("enter", text=f"{key}: entered last")],
    )


GRAPHS: Sequence[str] = ("agent", "parallel", "loop", "nested", "waiting", "asking", "failing", "hopeless")
