"""Events are emitted once for each id of their sender, kept for waits that come later, and given to whoever waits."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.graph import Effect, OperationContext, Policy, Principal, Runtime, operation, wait_for_event
from tests.conftest import Clock
from tests.crash.support.scripted_model import call, script

Query = Callable[..., list[tuple[Any, ...]]]
pytestmark = pytest.mark.guarantee("G7")


class State(TypedDict, total=False):
    names: list[str]
    match: Any
    got: Annotated[list[Any], operator.add]


async def node(state: State) -> dict[str, Any]:
    got = []
    for name in state["names"]:
        happened = await wait_for_event(name, match=state.get("match"))
        assert happened is not None
        got.append(happened.payload)
    return {"got": got}


@pytest.fixture
def waiter(database_url: str) -> Callable[[], Any]:
    """`async with waiter() as runtime:` whose runs wait for the events of the state's `names`."""

    @asynccontextmanager
    async def opening() -> AsyncIterator[Runtime]:
        graph = StateGraph(State)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        async with Runtime(graph, database_url=database_url) as runtime:
            yield runtime

    return opening


async def test_an_event_that_comes_before_its_wait_is_kept_for_it(waiter: Any) -> None:
    async with waiter() as runtime:
        assert 0 == await runtime.aemit("a", {"n": 1}, id="1")
        result = await runtime.ainvoke({"names": ["a"]}, thread_id="t")
        assert ("succeeded", [{"n": 1}]) == (result.status, result.values["got"])


async def test_an_event_wakes_every_thread_that_waits_and_is_received_once_by_each(waiter: Any) -> None:
    async with waiter() as runtime:
        for thread in ("t1", "t2"):
            await runtime.ainvoke({"names": ["a", "a"]}, thread_id=thread)
        assert 2 == await runtime.aemit("a", 1, id="1")
        for thread in ("t1", "t2"):
            assert "waiting" == (await runtime.aresume(thread)).status, "one event ended two waits of a thread"
        assert 2 == await runtime.aemit("a", 2, id="2")
        for thread in ("t1", "t2"):
            assert [1, 2] == (await runtime.aresume(thread)).values["got"]
        late = await runtime.ainvoke({"names": ["a", "a"]}, thread_id="t3")
        assert [1, 2] == late.values["got"], "an event is kept also after others have received it"


async def test_an_event_sent_again_changes_nothing(waiter: Any) -> None:
    async with waiter() as runtime:
        await runtime.ainvoke({"names": ["a", "a"]}, thread_id="t")
        assert 1 == await runtime.aemit("a", {"x": 1, "y": {2, 3}}, id="1")
        assert None is await runtime.aemit("a", {"x": 1, "y": {3, 2}}, id="1")
        assert "waiting" == (await runtime.aresume("t")).status
        assert None is await runtime.aemit("a", {"x": 1, "y": {2, 3}}, id="1")
        assert "waiting" == (await runtime.aresume("t")).status


@pytest.mark.parametrize(
    "other",
    [{"payload": 2}, {"name": "b"}, {"match": "m"}, {"payload": True}, {"payload": 1.0}],
)
async def test_an_id_that_stands_for_another_event_is_refused(waiter: Any, other: dict[str, Any], query: Query) -> None:
    async with waiter() as runtime:
        await runtime.aemit("a", 1, id="1")
        with pytest.raises(errors.EventConflict) as refused:
            await runtime.aemit(other.pop("name", "a"), other.pop("payload", 1), id="1", **other)
        assert "1" == refused.value.event_id
        assert [(1,)] == query("select count(*) from events")


async def test_the_same_event_sent_from_everywhere_at_once_is_one(waiter: Any, query: Query) -> None:
    async with waiter() as one, waiter() as two:
        await one.ainvoke({"names": ["a"]}, thread_id="t")
        woken = await asyncio.gather(*(sender.aemit("a", 1, id="1") for sender in (one, two) * 20))
        assert [1] == [count for count in woken if count is not None]
        assert [(1,)] == query("select count(*) from events")


async def test_a_late_event_is_kept_for_the_next_wait(waiter: Any, database_url: str, clock: Clock) -> None:
    async def hurried(state: State) -> dict[str, Any]:
        first = await wait_for_event("a", timeout=60)
        second = await wait_for_event("a")
        return {"got": [one.payload if one else None for one in (first, second)]}

    graph = StateGraph(State)
    graph.add_node("node", hurried)
    graph.add_edge(START, "node")
    async with Runtime(graph, database_url=database_url) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        clock.move(timedelta(seconds=60))
        assert 0 == await runtime.aemit("a", 1, id="1"), "the wait's time was over, though no driver had seen that yet"
        assert [None, 1] == (await runtime.aresume("t")).values["got"]


async def test_an_event_that_came_between_a_time_out_and_a_recovered_parking_is_too_late(
    database_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hurried(state: State) -> dict[str, Any]:
        happened = await wait_for_event("a", timeout=60)
        return {"got": [happened and happened.payload]}

    def fail(point: str) -> None:
        if point == "drive.parking":
            raise ConnectionResetError

    graph = StateGraph(State)
    graph.add_node("node", hurried)
    graph.add_edge(START, "node")
    async with Runtime(graph, database_url=database_url) as runtime:
        with monkeypatch.context() as patch:
            patch.setattr("standfast.checkpoint.crashpoints.hook", fail)
            with pytest.raises(ConnectionResetError):
                await runtime.ainvoke({}, thread_id="t")
        clock.move(timedelta(seconds=61))
        await runtime.aemit("a", 1, id="1")
        assert [None] == (await runtime.aresume("t")).values["got"]


async def test_reordered_events_reach_their_waits_by_name(waiter: Any) -> None:
    async with waiter() as runtime:
        await runtime.ainvoke({"names": ["a", "b", "c"]}, thread_id="t")
        for name in ("c", "b", "a"):
            await runtime.aemit(name, name.upper(), id=name)
        assert ["A", "B", "C"] == (await runtime.aresume("t")).values["got"]


async def test_events_of_one_name_are_received_in_the_order_of_their_emission(waiter: Any) -> None:
    async with waiter() as runtime:
        for number in range(5):
            await runtime.aemit("a", number, id=f"{9 - number}")
        assert list(range(5)) == (await runtime.ainvoke({"names": ["a"] * 5}, thread_id="t")).values["got"]


async def test_a_match_is_by_value_and_a_wait_without_one_takes_all(waiter: Any) -> None:
    async with waiter() as runtime:
        await runtime.ainvoke({"names": ["paid"], "match": {"order": 7, "shop": "x"}}, thread_id="t7")
        await runtime.ainvoke({"names": ["paid"], "match": {"order": 8}}, thread_id="t8")
        await runtime.ainvoke({"names": ["paid"]}, thread_id="any")
        assert 2 == await runtime.aemit("paid", 1, id="1", match={"shop": "x", "order": 7})
        assert 0 == await runtime.aemit("paid", 2, id="2")
        assert ["succeeded", "waiting", "succeeded"] == [
            str((await runtime.aresume(thread)).status) for thread in ("t7", "t8", "any")
        ]


async def test_an_event_lives_as_long_as_its_sender_said(waiter: Any, clock: Clock, query: Query) -> None:
    async with waiter() as runtime:
        await runtime.ainvoke({"names": ["a", "never"]}, thread_id="received")
        await runtime.aemit("a", 1, id="1", ttl=timedelta(hours=1))
        await runtime.aresume("received")
        clock.move(timedelta(hours=1))
        assert "waiting" == (await runtime.ainvoke({"names": ["a"]}, thread_id="late")).status
        await runtime.store.events.drop_expired()
        assert [("1",)] == query("select id from events"), "an unfinished run has received it and reads it again"
        await runtime.aemit("never", 2, id="2")
        assert [1, 2] == (await runtime.aresume("received")).values["got"]
        await runtime.store.events.drop_expired()
        assert [("2",)] == query("select id from events")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {"id": "1"}),
        ("a\n", {"id": "1"}),
        ("a", {"id": ""}),
        ("a", {"id": "x" * 256}),
        ("a", {"id": "1", "ttl": timedelta(0)}),
        ("a", {"id": "1", "ttl": timedelta.max}),
        ("a", {"id": "1", "match": object()}),
    ],
)
async def test_an_unusable_event_is_refused_at_the_door(
    waiter: Any, query: Query, name: str, options: dict[str, Any]
) -> None:
    async with waiter() as runtime:
        with pytest.raises(errors.InvalidRequest):
            await runtime.aemit(name, **options)
        assert [(0,)] == query("select count(*) from events")


async def test_a_payload_that_cannot_be_stored_is_refused_at_the_door(waiter: Any, query: Query) -> None:
    async with waiter() as runtime:
        with pytest.raises(errors.UnstorableValue):
            await runtime.aemit("a", object(), id="1")
        assert [(0,)] == query("select count(*) from events")


# -- from operations


def _waiting(effect: Effect, calls: list[int]) -> Any:
    @operation(policy=Policy(effect=effect), name="collect")
    async def collect(order: int, context: OperationContext) -> str:
        """Wait for the parcel of an order."""
        calls.append(context.attempt)
        happened = await wait_for_event("parcel", match=order)
        calls.append(context.attempt)
        return "nothing came" if happened is None else str(happened.payload)

    return collect


@pytest.mark.parametrize("effect", [Effect.READ, Effect.IDEMPOTENT, Effect.TRANSACTIONAL])
async def test_an_operation_that_may_be_called_again_may_wait(opened: Any, effect: Effect, query: Query) -> None:
    calls: list[int] = []
    async with opened(_waiting(effect, calls)) as runtime:
        result = await runtime.ainvoke(script([call("collect", order=7)]), thread_id="t")
        assert "waiting" == result.status, result
        assert [(0,)] == query("select count(*) from threads where lease_holder is not null")
        assert 1 == await runtime.aemit("parcel", "a box", id="1", match=7)
        result = await runtime.aresume("t")
        assert "succeeded" == result.status, result
        assert ["a box"] == [str(one.text) for one in result.messages if one.type == "tool"]
        assert 3 == len(calls), "called to its wait, then again to its end"


async def test_an_operation_that_must_not_be_called_twice_is_refused_its_wait(opened: Any, query: Query) -> None:
    calls: list[int] = []
    async with opened(_waiting(Effect.AT_MOST_ONCE, calls)) as runtime:
        result = await runtime.ainvoke(script([call("collect", order=7)]), thread_id="t")
        assert "succeeded" == result.status, result
        (answer,) = [str(one.text) for one in result.messages if one.type == "tool"]
        assert "WaitRefused" in answer
        assert [1] == calls
        assert [(0,)] == query("select count(*) from waits")


async def test_an_operation_that_asks_in_the_middle_and_must_not_be_called_twice_has_an_unknown_outcome(
    opened: Any,
) -> None:
    calls: list[int] = []

    @operation(policy=Policy(effect=Effect.AT_MOST_ONCE))
    async def pay(context: OperationContext) -> str:
        """Pay."""
        calls.append(context.attempt)
        return str(interrupt("really?"))

    async with opened(pay) as runtime:
        result = await runtime.ainvoke(script([call("pay")]), thread_id="t")
        assert ["outcome"] == [one.kind for one in result.approvals]
        assert [1] == calls
        (operation_row,) = [one for one in await runtime.store.operations.list("t") if one.kind == "tool"]
        assert "unknown" == operation_row.state


async def test_a_wait_and_an_approval_are_open_side_by_side(opened: Any) -> None:
    @operation(policy=Policy(effect=Effect.IDEMPOTENT, approval=True))
    async def pay(amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    calls: list[int] = []
    async with opened(pay, _waiting(Effect.READ, calls)) as runtime:
        request = script([call("pay", amount=5), call("collect", order=7)])
        result = await runtime.ainvoke(request, thread_id="t")
        assert ("waiting", 1) == (result.status, len(result.approvals))
        await runtime.aemit("parcel", "a box", id="1", match=7)
        result = await runtime.aresume("t")
        assert ("waiting", 1) == (result.status, len(result.approvals))
        result = await runtime.aresume("t", approve=result.approvals[0].id, as_=Principal.vouched("a@example.com"))
        assert "succeeded" == result.status
        assert ["paid 5", "a box"] == [str(one.text) for one in result.messages if one.type == "tool"]


async def test_a_worker_forgets_events_whose_time_is_over(waiter: Any, clock: Clock) -> None:
    async with waiter() as runtime:
        await runtime.aemit("a", 1, id="1", ttl=timedelta(hours=1))
        clock.move(timedelta(hours=1))
        stop = asyncio.Event()
        work = asyncio.create_task(runtime.awork(stop=stop))
        async with asyncio.timeout(10):
            for _ in range(500):
                if not await runtime.store.events.by_seq([1]):
                    break
                await asyncio.sleep(0.02)
        stop.set()
        await work
        assert {} == await runtime.store.events.by_seq([1])
