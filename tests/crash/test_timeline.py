"""What a thread's timeline tells of a process that was killed, and of the one that took over."""

from __future__ import annotations

import signal

import pytest

from standfast.graph import Principal, Runtime, build_agent
from standfast.graph.pictures.diagram import Mark
from standfast.graph.pictures.faces import face_of
from tests.crash.support.processes import Nursery
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel, call, script
from tests.servers.process import ServerProcess

WHO = Principal.vouched("approver@example.com")


@pytest.mark.guarantee("G2")
async def test_the_timeline_shows_who_died_and_who_took_over(
    nursery: Nursery, shared_database_url: str, reports: ServerProcess
) -> None:
    env = {"STANDFAST_REPORTS_URL": f"{reports.url}/reports"}
    common = {"url": shared_database_url, "scripted": True, "env": env, "thread": "timeline"}
    request = script([call("jot", text="a")], [call("note", text="b")])
    killed = nursery.run("ask", **common, request=request, kill=["operation.done", 1])
    assert signal.SIGKILL == killed.signal
    graph = build_agent(model=ScriptedModel(), operations=OPERATIONS)
    async with Runtime(graph, database_url=shared_database_url) as runtime:
        dead = await runtime.apicture("timeline")
        assert Mark(1) == dead.marks["analysis",]
        assert {"operation"} == {path[0] for path, mark in dead.marks.items() if mark.now in ("running", "next")}, dead
        nursery.run("resume", **common)
        timeline = await runtime.atimeline("timeline")
        placed = await runtime.apicture("timeline")
    assert ["died", "waited"] == [one.end for one in timeline.told.drives]
    assert ["abandoned", "succeeded"] == [
        attempt.state for one in timeline.operations if one.name == "jot" for attempt in timeline.attempts[one.id]
    ]
    shown = face_of(timeline)
    assert shown is not None
    assert "died" in shown
    assert "2, takes over" in shown
    assert "waiting" == placed.marks["operation", "approval"].now
