"""A deploy that lost what a thread is at is refused by name, and the thread is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

from standfast.checkpoint import errors
from standfast.graph import Runtime

pytestmark = pytest.mark.guarantee("G10")

Query = Callable[..., list[tuple[Any, ...]]]


class Letters(TypedDict, total=False):
    answer: str
    fail: bool


def graph(waiting: str = "ask", *, failing: str | None = None) -> StateGraph[Letters]:
    """`first`, then a node that asks, then `last`; the names can be changed, as a deploy changes them."""

    async def first(state: Letters) -> Letters:
        return {}

    async def ask(state: Letters) -> Letters:
        return {"answer": interrupt("well?")}

    async def last(state: Letters) -> Letters:
        if failing is not None:
            raise RuntimeError(failing)
        return {}

    made = StateGraph(Letters)
    made.add_node("first", first)
    made.add_node(waiting, ask)
    made.add_node("last", last)
    made.add_edge(START, "first")
    made.add_edge("first", waiting)
    made.add_edge(waiting, "last")
    made.add_edge("last", END)
    return made


def _rows(query: Query, thread: str) -> list[Any]:
    """Everything that a drive could change, but the lease's number."""
    tables = ("checkpoints", "checkpoint_writes", "checkpoint_blobs", "waits", "approvals", "operations")
    rows = [query(f"select * from {table} where thread_id = %s order by 1, 2, 3, 4", thread) for table in tables]
    return [*rows, query("select state, reason, outcome from runs where thread_id = %s", thread)]


async def test_a_thread_whose_waiting_node_is_gone_is_refused_and_works_again_with_the_old_graph(
    database_url: str, query: Query
) -> None:
    async with Runtime(graph(), database_url=database_url) as before:
        waiting = await before.ainvoke({}, thread_id="renamed")
    assert "waiting" == waiting.status
    [question] = waiting.questions

    async with Runtime(graph("ask_politely"), database_url=database_url) as deployed:
        await deployed.store.waits.answer("renamed", question.id, "yes", "somebody")
        kept = _rows(query, "renamed")
        with pytest.raises(errors.GraphChanged) as told:
            await deployed.aresume("renamed")
        assert ("ask", True) == (told.value.missing, "ask_politely" in told.value.nodes)
        assert "renamed" in str(told.value)
        assert kept == _rows(query, "renamed")
        with pytest.raises(errors.GraphChanged):
            await deployed.aresume("renamed")

    async with Runtime(graph(), database_url=database_url) as before:
        end = await before.aresume("renamed")

    assert ("succeeded", "yes") == (end.status, end.values["answer"])


async def test_a_thread_that_stopped_before_a_node_that_is_gone_is_refused_too(database_url: str, query: Query) -> None:
    async with Runtime(graph(failing="down"), database_url=database_url) as before:
        await before.ainvoke({}, thread_id="stopped")
        stopped = await before.aresume("stopped", "yes")
    assert "needs_attention" == stopped.status

    renamed = StateGraph(Letters)
    for name in ("first", "ask", "final"):
        renamed.add_node(name, lambda state: {})
    renamed.add_edge(START, "first")
    renamed.add_edge("first", "ask")
    renamed.add_edge("ask", "final")
    kept = _rows(query, "stopped")[:-1]
    async with Runtime(renamed, database_url=database_url) as deployed:
        with pytest.raises(errors.GraphChanged, match="'last'"):
            await deployed.aresume("stopped")
    assert kept == _rows(query, "stopped")[:-1]

    async with Runtime(graph(), database_url=database_url) as mended:
        end = await mended.aresume("stopped")

    assert "succeeded" == end.status


async def test_a_node_that_is_gone_inside_a_subgraph_call_in_flight_is_found(database_url: str) -> None:
    def sending(inner_name: str) -> StateGraph[Letters]:
        async def ask(state: Letters) -> Letters:
            return {"answer": interrupt("well?")}

        inner = StateGraph(Letters)
        inner.add_node(inner_name, ask)
        inner.add_edge(START, inner_name)
        outer = StateGraph(Letters)
        outer.add_node("call", inner.compile())
        outer.add_conditional_edges(START, lambda state: [Send("call", state)], ["call"])
        return outer

    async with Runtime(sending("ask"), database_url=database_url) as before:
        waiting = await before.ainvoke({}, thread_id="inner")
        await before.store.waits.answer("inner", waiting.questions[0].id, "yes", "somebody")
    async with Runtime(sending("enquire"), database_url=database_url) as deployed:
        with pytest.raises(errors.GraphChanged, match="'call/ask'"):
            await deployed.aresume("inner")
    async with Runtime(sending("ask"), database_url=database_url) as before:
        end = await before.aresume("inner")

    assert ("succeeded", "yes") == (end.status, end.values["answer"])


@pytest.mark.guarantee("G2")
async def test_a_sibling_that_wrote_nothing_counts_as_finished_beside_an_open_question(database_url: str) -> None:
    """Else the driver would go round for ever."""
    ran: list[str] = []

    async def ask(state: Letters) -> Letters:
        return {"answer": interrupt("well?")}

    async def silent(state: Letters) -> None:
        ran.append("silent")

    made = StateGraph(Letters)
    made.add_node("ask", ask)
    made.add_node("silent", silent)
    made.add_edge(START, "ask")
    made.add_edge(START, "silent")
    async with Runtime(made, database_url=database_url) as runtime:
        waiting = await runtime.ainvoke({}, thread_id="silent")
        end = await runtime.aresume("silent", None)

    assert ("waiting", "succeeded") == (waiting.status, end.status)
    assert ["silent"] == ran
