"""Two versions of one graph beside each other: whose thread it is, and who is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.graph import Runtime
from standfast.graph.worker import Worker

Query = Callable[..., list[tuple[Any, ...]]]


class Note(TypedDict, total=False):
    text: str
    by: str


async def ask(state: Note) -> Note:
    return {"text": interrupt("Shall I?")}


def made(version: str, *, nodes: tuple[str, ...] = ("sign",)) -> StateGraph[Note]:
    """Asks, then goes through the nodes, each of which says which version it is of."""

    async def sign(state: Note) -> Note:
        return {"by": version}

    graph = StateGraph(Note)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    for before, name in zip(("ask", *nodes), nodes, strict=False):
        graph.add_node(name, sign)
        graph.add_edge(before, name)
    return graph


@pytest.fixture
async def first(database_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(made("1"), database_url=database_url, version="1", lease_seconds=2.0) as runtime:
        yield runtime


def second(first: Runtime, graph: StateGraph[Note] | None = None, **options: Any) -> Runtime:
    """Version 2 beside the first one: by default of the same shape."""
    runtime = Runtime(graph or made("2"), version="2", lease_seconds=2.0, **options)
    runtime.join(first)
    return runtime


def changed() -> StateGraph[Note]:
    return made("2", nodes=("sign", "file"))


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - what another task does sets no event here
            await asyncio.sleep(0.02)


async def test_a_bell_that_nobody_answers_under_one_version_keeps_no_bell_of_another_from_ringing(
    first: Runtime, query: Query
) -> None:
    await first.asubmit({}, thread_id="t")  # its bell hangs for ever: no worker serves version 1
    await first.acancel("t")
    await second(first).asubmit({}, thread_id="t")

    bells = query("select distinct queue_name from procrastinate_jobs where status = 'todo' order by 1")
    assert [("agent@1",), ("agent@2",)] == bells
