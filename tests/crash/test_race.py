"""Two answers to one question: one wins, the other is told what won, and the effect happens at most once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from standfast.checkpoint import errors
from standfast.checkpoint.settings import Settings
from standfast.graph import Principal, Runtime, build_agent
from tests.conftest import Clock
from tests.crash.support.processes import Nursery
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel, call, script
from tests.servers.process import ServerProcess
from tests.servers.reports import ReportsServer

pytestmark = [pytest.mark.guarantee("G6"), pytest.mark.guarantee("G3")]

THREADS = 50
MAKERS = 5
REQUEST = script([call("note", text="once")])


@pytest.fixture
async def runtime(database_url: str, reports_server: ReportsServer) -> AsyncIterator[Runtime]:
    graph = build_agent(model=ScriptedModel(), operations=OPERATIONS)
    settings = Settings(reports_url=f"{reports_server.url}/reports")
    async with Runtime(graph, database_url=database_url, settings=settings) as runtime:
        yield runtime


@pytest.mark.timeout(120)
def test_of_approve_and_reject_at_the_same_moment_one_wins_and_the_other_is_told(
    nursery: Nursery, shared_database_url: str, reports: ServerProcess
) -> None:
    common: dict[str, Any] = {
        "url": shared_database_url,
        "thread": "",
        "scripted": True,
        "env": {"STANDFAST_REPORTS_URL": f"{reports.url}/reports"},
    }
    names = [f"race-{number}" for number in range(THREADS)]
    makers = [nursery.start("ask_many", **common, request=REQUEST, threads=names[n::MAKERS]) for n in range(MAKERS)]
    threads = [pair for maker in makers for pair in maker.result(60).value["did"]]

    approving = nursery.start("race", **common, threads=threads, verb="approve", other="reject")
    rejecting = nursery.start("race", **common, threads=threads, verb="reject", other="approve")
    approved, rejected = approving.result(100).value["did"], rejecting.result(100).value["did"]

    published = Counter(one["report"]["body"]["thread"] for one in reports.effects())
    for (thread, _), one, other in zip(threads, approved, rejected, strict=True):
        won, lost, winner = (one, other, "approve") if "won" in one else (other, one, "reject")
        assert "won" in won, (thread, one, other)
        assert lost.get("decision") == winner, (thread, one, other)
        assert lost["by"] == f"{winner}r@example.com"
        assert "succeeded" == won["status"]
        assert (1 if winner == "approve" else 0) == published[thread], (thread, one, other)
    wins = Counter("approve" if "won" in one else "reject" for one in approved)
    print(f"of {THREADS} races {dict(wins)}")
    assert 2 == len(wins), "one side never won: the two did not meet"


@pytest.mark.timeout(180)
def test_of_twenty_processes_that_approve_and_reject_at_once_one_wins_and_all_hear_which(
    nursery: Nursery, shared_database_url: str, reports: ServerProcess, tmp_path: Path
) -> None:
    common: dict[str, Any] = {
        "url": shared_database_url,
        "thread": "twenty",
        "scripted": True,
        "env": {"STANDFAST_REPORTS_URL": f"{reports.url}/reports"},
    }
    maker = nursery.start("ask_many", **common, request=REQUEST, threads=["twenty"])
    [(_, approval)] = maker.result(60).value["did"]
    go = tmp_path / "go"
    verbs = ["approve", "reject"] * 10
    voters = [
        nursery.start("vote", **common, approval=approval, verb=verb, who=f"{number}@example.com", go=str(go))
        for number, verb in enumerate(verbs)
    ]
    go.touch()
    told = [one.result(120).value["did"] for one in voters]
    [won] = [one for one in told if one["won"]]
    assert {(won["decision"], won["by"])} == {(one["decision"], one["by"]) for one in told}
    end = nursery.start("resume", **common).result(60).value["did"]
    assert "succeeded" == end["status"]
    done = [one for one in reports.effects() if one["report"]["body"]["thread"] == "twenty"]
    assert (won["decision"] == "approve") is bool(done)


async def test_of_twenty_approvals_at_once_in_one_process_one_wins(
    runtime: Runtime, reports_server: ReportsServer
) -> None:
    waiting = await runtime.ainvoke(REQUEST, thread_id="crowd")

    ends = await asyncio.gather(
        *(
            runtime.aresume("crowd", approve=waiting.approvals[0].id, as_=Principal.vouched(f"{number}@example.com"))
            for number in range(20)
        ),
        return_exceptions=True,
    )

    lost = [one for one in ends if isinstance(one, errors.AlreadyDecided)]
    [won] = [number for number, one in enumerate(ends) if not isinstance(one, BaseException)]
    assert 19 == len(lost)
    assert {("approve", f"{won}@example.com")} == {(one.decision, one.by) for one in lost}
    assert 1 == len(reports_server.effects())


async def test_a_reject_after_the_end_is_told_what_was_decided_and_by_whom(
    runtime: Runtime, reports_server: ReportsServer
) -> None:
    waiting = await runtime.ainvoke(REQUEST, thread_id="late")
    approval = waiting.approvals[0].id
    await runtime.aresume("late", approve=approval, as_=Principal.vouched("first@example.com"))

    with pytest.raises(errors.AlreadyDecided) as told:
        await runtime.aresume("late", reject=approval, as_=Principal.vouched("second@example.com"))

    assert ("approve", "first@example.com") == (told.value.decision, told.value.by)
    assert 1 == len(reports_server.effects())


async def test_an_approval_that_comes_too_late_is_refused_and_counts_as_rejected(
    runtime: Runtime, clock: Clock, reports_server: ReportsServer
) -> None:
    waiting = await runtime.ainvoke(REQUEST, thread_id="expired")
    approval = waiting.approvals[0].id
    clock.move(timedelta(days=7, seconds=1))

    with pytest.raises(errors.ApprovalExpired):
        await runtime.aresume("expired", approve=approval)
    end = await runtime.aresume("expired")

    assert "succeeded" == end.status
    assert [approval] == [one["approval"] for one in end.outcome["rejected"]]
    assert [] == reports_server.effects()


async def test_an_approval_of_another_thread_is_not_taken(runtime: Runtime) -> None:
    mine = await runtime.ainvoke(REQUEST, thread_id="mine")
    await runtime.ainvoke(REQUEST, thread_id="other")

    with pytest.raises(errors.UnknownApproval):
        await runtime.aresume("other", approve=mine.approvals[0].id)

    assert ["waiting", "waiting"] == [one.status for one in await runtime.athreads()]
