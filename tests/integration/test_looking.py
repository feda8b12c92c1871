"""Looking at real threads: pictures, timelines, ledgers and buttons, with the network out of reach."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from standfast.checkpoint import errors
from standfast.graph import Principal, Runtime, build_agent, decide_here, picture_of
from standfast.graph.pictures.diagram import Mark
from tests.crash.support.scripted_model import call, script

Open = Callable[..., Any]
WHO = Principal.vouched("approver@example.com")
REQUEST = script([call("publish_report", title="T", body="B", quotations=[], sources=[])])


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Whatever reaches for the network is refused, and kept here."""
    asked: list[Any] = []

    def refuse(*given: Any, **_: Any) -> Any:
        asked.append(given[-1])
        raise AssertionError(f"a display asked the network: {given}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    yield asked
    assert [] == asked


def shown(value: Any) -> dict[str, Any]:
    """The value as a notebook shows it."""
    from IPython.core.formatters import DisplayFormatter

    data, _ = DisplayFormatter().format(value)
    return dict(data)


async def test_no_display_of_ours_asks_the_network(opened: Open, request: pytest.FixtureRequest) -> None:
    async with opened() as runtime:
        result = await runtime.ainvoke(REQUEST, thread_id="t")
        values = [
            result,
            result.approvals[0],
            await runtime.atimeline("t"),
            await runtime.aledger("t"),
            await runtime.apicture(),
            await runtime.apicture("t"),
            (await runtime.athreads())[0],
            await runtime.ahistory("t"),
            await runtime.adiff(("t", (await runtime.ahistory("t"))[-1].checkpoint_id), "t"),
        ]
        values += [build_agent(), build_agent().compile(), picture_of(build_agent())]
        request.getfixturevalue("no_network")
        for value in values:
            assert {"text/plain", "text/html"} <= set(shown(value)), type(value)
            assert "standfast" in shown(value)["text/html"]


async def test_langgraphs_own_picture_would_have_asked_the_network(no_network: list[Any]) -> None:
    from langgraph.graph import END, START, StateGraph

    graph: Any = StateGraph(dict)
    graph.add_node("a", lambda state: state)
    graph.add_edge(START, "a")
    graph.add_edge("a", END)
    with pytest.raises(Exception, match=r".*"):
        graph.compile().get_graph().draw_mermaid_png(max_retries=0)
    assert no_network
    no_network.clear()


async def test_the_picture_shows_where_a_thread_waits_and_what_it_has_done(opened: Open) -> None:
    async with opened() as runtime:
        result = await runtime.ainvoke(REQUEST, thread_id="t")
        waiting = (await runtime.apicture("t")).marks
        await runtime.aresume("t", approve=result.approvals[0].id, as_=WHO)
        done = (await runtime.apicture("t")).marks
    assert "waiting" == waiting["operation", "approval"].now == waiting["operation",].now
    assert Mark(1) == waiting["analysis",]
    assert (Mark(2), Mark(1), Mark(1)) == (done["analysis",], done["operation", "operate"], done["record",])
    assert {""} == {mark.now for mark in done.values()}


async def test_a_picture_of_another_graphs_thread_is_refused(opened: Open, database_url: str) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(script("hello"), thread_id="t")
        async with Runtime(build_agent(), database_url=database_url, name="other") as other:
            with pytest.raises(errors.InvalidRequest):
                await other.apicture("t")


@pytest.mark.one_drive("the drives are counted")
async def test_the_timeline_tells_of_each_drive_and_of_who_decided(opened: Open) -> None:
    async with opened() as runtime:
        result = await runtime.ainvoke(REQUEST, thread_id="t")
        await runtime.aresume("t", approve=result.approvals[0].id, as_=WHO)
        timeline = await runtime.atimeline("t")
    assert ["waited", "ended"] == [one.end for one in timeline.told.drives]
    text = shown(timeline)["text/html"]
    assert "approved by approver@example.com" in text
    assert "drives: 1 waited, 2 ended" in repr(timeline)


@pytest.mark.parametrize(("button", "status", "answer"), [(0, "approved", "published"), (1, "rejected", "rejected")])
def test_a_button_decides_and_shows_what_came_of_it(
    database_url: str, reports_server: Any, button: int, status: str, answer: str
) -> None:
    from standfast.checkpoint.settings import Settings
    from tests.crash.support.scripted_model import ScriptedModel

    settings = Settings(reports_url=f"{reports_server.url}/reports")
    with Runtime(build_agent(model=ScriptedModel()), database_url=database_url, settings=settings) as runtime:
        approval = runtime.invoke(REQUEST, thread_id="t").approvals[0]
        box = decide_here(runtime, approval, as_=WHO)
        card, controls = box.children
        assert approval.id in card.value
        controls.children[2].value = "because"
        controls.children[button].click()
        (decided,) = runtime.approvals(thread_id="t", state=None)
        assert (status, "approver@example.com", "because") == (decided.state, decided.decided_by, decided.reason)
        assert "succeeded" == runtime.result("t").status
        assert ">succeeded<" in card.value
        assert "none" == controls.layout.display


def test_without_widgets_the_lines_that_decide_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str
) -> None:
    import sys

    from tests.crash.support.scripted_model import ScriptedModel

    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with Runtime(build_agent(model=ScriptedModel()), database_url=database_url) as runtime:
        approval = runtime.invoke(REQUEST, thread_id="t").approvals[0]
        assert decide_here(runtime, approval) is None
        line, _ = capsys.readouterr().out.splitlines()
        assert "succeeded" == eval(line, {"runtime": runtime}).status


async def test_both_forms_work_in_a_running_loop(database_url: str) -> None:
    from tests.crash.support.scripted_model import ScriptedModel

    with Runtime(build_agent(model=ScriptedModel()), database_url=database_url) as runtime:
        result = runtime.invoke(REQUEST, thread_id="blocking")
        assert "succeeded" == runtime.resume("blocking", reject=result.approvals[0].id).status
    async with Runtime(build_agent(model=ScriptedModel()), database_url=database_url) as runtime:
        result = await runtime.ainvoke(REQUEST, thread_id="awaited")
        assert "succeeded" == (await runtime.aresume("awaited", reject=result.approvals[0].id)).status
