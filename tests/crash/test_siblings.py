"""Calls of one turn progress, wait, crash and end each by itself."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.crash.support.processes import Nursery
from tests.crash.support.scripted_model import OPERATIONS, call, script
from tests.servers.fixtures import Eventually
from tests.servers.process import ServerProcess

pytestmark = [pytest.mark.guarantee("G2"), pytest.mark.guarantee("G4")]

AT_ONCE = 4
KILLS = (
    ("drive.resuming", 1),
    ("node.approval", 1),  # an approval was taken, the checkpoint that says so does not exist
    ("node.approval", 2),
    ("node.approval", 3),
    ("saver.fenced", 1),
    ("saver.fenced", 2),
    ("operation.begun", 1),
    ("operation.done", 1),
    ("operation.recorded", 1),
    ("node.operate", 1),
    ("saver.committed", 1),
    ("saver.committed", 2),
)


@dataclass(frozen=True)
class Place:
    """Where the threads of this module live."""

    nursery: Nursery
    url: str
    reports: ServerProcess

    def run(self, job: str, thread: str, **order: Any) -> Any:
        return self._order(job, thread, **order).value["did"]

    def kill(self, job: str, thread: str, **order: Any) -> None:
        assert signal.SIGKILL == self._order(job, thread, **order).signal

    def _order(self, job: str, thread: str, **order: Any) -> Any:
        environment = {"STANDFAST_REPORTS_URL": f"{self.reports.url}/reports"}
        return self.nursery.run(job, url=self.url, thread=thread, env=environment, scripted=True, **order)

    def notes(self, thread: str) -> Counter[str]:
        """The texts that arrived for a thread, by the server's log."""
        effects = [one["report"]["body"] for one in self.reports.effects()]
        return Counter(one["text"] for one in effects if one["thread"] == thread)


@pytest.fixture
def place(nursery: Nursery, shared_database_url: str, reports: ServerProcess) -> Place:
    return Place(nursery, shared_database_url, reports)


def answers(messages: list[dict[str, Any]]) -> dict[str, str]:
    """The tool messages by call id; AssertionError if a call has two."""
    tools = [one for one in messages if one["type"] == "tool"]
    assert len({one["tool_call_id"] for one in tools}) == len(tools)
    return {one["tool_call_id"]: one["text"] for one in tools}


@pytest.mark.parametrize("point", ["operation.begun", "operation.done", "operation.recorded", "node.operate"])
def test_a_sibling_killed_in_operate_ends_and_the_question_beside_it_stays(
    place: Place, eventually: Eventually, tmp_path: Path, point: str
) -> None:
    thread, gate = f"beside-{point}-{uuid.uuid4().hex[:6]}", tmp_path / "gate"
    request = script([call("note", text="asked"), call("jot_slowly", text="free", until=str(gate))])
    if point == "operation.begun":
        gate.touch()
        place.kill("ask", thread, request=request, kill=[point, 2])  # the first one is the model's
    else:
        with ThreadPoolExecutor(1) as pool:
            dying = pool.submit(place.kill, "ask", thread, request=request, kill=[point, 1])
            eventually(lambda: _asked(place.url, thread), seconds=20)  # the question is on disk, the sibling at work
            gate.touch()
            dying.result()
        open_before = place.run("look", thread)["questions"]

    waiting = place.run("resume", thread)
    seen = place.run("look", thread)

    assert "waiting" == waiting["status"]
    [asked] = [one["id"] for one in waiting["approvals"]]
    assert point == "operation.begun" or open_before == seen["questions"]
    assert {asked} == set(seen["questions"])
    assert Counter(["free"]) == place.notes(thread)

    end = place.run("resume", thread, answer={"approve": asked})

    assert "succeeded" == end["status"]
    assert Counter(["free", "asked"]) == place.notes(thread)
    assert {"call-0-0": "noted asked", "call-0-1": "noted free"} == answers(place.run("look", thread)["messages"])


def _asked(url: str, thread: str) -> bool:
    with psycopg.connect(url, options="-c search_path=standfast") as conn:
        statement = "select 1 from checkpoint_writes where thread_id = %s and channel = '__interrupt__'"
        return conn.execute(statement, (thread,)).fetchone() is not None


def _several(place: Place, thread: str, kill: tuple[str, int], rejected_before_recovery: bool) -> dict[str, Any]:
    """Five calls: a is approved and its driver killed, b rejected, c approved at the end, d free, e unknown."""
    turn = [call("note", text="a"), call("note", text="b"), call("note", text="c"), call("jot", text="d"), call("none")]
    waiting = place.run("ask", thread, request=script(turn))
    ids = {one["arguments"]["text"]: one["id"] for one in waiting["approvals"]}
    place.kill("resume", thread, answer={"approve": ids["a"]}, kill=kill)
    if rejected_before_recovery:
        place.run("decide", thread, verb="reject", approval=ids["b"])
    recovered = place.run("resume", thread)
    seen = place.run("look", thread)
    if not rejected_before_recovery:
        place.run("resume", thread, answer={"reject": ids["b"]})
    end = place.run("resume", thread, answer={"approve": ids["c"]})
    return {
        "asked": sorted(ids),
        "open": sorted(text for text, one in ids.items() if one in {a["id"] for a in recovered["approvals"]}),
        "recovered": recovered["status"],
        "same questions": set(seen["approvals"]) == set(ids.values()),
        "end": end["status"],
        "answers": answers(place.run("look", thread)["messages"]),
        "notes": dict(place.notes(thread)),
    }


@pytest.mark.timeout(120)
@pytest.mark.parametrize("rejected_before_recovery", [True, False])
def test_each_of_several_calls_gets_one_message_wherever_the_driver_of_one_dies(
    place: Place, rejected_before_recovery: bool
) -> None:
    """Approved, rejected, waiting, free and unknown in one turn (mechanisms: the answer is given again by id)."""

    def run(kill: tuple[str, int]) -> dict[str, Any]:
        thread = f"several-{kill[0]}-{kill[1]}-{rejected_before_recovery}-{uuid.uuid4().hex[:6]}"
        return _several(place, thread, kill, rejected_before_recovery)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        ran = dict(zip(KILLS, pool.map(run, KILLS), strict=True))

    expected: dict[str, Any] = {
        "asked": ["a", "b", "c"],
        "open": ["c"] if rejected_before_recovery else ["b", "c"],
        "recovered": "waiting",
        "same questions": True,
        "end": "succeeded",
        "answers": {
            "call-0-0": "noted a",
            "call-0-1": "Rejected by approver@example.com.",
            "call-0-2": "noted c",
            "call-0-3": "noted d",
            "call-0-4": _unknown(),
        },
        "notes": {"a": 1, "c": 1, "d": 1},
    }
    assert dict.fromkeys(KILLS, expected) == ran


def _unknown() -> str:
    return f"there is no operation 'none'; there are: {', '.join(sorted(one.name for one in OPERATIONS))}"
