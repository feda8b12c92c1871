"""What a caller is told: what a thread waits for, what a node raised and where, and how an option is really called."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from standfast.checkpoint import errors
from standfast.graph import Principal, Runtime, sleep, wait_for_event
from standfast.graph.cli.app import run_app
from tests.crash.support.scripted_model import call, script

ANN = Principal.vouched("ann@example.com")


class State(TypedDict, total=False):
    order: int
    paid: Any


def graph_of(node: Callable[..., Any], name: str = "node") -> StateGraph[State]:
    graph = StateGraph(State)
    graph.add_node(name, node)
    graph.add_edge(START, name)
    return graph


async def collect(state: State) -> State:
    event = await wait_for_event("paid", match={"order": state["order"]}, timeout=3600)
    return {"paid": event and event.payload}


async def test_a_result_says_which_event_is_waited_for_and_until_when(database_url: str) -> None:
    async with Runtime(graph_of(collect), database_url=database_url, name="shop") as runtime:
        result = await runtime.ainvoke({"order": 7}, thread_id="t")
    assert {("event", "paid")} == {(one.kind, one.name) for one in result.waits if one.kind == "event"}
    assert "waits for an event 'paid'" in repr(result)
    assert "Waits for an event" in (result._repr_html_() or "")


async def test_a_result_says_until_when_a_thread_sleeps(database_url: str) -> None:
    async def doze(state: State) -> State:
        await sleep(for_=3600)
        return {}

    async with Runtime(graph_of(doze), database_url=database_url) as runtime:
        result = await runtime.ainvoke({"order": 7}, thread_id="t")
    [timer] = result.waits
    assert timer.until is not None
    assert f"waits for a timer until {timer.until.astimezone():%Y-%m-%d}" in repr(result)


async def test_a_result_shows_its_values(database_url: str) -> None:
    async def pay(state: State) -> State:
        return {"paid": True}

    async with Runtime(graph_of(pay), database_url=database_url) as runtime:
        assert "{'order': 7, 'paid': True}" in repr(await runtime.ainvoke({"order": 7}, thread_id="t"))


async def test_what_a_node_raised_is_told_with_the_node_and_the_line(database_url: str) -> None:
    async def estimate(state: State) -> State:
        return {"paid": state["title"]}  # type: ignore[typeddict-item]

    line = inspect.getsourcelines(estimate)[1] + 1
    outer = StateGraph(State)
    outer.add_node("review", graph_of(estimate, "estimate").compile())
    outer.add_edge(START, "review")
    async with Runtime(outer, database_url=database_url) as runtime:
        result = await runtime.ainvoke({"order": 7}, thread_id="t")
    assert f"KeyError: 'title' (node 'review/estimate', test_results.py:{line})" == result.reason


async def test_an_approval_itself_can_be_approved_as_it_was_seen(opened: Callable[..., Any]) -> None:
    async with opened() as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="hello")]), thread_id="t", as_=ANN)
        edited = await runtime.aapprovals()
        result = await runtime.aresume("t", approve=edited[0], as_=ANN)
        assert "succeeded" == result.status
        with pytest.raises(errors.AlreadyDecided):
            await runtime.aresume("t", approve=waiting.approvals[0], as_=ANN)


async def test_an_option_that_there_is_not_is_refused_with_those_that_there_are(database_url: str) -> None:
    async with Runtime(graph_of(collect), database_url=database_url) as runtime:
        with pytest.raises(errors.UsageError, match=r"LangGraph's config; give thread_id='t' .*client_key"):
            await runtime.ainvoke({"order": 7}, config={"configurable": {"thread_id": "t"}})


def test_a_blocking_method_tells_the_options_of_its_twin() -> None:
    assert "`client_key`" in (Runtime.invoke.__doc__ or "")
    assert "approve" in inspect.signature(Runtime.resume).parameters
    assert list(inspect.signature(Runtime.aemit).parameters) == list(inspect.signature(Runtime.emit).parameters)


async def test_an_event_can_be_told_of_on_the_command_line(
    database_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with Runtime(graph_of(collect), database_url=database_url) as runtime:
        await runtime.ainvoke({"order": 7}, thread_id="t")
        command = ["--database", database_url, "emit", "paid", '{"by": "card"}', "--match", '{"order": 7}']
        assert 0 == await asyncio.to_thread(run_app, [*command, "--id", "payment-99", "--json"])
        said = json.loads(capfd.readouterr().out)
        assert {"id": "payment-99", "name": "paid", "waits_ended": 1} == {
            key: said[key] for key in ("id", "name", "waits_ended")
        }
        assert {"by": "card"} == (await runtime.aresume("t")).values["paid"]
        assert 0 == await asyncio.to_thread(run_app, [*command, "--id", "payment-99"])
        assert "was emitted before" in capfd.readouterr().err
        assert 2 == await asyncio.to_thread(run_app, [*command, "--ttl", "soon"])


async def test_a_runtime_under_a_wrong_name_does_not_wait_for_ever(database_url: str) -> None:
    async with (
        Runtime(graph_of(collect), database_url=database_url, name="library") as right,
        Runtime(graph_of(collect), database_url=database_url, name="libary") as wrong,
    ):
        await right.asubmit({"order": 7}, thread_id="t")
        with pytest.raises(errors.GraphNotServed, match="name='library'"):
            await asyncio.wait_for(wrong.aresume("t"), 30)
        assert "queued" == (await wrong.aresume("t", follow=False)).status
        assert "waiting" == (await right.aresume("t")).status


def test_doctor_names_a_variable_that_nobody_reads(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STANDFAST_DATABASEURL", database_url)
    run_app(["--database", database_url, "doctor"])
    assert "STANDFAST_DATABASEURL is no setting; STANDFAST_DATABASE_URL is" in capfd.readouterr().out


def test_a_request_that_is_nearly_json_is_refused_and_starts_nothing(
    database_url: str, query: Callable[..., list[tuple[Any, ...]]], capfd: pytest.CaptureFixture[str]
) -> None:
    place = "tests.crash.support.own_graphs:router"
    assert 2 == run_app(["--database", database_url, "run", "{'order': 7", "--graph", place])
    assert "begins as a JSON object" in capfd.readouterr().err
    assert [] == query("select id from threads")


def test_a_state_is_not_shown_by_the_fields_of_another_graph(
    database_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Runtime(graph_of(collect), database_url=database_url, name="tests.some:graph") as runtime:
        runtime.invoke({"order": 7}, thread_id="t")
    for command in (["state", "t"], ["diff", "t", "t"]):
        assert 2 == run_app(["--database", database_url, *command])
        assert "add --graph tests.some:graph" in capfd.readouterr().err
