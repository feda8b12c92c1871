"""Waits for times and events hold nothing, end once, and end however the processes around them fare."""

from __future__ import annotations

import asyncio
import operator
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, TypedDict
from zoneinfo import ZoneInfo

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from standfast.checkpoint import crashpoints, errors
from standfast.checkpoint.fleet import Fleet
from standfast.graph import Runtime, all_of, event, first_of, sleep, timer, wait_for_event
from tests.conftest import Clock

Query = Callable[..., list[tuple[Any, ...]]]
DAY = timedelta(days=1)
pytestmark = pytest.mark.guarantee("G7")


class State(TypedDict, total=False):
    got: Annotated[list[Any], operator.add]


def one_node(node: Callable[[State], Awaitable[dict[str, Any]]]) -> StateGraph[Any, Any, Any, Any]:
    """A graph of this one node."""
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph


@pytest.fixture
def opened(database_url: str) -> Callable[..., Any]:
    """`async with opened(node_or_graph) as runtime:`"""

    @asynccontextmanager
    async def opening(given: Any, **options: Any) -> AsyncIterator[Runtime]:
        graph = given if isinstance(given, StateGraph) else one_node(given)
        async with Runtime(graph, database_url=database_url, **options) as runtime:
            yield runtime

    return opening


@asynccontextmanager
async def working(runtime: Runtime) -> AsyncIterator[None]:
    """A worker for this runtime, in this process."""
    stop = asyncio.Event()
    task = asyncio.create_task(runtime.awork(stop=stop))
    try:
        yield
    finally:
        stop.set()
        await task


# -- times


async def a_day(state: State) -> dict[str, Any]:
    await sleep(for_=DAY)
    return {"got": ["slept"]}


async def test_a_timer_fires_at_its_time_and_not_before(opened: Any, clock: Clock) -> None:
    async with opened(a_day) as runtime:
        assert "waiting" == (await runtime.ainvoke({}, thread_id="t")).status
        clock.move(DAY - timedelta(seconds=1))
        assert "waiting" == (await runtime.aresume("t")).status
        clock.move(timedelta(seconds=1))
        result = await runtime.aresume("t")
        assert ("succeeded", ["slept"]) == (result.status, result.values["got"])


async def test_a_timer_that_fires_while_its_thread_is_read_is_driven(
    opened: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(a_day) as runtime:
        assert "waiting" == (await runtime.ainvoke({}, thread_id="t")).status
        read = runtime._as_it_is

        async def later(*given: Any) -> Any:
            clock.move(DAY)
            return await read(*given)

        monkeypatch.setattr(runtime, "_as_it_is", later)
        assert "succeeded" == (await runtime.aresume("t")).status


async def test_a_worker_fires_timers_by_itself(opened: Any, clock: Clock) -> None:
    async with opened(a_day) as runtime, working(runtime):
        await runtime.asubmit({}, thread_id="t")
        assert "waiting" == (await runtime.aresult("t", timeout=20)).status
        clock.move(DAY)
        events = [one.kind async for one in runtime.astream("t")]
        assert ("run_end", "succeeded") == (events[-1], (await runtime.aresult("t", timeout=20)).status)


async def test_a_clock_that_steps_back_delays_a_timer_and_fires_it_once(
    opened: Any, clock: Clock, query: Query
) -> None:
    async with opened(a_day) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        (until,) = query("select until from waits")[0]
        clock.move(timedelta(hours=-3))
        assert "waiting" == (await runtime.aresume("t")).status
        assert until == query("select until from waits")[0][0]
        clock.move(timedelta(hours=3) + DAY)
        assert ["slept"] == (await runtime.aresume("t")).values["got"]


async def test_a_local_time_keeps_its_moment_across_a_daylight_saving_change(opened: Any, clock: Clock) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    begins, ends = datetime(2026, 3, 27, 9, tzinfo=berlin), datetime(2026, 3, 30, 9, tzinfo=berlin)

    async def until_monday(state: State) -> dict[str, Any]:
        await sleep(until=ends)
        return {"got": ["monday"]}

    clock.move(begins - clock.now())
    async with opened(until_monday) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        clock.move(
            timedelta(hours=71) - timedelta(microseconds=1)
        )  # three days of the wall clock, of which one lost an hour
        assert "waiting" == (await runtime.aresume("t")).status
        clock.move(timedelta(microseconds=1))
        assert ends.astimezone(UTC) == clock.now()
        assert "succeeded" == (await runtime.aresume("t")).status


@pytest.mark.parametrize("span", [0, timedelta(0)])
async def test_a_wait_of_no_time_is_over_at_once(opened: Any, clock: Clock, span: Any) -> None:
    async def node(state: State) -> dict[str, Any]:
        await sleep(for_=span)
        return {"got": ["on"]}

    async with opened(node) as runtime:
        assert "succeeded" == (await runtime.ainvoke({}, thread_id="t")).status


async def test_a_moment_in_the_past_is_over_at_once(opened: Any) -> None:
    async def node(state: State) -> dict[str, Any]:
        await sleep(until=datetime(1, 1, 1, tzinfo=UTC))
        return {}

    async with opened(node) as runtime:
        assert "succeeded" == (await runtime.ainvoke({}, thread_id="t")).status


@pytest.mark.parametrize(
    "given",
    [
        {"for_": -1},
        {"for_": timedelta(seconds=-1)},
        {"for_": float("nan")},
        {"for_": float("inf")},
        {"for_": 1e300},
        {"for_": "soon"},
        {"until": datetime(2030, 1, 1)},
        {"until": date(2030, 1, 1)},
        {"until": datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))},
        {},
        {"for_": 1, "until": datetime(2030, 1, 1, tzinfo=UTC)},
    ],
)
def test_a_time_that_means_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest):
        timer(**given)


@pytest.mark.parametrize("wait", [timer(for_=timedelta.max), timer(until=datetime.max.replace(tzinfo=UTC))])
async def test_a_time_that_cannot_be_stored_is_refused_before_anything_waits(opened: Any, wait: Any) -> None:
    async def node(state: State) -> dict[str, Any]:
        with pytest.raises(errors.InvalidRequest):
            await first_of(wait)
        return {"got": ["refused"]}

    async with opened(node) as runtime:
        assert ["refused"] == (await runtime.ainvoke({}, thread_id="t")).values["got"]


@pytest.mark.parametrize("name", ["", "a" * 256, "a\nb", None])
def test_an_unusable_name_is_refused(name: Any) -> None:
    with pytest.raises(errors.InvalidRequest):
        event(name)


async def test_an_immediate_wake_is_not_held_up_by_a_far_timer_of_its_thread(opened: Any, query: Query) -> None:
    async def far(state: State) -> dict[str, Any]:
        await sleep(for_=3 * DAY)
        return {"got": ["far"]}

    async def near(state: State) -> dict[str, Any]:
        happened = await wait_for_event("now")
        return {"got": [happened.payload if happened else None]}

    graph = StateGraph(State)
    for name, node in (("far", far), ("near", near)):
        graph.add_node(name, node)
        graph.add_edge(START, name)
    async with opened(graph) as runtime, working(runtime):
        await runtime.asubmit({}, thread_id="t")
        await runtime.aresult("t", timeout=20)
        began = asyncio.get_running_loop().time()
        await runtime.aemit("now", "come", id="1")
        async for one in runtime.astream("t"):
            if one.kind == "step_end" and one.path == ("near",):
                break
        else:
            pytest.fail("the near wait did not end")
        assert 2.0 > asyncio.get_running_loop().time() - began
        assert "waiting" == (await runtime.aresult("t", timeout=20)).status
        assert [("far",)] == query("select node from waits where state = 'open'")


# -- several waits


async def test_the_first_of_several_withdraws_the_others(opened: Any, query: Query) -> None:
    async def node(state: State) -> dict[str, Any]:
        ended = await first_of(event("a"), event("b"), timer(for_=DAY))
        assert ended.event is not None
        return {"got": [ended.position, ended.event.payload]}

    async with opened(node) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        assert 1 == await runtime.aemit("b", "won", id="b")
        assert 0 == await runtime.aemit("a", "late", id="a")
        assert [1, "won"] == (await runtime.aresume("t")).values["got"]
        assert [("answered", 1), ("withdrawn", 2)] == query("select state, count(*) from waits group by 1 order by 1")


async def test_all_of_several_end_in_any_order_and_each_keeps_its_place(opened: Any, clock: Clock) -> None:
    async def node(state: State) -> dict[str, Any]:
        ended = await all_of(event("a"), event("b", timeout=DAY), event("a"))
        return {"got": [one.event.payload if one.event else "timed out" for one in ended]}

    async with opened(node) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        assert 1 == await runtime.aemit("a", 1, id="1")
        assert "waiting" == (await runtime.aresume("t")).status
        clock.move(DAY)
        assert "waiting" == (await runtime.aresume("t")).status
        assert 1 == await runtime.aemit("a", 2, id="2")
        assert [1, "timed out", 2] == (await runtime.aresume("t")).values["got"]


async def test_waits_of_one_node_come_one_after_the_other_each_with_its_own_answer(opened: Any, clock: Clock) -> None:
    async def node(state: State) -> dict[str, Any]:
        got: list[Any] = []
        for name in ("a", "b", "a"):
            happened = await wait_for_event(name)
            assert happened is not None
            got.append(happened.payload)
            await sleep(for_=DAY)
        return {"got": got}

    async with opened(node) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        for name, payload in (("a", 1), ("b", 2), ("a", 3)):
            await runtime.aemit(name, payload, id=str(payload))
            assert "waiting" == (await runtime.aresume("t")).status
            clock.move(DAY)
            result = await runtime.aresume("t")
        assert ("succeeded", [1, 2, 3]) == (result.status, result.values["got"])


async def test_nothing_to_wait_for_is_refused(opened: Any) -> None:
    async def node(state: State) -> dict[str, Any]:
        with pytest.raises(errors.InvalidRequest):
            await first_of()
        return {}

    async with opened(node) as runtime:
        assert "succeeded" == (await runtime.ainvoke({}, thread_id="t")).status


# -- where a wait can stand


async def test_a_subgraph_waits_as_its_parent_would(opened: Any) -> None:
    async def inner(state: State) -> dict[str, Any]:
        first = await wait_for_event("a")
        second = await wait_for_event("b")
        assert first is not None
        assert second is not None
        return {"got": [first.payload, second.payload]}

    graph = StateGraph(State)
    graph.add_node("sub", one_node(inner).compile())
    graph.add_edge(START, "sub")
    async with opened(graph) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        for name in "ab":
            assert 1 == await runtime.aemit(name, name, id=name)
            result = await runtime.aresume("t")
        assert ("succeeded", ["a", "b"]) == (result.status, result.values["got"])


async def test_branches_wait_side_by_side_and_one_event_ends_one_wait_of_the_thread(opened: Any) -> None:
    async def node(given: Any) -> dict[str, Any]:
        happened = await wait_for_event("a")
        assert happened is not None
        return {"got": [(given["branch"], happened.payload)]}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_conditional_edges(START, lambda _: [Send("node", {"branch": number}) for number in range(2)], ["node"])
    async with opened(graph) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        assert 1 == await runtime.aemit("a", "first", id="1")
        assert "waiting" == (await runtime.aresume("t")).status
        assert 1 == await runtime.aemit("a", "second", id="2")
        result = await runtime.aresume("t")
        assert "succeeded" == result.status
        assert [0, 1] == sorted(branch for branch, _ in result.values["got"])
        assert ["first", "second"] == sorted(payload for _, payload in result.values["got"])


async def test_a_question_and_a_timer_are_open_side_by_side(opened: Any, clock: Clock) -> None:
    async def asks(state: State) -> dict[str, Any]:
        return {"got": [interrupt("your name?")]}

    graph = StateGraph(State)
    for name, node in (("asks", asks), ("sleeps", a_day)):
        graph.add_node(name, node)
        graph.add_edge(START, name)
    async with opened(graph) as runtime:
        result = await runtime.ainvoke({}, thread_id="t")
        assert ["your name?"] == [one.request for one in result.questions]
        assert "waiting" == (await runtime.aresume("t", "Ada")).status
        clock.move(DAY)
        result = await runtime.aresume("t")
        assert ("succeeded", {"Ada", "slept"}) == (result.status, set(result.values["got"]))


async def test_an_answer_by_id_that_comes_second_is_not_taken_for_another_questions_answer(opened: Any) -> None:
    async def asks(state: State) -> dict[str, Any]:
        return {"got": [interrupt("which?")]}

    graph = StateGraph(State)
    for name in ("one", "two"):
        graph.add_node(name, asks)
        graph.add_edge(START, name)
    async with opened(graph) as runtime:
        result = await runtime.ainvoke({}, thread_id="t")
        first, second = (one.id for one in result.questions)
        assert "waiting" == (await runtime.aresume("t", {first: "yes"})).status
        with pytest.raises(errors.AlreadyDecided):
            await runtime.aresume("t", {first: "no"})
        result = await runtime.aresume("t", {second: "me"})
        assert ("succeeded", {"yes", "me"}) == (result.status, set(result.values["got"]))


async def test_a_person_cannot_end_a_wait_for_a_time_or_an_event(opened: Any, query: Query) -> None:
    async def node(state: State) -> dict[str, Any]:
        ended = await first_of(event("a"), timer(for_=DAY))
        return {"got": [ended.timed_out]}

    async with opened(node) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        rows = query("select id, interrupt_id from waits")
        state = await runtime.astate("t")
        for answer in (
            "go on",
            Command(resume="go on"),
            *({key: {"standfast.waits": [{"event": None}, None]}} for row in rows for key in row),
            {state.interrupts[0].id: {"standfast.waits": [{"event": None}, None]}},
        ):
            with pytest.raises(errors.NothingToAnswer):
                await runtime.aresume("t", answer)
        with pytest.raises(errors.UnknownQuestion):
            await runtime.store.waits.answer("t", rows[0][0], "go on", "somebody")
        assert {("open",)} == set(query("select state from waits"))
        assert "waiting" == (await runtime.aresume("t")).status


# -- crashes and races


@pytest.mark.parametrize("point", ["drive.parking", "drive.parked", "drive.resuming"])
async def test_a_time_out_is_absolute_however_often_its_driver_fails(
    opened: Any, clock: Clock, query: Query, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def node(state: State) -> dict[str, Any]:
        return {"got": [await wait_for_event("never", timeout=DAY)]}

    def fail(reached: str) -> None:
        if reached == point:
            raise ConnectionResetError(point)

    until = clock.now() + DAY
    async with opened(node) as runtime:
        monkeypatch.setattr(crashpoints, "hook", fail if point != "drive.resuming" else None)
        if point == "drive.resuming":
            await runtime.ainvoke({}, thread_id="t")
        else:
            with pytest.raises(ConnectionResetError):
                await runtime.ainvoke({}, thread_id="t")
        for _ in range(3):
            clock.move(timedelta(hours=5))
            with suppress(ConnectionResetError):
                await runtime.aresume("t")
        monkeypatch.setattr(crashpoints, "hook", None)
        assert "waiting" == (await runtime.aresume("t")).status
        assert [(until,)] == query("select until from waits")
        clock.move(until - clock.now())
        if point == "drive.resuming":
            monkeypatch.setattr(crashpoints, "hook", fail)
            with pytest.raises(ConnectionResetError):
                await runtime.aresume("t")
            monkeypatch.setattr(crashpoints, "hook", None)
        assert [None] == (await runtime.aresume("t")).values["got"]


async def test_a_wait_raced_by_its_event_and_its_time_out_ends_exactly_once(
    opened: Any, query: Query, database_url: str
) -> None:
    async def node(state: State) -> dict[str, Any]:
        number = state["got"][0]
        happened = await wait_for_event(f"race-{number}", timeout=1.5)
        return {"got": [None if happened is None else happened.payload]}

    dice = random.Random(7)
    rounds = 100

    async def race(sender: Runtime, fleet: Runtime, number: int) -> tuple[int | None, Any]:
        thread = f"t{number}"
        await fleet.asubmit({"got": [number]}, thread_id=thread)
        await fleet.aresult(thread, timeout=30)
        (wait,) = await fleet.store.waits.of_run(thread, str((await fleet.store.threads.get(thread)).run_id))
        assert wait.until is not None
        left = (wait.until - await fleet.store.database.clock()).total_seconds()
        early = 0.02 if number % 2 else 0.4  # on a machine that is busy an emission takes its time
        await asyncio.sleep(max(0.0, left + dice.uniform(-early, 0.02)))
        woken = await sender.aemit(f"race-{number}", number, id=f"race-{number}")
        result = await fleet.aresult(thread, timeout=30)
        assert "succeeded" == result.status, result
        return woken, result.values["got"][1]

    async with opened(node) as fleet, opened(node) as sender, working(fleet):
        ends: list[tuple[int | None, Any]] = []
        for batch in range(0, rounds, 25):
            ends += await asyncio.gather(*(race(sender, fleet, one) for one in range(batch, batch + 25)))
    assert [(1, number) if woken else (0, None) for number, (woken, _) in enumerate(ends)] == ends
    assert {0, 1} == {woken for woken, _ in ends}, "the race was not close: one side always won"
    assert [(1,)] * rounds == query("select count(*) from waits where state <> 'open' group by thread_id")


async def test_an_event_emitted_while_its_wait_is_being_parked_is_never_missed(opened: Any) -> None:
    async def node(state: State) -> dict[str, Any]:
        happened = await wait_for_event(f"park-{state['got'][0]}")
        return {"got": [happened.payload if happened else None]}

    dice = random.Random(90)

    async def interleave(driver: Runtime, sender: Runtime, number: int) -> Any:
        thread = f"t{number}"
        pause = dice.uniform(0, 0.03)

        async def emit() -> None:
            await asyncio.sleep(pause)
            await sender.aemit(f"park-{number}", number, id=f"park-{number}")

        result, _ = await asyncio.gather(driver.ainvoke({"got": [number]}, thread_id=thread), emit())
        if result.status != "succeeded":
            result = await driver.aresume(thread)
        assert "succeeded" == result.status, result
        return result.values["got"][1]

    async with opened(node) as driver, opened(node) as sender:
        for batch in range(0, 200, 4):
            numbers = range(batch, batch + 4)
            assert list(numbers) == await asyncio.gather(*(interleave(driver, sender, one) for one in numbers))


# -- cost


async def test_thousands_of_waiting_threads_are_rows_and_nothing_else(opened: Any, query: Query) -> None:
    async def node(state: State) -> dict[str, Any]:
        ended = await first_of(event("wake", match=state["got"][0]), timer(for_=3 * DAY))
        return {"got": [ended.timed_out]}

    async with opened(node) as runtime:
        for number in range(50):
            assert "waiting" == (await runtime.ainvoke({"got": [number]}, thread_id=f"t{number}")).status
    query(
        "insert into threads (id, graph, version, fingerprint, run_id, due_at) "
        "select id || '-' || n, graph, version, fingerprint, run_id, due_at from threads, generate_series(1, 400) n"
    )
    query(
        "insert into waits (thread_id, id, run_id, kind, node, request, interrupt_id, position, name, match, until) "
        "select thread_id || '-' || n, id, run_id, kind, node, request, interrupt_id, position, name, match, until "
        "from waits, generate_series(1, 400) n"
    )
    query("analyze")
    assert [(20_050, 0)] == query("select count(*), count(lease_holder) from threads")
    connections = "select count(*) from pg_stat_activity where datname = current_database()"
    assert [(1,)] == query(connections), "somebody keeps a connection for a thread that waits"
    async with opened(node) as runtime:
        assert [] == await Fleet(runtime.store.database).overdue(["agent@1"], most=200), "nothing is overdue"
        assert 401 == await runtime.aemit("wake", match=12, id="1")
        assert [False] == (await runtime.aresume("t12")).values["got"][1:]
    for statement in (
        "select * from overdue_1(array['agent@1'], 1, 200)",
        "select * from claim_next_1(array['agent@1'], array['a', 'b'], 'w', 15, false)",
        "select * from claim_due_1('t7', 'h', 'w', 15)",
        "select * from emit_1('default', 'x', 'other', null, 'd', 'p', 'me', 10)",
    ):
        before = _scanned(query)
        query(statement)
        assert 50 > _scanned(query) - before, f"{statement} reads all threads or waits"


def _scanned(query: Query) -> int:
    """Rows that sequential scans of threads, waits and events have read so far."""
    query("select pg_stat_force_next_flush()")
    ((read,),) = query(
        "select sum(seq_tup_read) from pg_stat_user_tables where schemaname = 'standfast' "
        "and relname in ('threads', 'waits', 'events')"
    )
    return int(read)
