"""Schedules: one run for each due time, whichever worker looks, and what becomes of times that were missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.graph import Budget, Principal, Runtime
from standfast.graph.scheduling import fire_due
from tests.conftest import Clock

pytestmark = pytest.mark.guarantee("G1")
Query = Callable[..., list[tuple[Any, ...]]]
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Note(TypedDict, total=False):
    text: str


async def node(state: Note) -> Note:
    return {"text": interrupt("How?")} if state["text"] == "ask" else {"text": "done"}


@pytest.fixture
async def runtime(database_url: str) -> AsyncIterator[Runtime]:
    graph = StateGraph(Note)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    async with Runtime(graph, database_url=database_url, name="notes") as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def frozen(clock: Clock, query: Query) -> datetime:
    """Half past noon, on a day without a change of the clocks."""
    query("update frozen_clock set at = '2026-06-01 12:30:00+00'")
    return clock.now()


def threads(query: Query) -> list[str]:
    return [row[0] for row in query("select id from threads order by id")]


async def test_a_due_time_has_one_run_however_many_workers_look_at_once(
    runtime: Runtime, clock: Clock, query: Query
) -> None:
    added = await runtime.aadd_schedule("hourly", "0 * * * *", {"text": "a"}, as_=Principal.vouched("a@example.com"))
    assert 13 == added.next_at.hour
    assert [] == await fire_due(runtime.store)
    clock.move(HOUR)
    looked = await asyncio.gather(*(fire_due(runtime.store) for _ in range(8)))
    assert 1 == [one for some in looked for one in some].count("fired")
    assert [("hourly-20260601T130000Z", "schedule:hourly:2026-06-01T13:00:00Z", "a@example.com")] == query(
        "select thread_id, client_key, requested_by from runs"
    )
    assert "succeeded" == (await runtime.aresume("hourly-20260601T130000Z")).status


async def test_a_worker_fires_in_its_sweep_and_drives(runtime: Runtime, clock: Clock) -> None:
    await runtime.aadd_schedule("hourly", "0 * * * *", {"text": "a"})
    clock.move(HOUR)
    stop = asyncio.Event()
    work = asyncio.create_task(runtime.awork(stop=stop))
    async with asyncio.timeout(20):
        while not await runtime.athreads(state="succeeded"):
            await asyncio.sleep(0.02)
    stop.set()
    await work
    [schedule] = await runtime.aschedules()
    assert ("fired", "hourly-20260601T130000Z") == (schedule.last_verdict, schedule.last_thread)


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("skip", []), ("last", ["s-20260601T160000Z"]), ("all", [f"s-20260601T{hour}0000Z" for hour in (13, 14, 15, 16)])],
)
async def test_times_while_no_worker_ran_are_caught_up_as_the_schedule_says(
    runtime: Runtime, clock: Clock, query: Query, catch_up: Any, expected: list[str]
) -> None:
    await runtime.aadd_schedule("s", "0 * * * *", {"text": "a"}, catch_up=catch_up, overlap="queue")
    clock.move(4 * HOUR)
    await fire_due(runtime.store)
    assert expected == threads(query)
    [schedule] = await runtime.aschedules()
    assert 17 == schedule.next_at.hour
    clock.move(30 * MINUTE)
    await fire_due(runtime.store)
    assert [*expected, "s-20260601T170000Z"] == threads(query)


async def test_a_time_while_an_earlier_run_is_unfinished_is_skipped(
    runtime: Runtime, clock: Clock, query: Query
) -> None:
    await runtime.aadd_schedule("s", "0 * * * *", {"text": "ask"})
    for _ in range(2):
        clock.move(HOUR)
        await fire_due(runtime.store)
    assert ["s-20260601T130000Z"] == threads(query)
    with pytest.raises(errors.ThreadBusy):
        await runtime.arun_schedule("s")
    assert "waiting" == (await runtime.aresume("s-20260601T130000Z")).status
    await runtime.aresume("s-20260601T130000Z", "so")
    clock.move(HOUR)
    assert ["fired"] == await fire_due(runtime.store)


async def test_queued_times_come_to_their_turn_one_after_the_other(
    runtime: Runtime, clock: Clock, query: Query
) -> None:
    await runtime.aadd_schedule("s", "0 * * * *", {"text": "a"}, catch_up="all", overlap="queue")
    clock.move(3 * HOUR)
    assert ["fired", "queued", "queued"] == await fire_due(runtime.store)
    for done, thread in enumerate(threads(query), 1):
        assert [("open", 1), ("queued", 3 - done)][: 1 + (done < 3)] == query(
            "select state, count(*) from runs where state <> 'succeeded' group by state order by state"
        )
        assert "succeeded" == (await runtime.aresume(thread)).status


async def test_a_schedules_runs_have_its_deadline_budget_and_priority(
    runtime: Runtime, clock: Clock, query: Query
) -> None:
    budget = Budget(steps=1)
    limits: dict[str, Any] = {"deadline": HOUR, "budget": budget, "priority": 7}
    added = await runtime.aadd_schedule("s", "0 * * * *", {"text": "a"}, overlap="queue", catch_up="all", **limits)
    assert limits == {name: getattr(added, name) for name in limits}
    assert [added] == await runtime.aschedules()
    clock.move(2 * HOUR)
    assert ["fired", "queued"] == await fire_due(runtime.store)
    for thread in threads(query):
        run, _ = await runtime.store.threads.latest(thread)
        assert (clock.now() + HOUR, budget) == (run.deadline, run.budget)
    assert [(7, 7)] * 2 == query("select t.priority, r.priority from threads t join runs r on r.thread_id = t.id")


@pytest.mark.guarantee("G8")
async def test_a_schedules_run_ends_at_its_deadline_and_the_queue_behind_it_moves_on(
    runtime: Runtime, clock: Clock, query: Query
) -> None:
    await runtime.aadd_schedule("s", "0 * * * *", {"text": "ask"}, overlap="queue", deadline=90 * 60)
    clock.move(HOUR)
    await fire_due(runtime.store)
    [first] = threads(query)
    assert "waiting" == (await runtime.aresume(first)).status
    clock.move(HOUR)
    assert ["queued"] == await fire_due(runtime.store)
    clock.move(45 * MINUTE)
    ended = await runtime.aresume(first)
    assert ("failed", "deadline") == (ended.status, ended.reason)
    second = threads(query)[1]
    assert "waiting" == (await runtime.aresume(second)).status


async def test_a_paused_schedule_fires_nothing_and_catches_nothing_up(
    runtime: Runtime, clock: Clock, query: Query
) -> None:
    await runtime.aadd_schedule("s", "0 * * * *", {"text": "a"}, catch_up="all")
    await runtime.apause_schedule("s")
    clock.move(3 * HOUR)
    assert [] == await fire_due(runtime.store)
    assert 16 == (await runtime.aresume_schedule("s")).next_at.hour
    assert [] == await fire_due(runtime.store)
    clock.move(HOUR)
    await fire_due(runtime.store)
    assert ["s-20260601T160000Z"] == threads(query)


async def test_a_schedule_can_be_run_now_and_removed(runtime: Runtime, clock: Clock, query: Query) -> None:
    await runtime.aadd_schedule("s", "0 * * * *", {"text": "a"})
    result = await runtime.arun_schedule("s")
    assert ("s-20260601T123000Z", "queued") == (result.thread_id, result.status)
    assert 13 == (await runtime.aschedules())[0].next_at.hour
    await runtime.aremove_schedule("s")
    clock.move(HOUR)
    assert [] == await fire_due(runtime.store)
    assert [result.thread_id] == threads(query)
    for verb in (runtime.apause_schedule, runtime.aresume_schedule, runtime.aremove_schedule, runtime.arun_schedule):
        with pytest.raises(errors.UnknownSchedule):
            await verb("s")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a b"},
        {"cron": "hourly"},
        {"timezone": "Mars/Base"},
        {"catch_up": "some"},
        {"overlap": "cancel"},
        {"thread_id": "t"},
        {"deadline": datetime(2026, 6, 2, tzinfo=UTC)},
        {"deadline": -1},
        {"deadline": "soon"},
        {"budget": 5},
        {"priority": "high"},
        {"request": "text for a graph that takes none"},
    ],
)
async def test_a_schedule_that_is_none_is_refused(runtime: Runtime, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": "s", "cron": "0 * * * *", "request": {"text": "a"}, **wrong}
    with pytest.raises((errors.InvalidRequest, errors.WrongArguments)):
        await runtime.aadd_schedule(**given)
    assert [] == await runtime.aschedules()


async def test_a_second_schedule_of_the_same_name_is_refused(runtime: Runtime) -> None:
    await runtime.aadd_schedule("s", "0 * * * *", {"text": "a"})
    with pytest.raises(errors.InvalidRequest, match="remove it first"):
        await runtime.aadd_schedule("s", "5 * * * *", {"text": "a"})
    [kept] = await runtime.aschedules()
    assert "0 * * * *" == kept.cron
