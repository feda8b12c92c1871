"""How workers take what is due: each thread once, the first first, and never for want of an answer or of a lock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph

from standfast.checkpoint.fleet import Fleet
from standfast.checkpoint.lease import Claimed
from standfast.graph.runtime import AsyncRuntime

Query = Callable[..., list[tuple[Any, ...]]]
GRAPHS = ["notes@1"]


class Note(TypedDict):
    text: str


def notes() -> StateGraph[Note]:
    graph = StateGraph(Note)
    graph.add_node("keep", lambda _: {})
    graph.add_edge(START, "keep")
    graph.add_edge("keep", END)
    return graph


@pytest.fixture
async def runtime(database_url: str) -> AsyncIterator[AsyncRuntime]:
    async with AsyncRuntime(notes(), database_url=database_url, name="notes") as opened:
        yield opened


@pytest.fixture
def fleet(runtime: AsyncRuntime) -> Fleet:
    return Fleet(runtime.store.database)


async def take(fleet: Fleet, most: int = 10) -> list[Claimed]:
    return await fleet.claim_next(GRAPHS, most=most, seconds=15, worker="w")


def names(claims: list[Claimed]) -> list[str]:
    return [one.lease.thread_id for one in claims]


@pytest.mark.guarantee("G1")
async def test_those_who_take_at_the_same_time_never_take_the_same(runtime: AsyncRuntime, fleet: Fleet) -> None:
    submitted = {f"t{number}" for number in range(60)}
    await asyncio.gather(*(runtime.asubmit({"text": "a"}, thread_id=one) for one in submitted))
    taken: list[Claimed] = []
    while len(taken) < len(submitted):
        for claims in await asyncio.gather(*(take(fleet, 7) for _ in range(8))):
            taken += claims
    assert sorted(submitted) == sorted(names(taken))
    assert len(taken) == len({one.lease.holder for one in taken})
    assert [] == await take(fleet)


async def test_the_greater_priority_goes_first_then_the_older(runtime: AsyncRuntime, fleet: Fleet) -> None:
    for number, priority in enumerate([0, -5, 1000, 7, 0, 7]):
        await runtime.asubmit({"text": "a"}, thread_id=f"t{number}", priority=priority)
    order = [name for _ in range(3) for name in names(await take(fleet, 2))]
    assert ["t2", "t3", "t5", "t0", "t4", "t1"] == order


async def test_of_others_and_of_later_nothing_is_taken(runtime: AsyncRuntime, fleet: Fleet, query: Query) -> None:
    for name in ("now", "later", "other", "newer"):
        await runtime.asubmit({"text": "a"}, thread_id=name)
    query("update threads set due_at = standfast.now() + interval '1 hour' where id = 'later'")
    query("update threads set graph = 'letters' where id = 'other'")
    query("update threads set version = '2' where id = 'newer'")
    assert ["now"] == names(await take(fleet))


@pytest.mark.guarantee("G1")
async def test_what_was_taken_by_a_commit_whose_answer_was_lost_is_taken_by_sending_it_again(
    runtime: AsyncRuntime, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, query: Query
) -> None:
    for number in range(3):
        await runtime.asubmit({"text": "a"}, thread_id=f"t{number}")
    execute = psycopg.AsyncConnection.execute
    lost = iter([True])

    async def losing(self: Any, statement: Any, *args: Any, **options: Any) -> Any:
        result = await execute(self, statement, *args, **options)
        if b"claim_next" in statement and next(lost, False):
            raise psycopg.OperationalError("the connection is gone")
        return result

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", losing)
    claims = await take(fleet, 2)
    assert ["t0", "t1"] == sorted(names(claims))
    held = query("select id, lease_holder, epoch from threads where lease_holder is not null order by id")
    assert held == sorted((one.lease.thread_id, one.lease.holder, one.lease.epoch) for one in claims)


async def test_a_thread_whose_row_somebody_keeps_locked_holds_up_no_other_and_is_found_as_overdue(
    runtime: AsyncRuntime, fleet: Fleet, database_url: str, query: Query
) -> None:
    for name in ("held", "free"):
        await runtime.asubmit({"text": "a"}, thread_id=name)
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(database_url) as conn:
        conn.execute("select from standfast.threads where id = 'held' for update")
        assert ["free"] == names(await take(fleet))
        assert [] == await fleet.overdue(GRAPHS, most=10, patience=3600)
        assert ["held"] == [one.id for one in await fleet.overdue(GRAPHS, most=10, patience=0)]
        lease = await fleet.claim_due("held", seconds=15, worker="w")  # ends the transaction that is in the way
        assert lease is not None
        assert "held" == lease.thread_id
    assert [] == await fleet.overdue(GRAPHS, most=10, patience=0)


async def test_a_tenant_that_comes_to_its_limit_on_the_way_hides_nobody(
    runtime: AsyncRuntime, fleet: Fleet, query: Query
) -> None:
    for number in range(60):
        await runtime.asubmit({"text": "a"}, thread_id=f"t{number:02}")
    query("update threads set tenant = 'small' where id < 't58'")
    query("insert into flow_limits (key, concurrency, changed_by) values ('tenant:small', 1, 'me')")
    assert ["t00", "t58", "t59"] == sorted(names(await take(fleet, 10)))


async def test_a_tenant_at_its_limit_is_passed_over(runtime: AsyncRuntime, fleet: Fleet, query: Query) -> None:
    for number in range(12):
        await runtime.asubmit({"text": "a"}, thread_id=f"t{number:02}")
    query("update threads set tenant = 'small' where id < 't10'")
    query("insert into flow_limits (key, concurrency, changed_by) values ('tenant:small', 2, 'me')")
    assert ["t00", "t01", "t10", "t11"] == sorted(names(await take(fleet, 4)) + names(await take(fleet, 4)))
