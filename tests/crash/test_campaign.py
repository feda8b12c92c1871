"""Every kind of effect, killed at every edge of the ledger: one logical effect, and no outcome lost.

The long form is `make crash`: a hundred runs for each kind. Counted are the receiver's own log and table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.checkpoint.crashpoints import OUTCOME_POINTS
from tests.crash.support.campaign import OPERATIONS, Campaign, Plan, Ran, plans, totals
from tests.crash.support.processes import Nursery
from tests.servers.process import ServerProcess

pytestmark = [
    pytest.mark.guarantee("G4"),
    pytest.mark.guarantee("G5"),
    pytest.mark.timeout(300),  # whichever test is first runs the whole campaign
]

EDGES = [
    Plan("edge-pending", "pending", (("operation.pending", 1),)),
    Plan("edge-polled", "pending", (("drive.parked", 1), ("outcome.polled", 1))),
    Plan("edge-unknown", "at_most_once", (("operation.done", 1), ("outcome.unknown", 1))),
    Plan("edge-asked", "at_most_once", (("operation.done", 1), ("approval.opened", 1))),
    Plan("edge-decided", "at_most_once", (("operation.done", 1), ("outcome.decided", 1))),
    Plan("edge-answered", "reconciled", (("operation.done", 1), ("outcome.answered", 1))),
    Plan("edge-settled", "reconciled", (("operation.done", 1), ("outcome.settled", 1))),
    Plan("edge-not-arrived", "reconciled", (("operation.begun", 2), ("outcome.settled", 1))),
    Plan("edge-again", "idempotent", (("operation.done", 1), ("operation.done", 1))),
]


@pytest.fixture(scope="module")
def campaign(nursery: Nursery, shared_database_url: str, reports: ServerProcess) -> Campaign:
    return Campaign(nursery, reports, shared_database_url)


@pytest.fixture(scope="module")
def edges(campaign: Campaign) -> dict[str, Ran]:
    return {one.plan.thread: one for one in campaign.run(EDGES)}


@pytest.mark.parametrize("plan", EDGES, ids=lambda plan: plan.thread.removeprefix("edge-"))
def test_a_driver_killed_at_this_edge_repeats_nothing_and_loses_nothing(edges: dict[str, Ran], plan: Plan) -> None:
    ran = edges[plan.thread]

    assert [point for point, _ in plan.kills] == ran.killed
    assert "right" == ran.verdict(), ran


def test_a_completion_whose_sender_dies_is_kept(campaign: Campaign, nursery: Nursery) -> None:
    common = {"url": campaign.url, "thread": "completed", "scripted": "effects", "log": str(campaign.reports.log)}
    common["env"] = {"STANDFAST_REPORTS_URL": f"{campaign.reports.url}/reports"}
    request = json.dumps({"turns": [[{"name": "commission", "args": {"text": "completed"}}]]})
    assert "waiting" == nursery.run("ask", **common, request=request).value["did"]["status"]
    killed = nursery.run("complete", **common, result="told", kill=["outcome.completed", 1])
    end = nursery.run("see_through", **common).value["did"]

    assert 9 == killed.signal
    assert [("succeeded", "told")] == [(one["state"], one["result"]) for one in end["operations"]]


def test_every_edge_of_an_outcome_was_killed_at(edges: dict[str, Ran]) -> None:
    assert set(OUTCOME_POINTS) - {"outcome.completed"} <= {point for one in edges.values() for point in one.killed}


def test_seeded_kills_lose_nothing_and_repeat_nothing(campaign: Campaign) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    ran = campaign.run(plans(list(OPERATIONS), 2, seed))
    found = totals(ran, seed)

    assert {"runs": 10, "lost": 0, "duplicated": 0, "wrong": 0, "stuck": 0} == {
        name: found[name] for name in ("runs", "lost", "duplicated", "wrong", "stuck")
    }, ran
    assert 0 < found["kills"]


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A receiver that knows no keys: what arrives twice is published twice."""
    log: Path = tmp_path_factory.mktemp("keyless") / "reports.jsonl"
    with ServerProcess("reports", log, "--mode", "ignores_key") as server:
        yield server


@pytest.mark.parametrize(("forgetful", "verdict"), [(False, "right"), (True, "duplicated")])
def test_without_the_ledgers_memory_duplicates_are_reported(
    nursery: Nursery, shared_database_url: str, keyless: ServerProcess, forgetful: bool, verdict: str
) -> None:
    """And with it, the same kills before the same receiver have one effect."""
    kinds = ("idempotent", "at_most_once", "reconciled")
    made = [Plan(f"forgetful-{forgetful}-{kind}", kind, (("operation.recorded", 1),)) for kind in kinds]
    ran = Campaign(nursery, keyless, shared_database_url, forgetful=forgetful).run(made)

    assert [verdict] * 3 == [one.verdict() for one in ran], ran
