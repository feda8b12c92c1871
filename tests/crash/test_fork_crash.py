"""A fork whose maker dies is whole, or is never gone on with."""

from __future__ import annotations

import signal

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
