"""What somebody meets who types what comes to mind first, against a real database."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.lease import claim
from standfast.graph import Runtime, all_of, event, timer
from tests.crash.support.scripted_model import call, script

Open = Callable[..., Any]
REQUEST = script([call("publish_report", title="T", body="B", quotations=[], sources=[])])


class State(TypedDict, total=False):
    text: str
    left: str
    right: str


def graph_of(**nodes: Any) -> StateGraph[State]:
    """All nodes side by side."""
    graph = StateGraph(State)
    for name, function in nodes.items():
        graph.add_node(name, function)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph


# -- deciding and answering with what one holds


async def test_an_approval_is_approved_by_itself_or_by_its_id(opened: Open) -> None:
    async with opened() as runtime:
        for thread, of in (("itself", lambda one: one), ("id", lambda one: one.id)):
            result = await runtime.ainvoke(REQUEST, thread_id=thread)
            assert "succeeded" == (await runtime.aresume(thread, approve=of(result.approvals[0]))).status


async def test_a_thread_has_its_id_by_the_name_that_results_and_approvals_have(opened: Open) -> None:
    async with opened() as runtime:
        result = await runtime.ainvoke(REQUEST, thread_id="t")
        (thread,) = await runtime.athreads()
    assert ["t", "t", "t"] == [one.thread_id for one in (thread, result, result.approvals[0])]


async def test_an_approval_that_shows_another_digest_than_what_is_open_decides_nothing(opened: Open) -> None:
    async with opened() as runtime:
        (approval,) = (await runtime.ainvoke(REQUEST, thread_id="t")).approvals
        with pytest.raises(errors.DigestMismatch):
            await runtime.aresume("t", approve=replace(approval, digest="0" * 64))
        assert "waiting" == (await runtime.aresume("t")).status


@pytest.mark.parametrize("verb", ["approve", "reject", "edit", "respond", "withdraw"])
@pytest.mark.parametrize("wrong", [True, 7, ["apr-1"], {"id": "apr-1"}])
async def test_what_is_no_approval_is_refused_in_one_sentence(opened: Open, verb: str, wrong: Any) -> None:
    async with opened() as runtime:
        with pytest.raises(errors.InvalidRequest, match=f"{verb}= takes an approval, such as .* or its id, not"):
            await runtime.aresume("t", **{verb: wrong})


async def test_questions_are_answered_by_themselves_or_by_their_ids(database_url: str) -> None:
    graph = graph_of(
        left=lambda state: {"left": interrupt("left?")}, right=lambda state: {"right": interrupt("right?")}
    )
    async with Runtime(graph, database_url=database_url) as runtime:
        for thread, of in (("themselves", lambda one: one), ("ids", lambda one: one.id)):
            result = await runtime.ainvoke({"text": "a"}, thread_id=thread)
            answers = {of(one): one.request.upper() for one in result.questions}
            done = await runtime.aresume(thread, answers)
            assert ("succeeded", "LEFT?", "RIGHT?") == (done.status, done.values["left"], done.values["right"])


async def test_langgraphs_ways_to_carry_on_are_told_ours(opened: Open) -> None:
    async with opened() as runtime:
        with pytest.raises(errors.InvalidRequest, match="what carries a thread on, or answers it, is resume"):
            await runtime.ainvoke(None, thread_id="t")


# -- what a result says


async def test_a_result_says_which_events_and_times_it_waits_for(database_url: str) -> None:
    async def both(state: State) -> State:
        await all_of(event("paid", match={"order": 7}), timer(until=datetime(2999, 1, 2, 3, 4, 5, tzinfo=UTC)))
        return {"left": "came"}

    async with Runtime(graph_of(both=both), database_url=database_url) as runtime:
        waiting = await runtime.ainvoke({"text": "a"}, thread_id="t")
        assert [
            ("event", "paid", {"match": {"order": 7}}, None),
            ("timer", None, None, datetime(2999, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ] == [(one.kind, one.name, one.request, one.until) for one in waiting.waits]
        assert waiting.waits == (await runtime.aresume("t")).waits
        assert "waits for an event 'paid' with {'order': 7}; waits for a timer until 2999-01-0" in repr(waiting)
        assert waiting is waiting.raise_for_status()


async def test_a_wait_that_ended_is_waited_for_no_more(database_url: str) -> None:
    async def both(state: State) -> State:
        await all_of(event("paid"), event("sent"))
        return {"left": "came"}

    async with Runtime(graph_of(both=both), database_url=database_url) as runtime:
        await runtime.ainvoke({"text": "a"}, thread_id="t")
        await runtime.aemit("paid", id="1")
        assert ["sent"] == [one.name for one in (await runtime.aresume("t")).waits]
        await runtime.aemit("sent", id="2")
        assert () == (await runtime.aresume("t")).waits


async def test_a_result_shows_its_values_on_one_short_line(database_url: str) -> None:
    def node(state: State) -> State:
        return {"left": "x" * 1000, "right": "two\nlines"}

    async with Runtime(graph_of(node=node), database_url=database_url) as runtime:
        shown = repr(await runtime.ainvoke({"text": "a"}, thread_id="t"))
        assert shown.startswith("<Result SUCCEEDED thread 't'; {'text': 'a', 'left': 'xxx")
        assert "\n" not in shown
        assert 300 > len(shown)


def test_a_runtime_says_what_it_is(database_url: str) -> None:
    graph = graph_of(node=lambda state: {})
    runtime = Runtime(graph, name="library", version="3", database_url=database_url)
    assert repr(runtime).startswith("<Runtime 'library' version '3', ")
    assert repr(runtime).endswith(", not open>")
    with runtime:
        assert repr(runtime).endswith(", open>")
    assert "embedded" in repr(Runtime(graph))
    assert "a URL that cannot be read" in repr(Runtime(graph, database_url="nonsense"))


# -- what a node raises


def fail(state: State) -> State:
    return {"left": state["title"]}  # type: ignore[typeddict-item]


async def afail(state: State) -> State:
    return fail(state)


LINE = fail.__code__.co_firstlineno + 1


@pytest.mark.parametrize("node", [fail, afail])
async def test_the_reason_names_the_node_and_the_line_and_is_kept(database_url: str, node: Any) -> None:
    expected = f"KeyError: 'title' (node 'analysis', test_newcomers.py:{LINE})"
    async with Runtime(graph_of(analysis=node), database_url=database_url) as runtime:
        failed = await runtime.ainvoke({"text": "a"}, thread_id="t")
        assert ("needs_attention", expected) == (failed.status, failed.reason)
        assert expected in repr(failed)
        timeline = await runtime.atimeline("t")
        assert expected == timeline.thread.reason == timeline.runs[0].reason
        assert [("needs_attention", expected)] == [(one.status, one.reason) for one in timeline.told.drives]


async def test_a_node_of_a_graph_in_a_graph_is_named_with_the_way_to_it(database_url: str) -> None:
    graph = graph_of(outer=graph_of(inner=afail).compile())
    async with Runtime(graph, database_url=database_url) as runtime:
        failed = await runtime.ainvoke({"text": "a"}, thread_id="t")
        assert f"KeyError: 'title' (node 'outer/inner', test_newcomers.py:{LINE})" == failed.reason


async def test_a_value_that_cannot_be_stored_names_its_node(database_url: str) -> None:
    async def quick(state: State) -> State:
        return {"right": "b"}

    def locked(state: State) -> Any:
        return {"left": threading.Lock()}

    async with Runtime(graph_of(quick=quick, locked=locked), database_url=database_url) as runtime:
        failed = await runtime.ainvoke({"text": "a"}, thread_id="t")
        assert str(failed.reason).startswith("UnstorableValue: state['left'] is a _thread:lock")
        assert str(failed.reason).endswith(" (node 'locked')")


async def test_a_script_notices_what_did_not_succeed(database_url: str) -> None:
    async with Runtime(graph_of(analysis=fail), database_url=database_url) as runtime:
        failed = await runtime.ainvoke({"text": "a"}, thread_id="t")
        with pytest.raises(errors.RunFailed, match="the run of thread 't' needs attention: KeyError") as raised:
            failed.raise_for_status()
        assert isinstance(raised.value.__cause__, KeyError)
        assert failed is raised.value.result
        cancelled = await runtime.acancel("t")
        with pytest.raises(errors.RunFailed, match="is cancelled"):
            cancelled.raise_for_status()


def leave(state: State) -> State:
    sys.exit(3)


async def aleave(state: State) -> State:
    sys.exit(3)


def interrupted(state: State) -> State:
    raise KeyboardInterrupt


async def ainterrupted(state: State) -> State:
    raise KeyboardInterrupt


@pytest.mark.parametrize("node", [leave, aleave, interrupted, ainterrupted])
def test_a_node_that_would_end_the_process_is_a_failed_node(
    database_url: str, node: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    line = node.__code__.co_firstlineno + 1
    deep = graph_of(outer=graph_of(node=node).compile())
    for graph, place in ((graph_of(node=node), "node"), (deep, "outer/node")):
        with Runtime(graph, database_url=database_url) as runtime:
            failed = runtime.invoke({"text": "a"}, thread_id=place)
            assert "needs_attention" == failed.status
            assert str(failed.reason).startswith("NodeExited: it raised ")
            assert str(failed.reason).endswith(f"(node {place!r}, test_newcomers.py:{line})")
            assert isinstance(failed.error, errors.NodeExited)
            assert "needs_attention" == runtime.resume(place).status  # the runtime goes on
    assert ("", "") == capfd.readouterr()


async def test_a_guarded_graph_is_a_copy(database_url: str) -> None:
    compiled = graph_of(node=leave).compile()
    Runtime(compiled, database_url=database_url)
    with pytest.raises(SystemExit):
        compiled.invoke({"text": "a"})


# -- waiting for somebody else


async def test_who_is_waited_for_is_told_and_that_he_seems_to_be_dead(
    database_url: str, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="standfast.following")
    async with Runtime(graph_of(node=lambda state: {"left": "b"}), database_url=database_url) as runtime:
        await runtime.asubmit({"text": "a"}, thread_id="t")
        await claim(runtime.store.database, "t", seconds=runtime.lease_seconds)  # and never renewed
        resuming = asyncio.create_task(runtime.aresume("t"))
        await told(caplog, "INFO", "thread 't' is driven by ")
        assert not [one for one in caplog.records if one.levelname == "WARNING"]
        clock.move(timedelta(seconds=runtime.lease_seconds * 0.6))
        await told(caplog, "WARNING", "may be dead")
        clock.move(timedelta(seconds=runtime.lease_seconds))
        assert "succeeded" == (await resuming).status
        assert 2 == len(caplog.records)


async def test_nothing_is_told_where_nobody_is_waited_for(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Runtime(graph_of(node=lambda state: {"left": "b"}), database_url=database_url) as runtime:
        await runtime.asubmit({"text": "a"}, thread_id="t")
        assert "succeeded" == (await runtime.aresume("t")).status
    assert [] == [one.getMessage() for one in caplog.records if one.name.startswith("standfast")]


async def told(caplog: pytest.LogCaptureFixture, level: str, said: str) -> None:
    """Wait until that was logged."""
    async with asyncio.timeout(30):
        while not any(one.levelname == level and said in one.getMessage() for one in caplog.records):
            await asyncio.sleep(0.05)


# -- what was forgotten is nobody's consent


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    ("verb", "others"),
    [("edit", {}), ("edit", {"changes": {}}), ("approve", {"changes": {"title": "U"}}), ("respond", {})],
)
async def test_a_decision_that_lacks_something_or_has_too_much_decides_nothing(
    opened: Open, verb: str, others: dict[str, Any]
) -> None:
    async with opened() as runtime:
        result = await runtime.ainvoke(REQUEST, thread_id="t")
        with pytest.raises(errors.InvalidRequest, match=r"go together"):
            await runtime.aresume("t", **{verb: result.approvals[0]}, **others)
        assert ["open"] == [one.state for one in await runtime.aapprovals(thread_id="t")]


async def test_changes_without_an_edit_are_refused(opened: Open) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(REQUEST, thread_id="t")
        with pytest.raises(errors.InvalidRequest, match=r"go together"):
            await runtime.aresume("t", changes={"title": "U"})


async def test_a_name_for_a_principal_is_refused_in_one_sentence(opened: Open) -> None:
    async with opened() as runtime:
        with pytest.raises(errors.InvalidRequest, match=r"Principal\.vouched"):
            await runtime.ainvoke(REQUEST, as_="kim")


@pytest.mark.parametrize(
    "given",
    [{"name": ""}, {"name": 3}, {"version": 2}, {"takes_over": "1"}],
    ids=["no name", "a number for a name", "a number for a version", "a text of versions"],
)
def test_what_a_graph_is_called_is_text(given: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest):
        Runtime(graph_of(left=lambda _: {}), **given)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
def test_a_graph_with_breakpoints_is_refused_and_not_half_done(nested: bool, when: str) -> None:
    stops: dict[str, Any] = {when: ["left"]}
    compiled: Any = graph_of(left=lambda _: {"left": "l"}).compile(**stops)
    with pytest.raises(errors.InvalidRequest, match=r"breakpoints \(left\)"):
        Runtime(graph_of(inner=compiled) if nested else compiled)


def test_what_is_no_graph_is_refused_in_one_sentence() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"StateGraph"):
        Runtime(lambda state: state)  # type: ignore[arg-type]


async def test_a_field_that_the_state_has_not_is_refused_before_anything_is_accepted(database_url: str) -> None:
    async with Runtime(graph_of(left=lambda _: {}), database_url=database_url) as runtime:
        with pytest.raises(errors.InvalidRequest, match=r"no field 'txet'; it has left, right, text"):
            await runtime.ainvoke({"txet": "typed in haste"})
        assert [] == list(await runtime.athreads())


async def test_one_path_is_not_taken_letter_by_letter(opened: Open) -> None:
    async with opened() as runtime:
        with pytest.raises(errors.InvalidRequest, match=r"list of paths"):
            await runtime.ainvoke("What?", documents="/tmp")
