"""What a killed attempt may leave behind, by the kind of effect."""

from __future__ import annotations

import signal
import uuid
from typing import Any

import psycopg
import pytest

from tests.crash.support.processes import Nursery
from tests.crash.support.scripted_model import call, script
from tests.servers.process import ServerProcess

pytestmark = pytest.mark.guarantee("G4")


@pytest.fixture
def common(nursery: Nursery, shared_database_url: str, reports: ServerProcess) -> dict[str, Any]:
    """What every order of this module has."""
    return {
        "url": shared_database_url,
        "scripted": True,
        "env": {"STANDFAST_REPORTS_URL": f"{reports.url}/reports"},
    }


def _arrived(reports: ServerProcess, thread: str) -> int:
    return sum(one["report"]["body"]["thread"] == thread for one in reports.effects())


@pytest.mark.parametrize(("point", "n", "arrived"), [("operation.begun", 2, 0), ("operation.done", 1, 1)])
def test_an_at_most_once_call_that_may_have_happened_is_not_repeated_and_put_before_a_person(
    nursery: Nursery, common: dict[str, Any], reports: ServerProcess, point: str, n: int, arrived: int
) -> None:
    thread = f"once-{point}-{uuid.uuid4().hex[:6]}"
    common = {**common, "thread": thread}
    killed = nursery.run("ask", **common, request=script([call("shout", text="x")]), kill=[point, n])
    end = nursery.run("resume", **common).value["did"]
    seen = nursery.run("look", **common).value["did"]

    assert signal.SIGKILL == killed.signal
    assert "waiting" == end["status"]
    assert ["open"] == list(seen["approvals"].values())
    assert arrived == _arrived(reports, thread)
    assert [("unknown", 1)] == [
        (one["state"], one["attempts"]) for one in seen["operations"].values() if one["name"] == "shout"
    ]


def test_an_at_most_once_call_whose_end_was_recorded_is_simply_done(
    nursery: Nursery, common: dict[str, Any], reports: ServerProcess
) -> None:
    common = {**common, "thread": "once-recorded"}
    request = script([call("shout", text="x")])
    killed = nursery.run("ask", **common, request=request, kill=["operation.recorded", 1])
    end = nursery.run("resume", **common).value["did"]

    assert signal.SIGKILL == killed.signal
    assert "succeeded" == end["status"]
    assert 1 == _arrived(reports, "once-recorded")


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize(
    ("point", "n", "entered"), [("operation.done", 1, 0), ("operation.recorded", 1, 1), ("node.operate", 1, 1)]
)
def test_a_transactional_operation_happens_exactly_once_wherever_its_driver_dies(
    nursery: Nursery, common: dict[str, Any], point: str, n: int, entered: int
) -> None:
    thread = f"transaction-{point}-{uuid.uuid4().hex[:6]}"
    common = {**common, "thread": thread}
    with psycopg.connect(common["url"], autocommit=True) as conn:
        conn.execute("create table if not exists public.entries (text text)")

    killed = nursery.run("ask", **common, request=script([call("enter", text=thread)]), kill=[point, n])
    assert signal.SIGKILL == killed.signal
    assert entered == _entries(common["url"], thread)

    end = nursery.run("resume", **common).value["did"]

    assert "succeeded" == end["status"]
    assert 1 == _entries(common["url"], thread)


def _entries(url: str, text: str) -> int:
    with psycopg.connect(url) as conn:
        row = conn.execute("select count(*) from public.entries where text = %s", (text,)).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.guarantee("G2")
def test_a_run_whose_drivers_die_five_times_in_a_row_is_parked_for_a_person(
    nursery: Nursery, common: dict[str, Any], reports: ServerProcess
) -> None:
    common = {**common, "thread": "doomed"}
    request = script([call("jot", text="x")])
    assert signal.SIGKILL == nursery.run("ask", **common, request=request, kill=["operation.begun", 2]).signal
    for _ in range(4):
        assert signal.SIGKILL == nursery.run("resume", **common, kill=["operation.begun", 1]).signal
    parked = nursery.run("resume", **common).value["did"]
    end = nursery.run("resume", **common).value["did"]

    assert ("needs_attention", "succeeded") == (parked["status"], end["status"])
    assert "died on it" in parked["reason"]
    assert 1 == _arrived(reports, "doomed")
