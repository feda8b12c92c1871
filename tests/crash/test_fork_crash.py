"""A fork whose maker dies is whole, or is never gone on with; one whose driver dies asks and calls nobody again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.crash.support.processes import Nursery
from tests.crash.support.scripted_model import call, script
from tests.servers.process import ServerProcess


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("point", ["saver.fenced", "saver.committed"])
def test_a_fork_whose_maker_died_before_its_values_were_written_does_not_go_on_without_them(
    nursery: Nursery, shared_database_url: str, reports: ServerProcess, point: str
) -> None:
    source, target = f"source-{point}", f"fork-{point}"
    common = {
        "url": shared_database_url,
        "scripted": True,
        "env": {"STANDFAST_REPORTS_URL": f"{reports.url}/reports"},
    }
    request = script([call("jot", text=f"done at {point}")], "Done.")
    assert "succeeded" == nursery.run("ask", thread=source, request=request, **common).value["did"]["status"]
    order = {"thread": source, "to": target, "at": -2, "values": script("Something else.")}
    assert signal.SIGKILL == nursery.run("fork", kill=(point, 1), **order, **common).signal
    left = nursery.run("resume", thread=target, **common).value["did"]
    assert "cancelled" == left["status"]
    assert "did not come to write its values" in left["reason"]
    made = nursery.run("fork", **{**order, "to": f"{target}-again"}, **common).value["did"]
    done = nursery.run("resume", thread=made, **common).value["did"]
    assert ("succeeded", "Something else.") == (done["status"], done["outcome"]["answer"])


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("point", ["node.approval", "saver.committed", "node.operate"])
@pytest.mark.parametrize("approved", [True, False])
def test_a_fork_that_may_only_read_and_is_killed_between_its_question_and_its_answer_asks_and_calls_nobody(
    nursery: Nursery, shared_database_url: str, tmp_path: Path, point: str, approved: bool
) -> None:
    source, target, log = f"noticed-{point}-{approved}", f"read-{point}-{approved}", tmp_path / "log"
    common = {
        "url": shared_database_url,
        "graph": "tests.crash.support.own_graphs:noticing",
        "env": {"STANDFAST_TEST_LOG": str(log)},
    }
    log.touch()
    waiting = nursery.run("ask", thread=source, request={"text": "once", "messages": []}, **common).value["did"]
    if approved:
        answer = {"approve": waiting["approvals"][0]["id"]}
        assert "succeeded" == nursery.run("resume", thread=source, answer=answer, **common).value["did"]["status"]
    assert target == nursery.run("fork", thread=source, to=target, at="approval", **common).value["did"]
    assert signal.SIGKILL == nursery.run("resume", thread=target, kill=(point, 1), **common).signal
    assert "succeeded" == nursery.run("resume", thread=target, **common).value["did"]["status"]
    seen = nursery.run("look", thread=target, **common).value["did"]
    [told] = [one["text"] for one in seen["messages"] if one["type"] == "tool"]
    assert ({}, []) == (seen["approvals"], seen["attempts"])
    assert ("once is posted" == told) is approved
    assert ("was not carried out" in told) is not approved
    assert [source] * approved == [line.split()[0] for line in log.read_text().splitlines()]
