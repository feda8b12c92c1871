"""Limits that stand in the database: what may be set, what waits at the gate, who comes first, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from standfast.checkpoint import errors
from standfast.graph import Effect, Limit, Policy, Runtime, operation
from tests.conftest import Clock
from tests.crash.support.scripted_model import call, script

pytestmark = pytest.mark.guarantee("G7")
Query = Callable[..., list[tuple[Any, ...]]]
Open = Callable[..., Any]


class Note(TypedDict, total=False):
    text: str


class Work:
    """A graph that says when it is at work."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.at_work = 0
        self.most = 0

    async def node(self, state: Note) -> Note:
        self.order.append(state["text"])
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        await asyncio.sleep(0.03)
        self.at_work -= 1
        return {}

    def graph(self) -> StateGraph[Note]:
        graph = StateGraph(Note)
        graph.add_node("node", self.node)
        graph.add_edge(START, "node")
        return graph


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
async def runtime(database_url: str, work: Work) -> AsyncIterator[Runtime]:
    async with Runtime(work.graph(), database_url=database_url, name="notes") as runtime:
        yield runtime


@asynccontextmanager
async def working(runtime: Runtime) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(runtime.awork(stop=stop))
    yield
    stop.set()
    await task


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("key", ["graph:notes", "tenant:default"])
async def test_no_more_runs_of_a_graph_or_tenant_are_driven_at_a_time_than_may(
    runtime: Runtime, work: Work, key: str
) -> None:
    await runtime.aset_limit(Limit(key, concurrency=2))
    for number in range(12):
        await runtime.asubmit({"text": str(number)}, thread_id=f"t{number}")
    async with working(runtime):
        await until(lambda: len(work.order) == 12 and work.at_work == 0)
    assert 2 == work.most


async def test_the_next_run_in_line_begins_when_one_ends_and_not_at_the_next_sweep(
    runtime: Runtime, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.graph.worker.SWEEP_SECONDS", 3600.0)
    await runtime.aset_limit(Limit("graph:notes", concurrency=1))
    for number in range(6):
        await runtime.asubmit({"text": str(number)}, thread_id=f"t{number}")
    async with working(runtime):
        await until(lambda: len(work.order) == 6)
    assert 1 == work.most


async def test_the_more_urgent_run_comes_first(runtime: Runtime, work: Work) -> None:
    await runtime.aset_limit(Limit("graph:notes", concurrency=1))
    for number, priority in enumerate([0, -5, 1000, 7, 0]):
        await runtime.asubmit({"text": str(priority)}, thread_id=f"t{number}", priority=priority)
    stop = asyncio.Event()
    task = asyncio.create_task(runtime.awork(stop=stop, concurrency=1))
    await until(lambda: len(work.order) == 5)
    stop.set()
    await task
    assert ["1000", "7", "0", "0", "-5"] == work.order


@pytest.mark.parametrize("priority", [1001, -1001, 0.5, True, "1"])
async def test_a_priority_that_is_none_is_refused(runtime: Runtime, priority: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="priority"):
        await runtime.asubmit({"text": "a"}, priority=priority)


async def test_more_queued_work_than_may_wait_is_refused_and_nothing_is_kept(runtime: Runtime, query: Query) -> None:
    await runtime.aset_limit(Limit("graph:notes", queued=2))
    for number in range(2):
        await runtime.asubmit({"text": "a"}, thread_id=f"t{number}", client_key=f"k{number}")
    with pytest.raises(errors.QueueFull) as refused:
        await runtime.asubmit({"text": "a"}, thread_id="t2")
    assert ("graph:notes", 2, True) == (refused.value.key, refused.value.bound, refused.value.transient)
    assert [(2,)] == query("select count(*) from threads")
    assert "t1" == (await runtime.asubmit({"text": "a"}, thread_id="t1", client_key="k1")).thread_id
    assert "succeeded" == (await runtime.ainvoke({"text": "b"}, thread_id="t3")).status  # it waits for no worker
    await runtime.aresume("t0")
    assert "queued" == (await runtime.asubmit({"text": "a"}, thread_id="t2")).status


class Blocked:
    """An operation that can be held up."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.began = 0

    def operation(self) -> Any:
        @operation(policy=Policy(effect=Effect.READ))
        async def ping(text: str) -> str:
            """Say it back."""
            self.began += 1
            await self.go.wait()
            return text

        return ping


async def test_a_call_that_waits_for_a_slot_parks_and_is_woken_when_one_is_given_back(
    opened: Open, query: Query, clock: Clock
) -> None:
    blocked = Blocked()
    async with opened(blocked.operation()) as runtime:
        await runtime.aset_limit(Limit("operation:ping", concurrency=1))
        first = asyncio.create_task(runtime.ainvoke(script([call("ping", text="a")]), thread_id="t1"))
        await until(lambda: blocked.began == 1)
        second = await runtime.ainvoke(script([call("ping", text="b")]), thread_id="t2")
        assert "waiting" == second.status
        assert [(None,)] == query("select lease_holder from threads where id = 't2'")
        assert [] == query(
            "select number from attempts a join operations o on o.id = a.operation_id "
            "where o.thread_id = 't2' and o.kind = 'tool'"
        )
        [limit] = await runtime.alimits()
        assert 1 == limit.used
        blocked.go.set()
        assert "succeeded" == (await first).status
        assert [(True,)] == query("select due_at <= standfast.now() from threads where id = 't2'")
        assert "succeeded" == (await runtime.aresume("t2")).status
    assert 2 == blocked.began


async def test_a_slot_of_a_driver_that_has_died_is_free_again(opened: Open, query: Query, clock: Clock) -> None:
    blocked = Blocked()
    blocked.go.set()
    async with opened(blocked.operation()) as runtime:
        await runtime.aset_limit(Limit("operation:ping", concurrency=1))
        query(
            "insert into threads (id, graph, version, fingerprint, epoch, lease_holder, lease_expires_at) "
            "values ('dead', 'agent', '1', '', 4, 'x', standfast.now() + interval '1 minute')"
        )
        query("insert into flow_slots (key, thread_id, operation_id, epoch) values ('operation:ping', 'dead', 'op', 4)")
        request = script([call("ping", text="a")])
        assert "waiting" == (await runtime.ainvoke(request, thread_id="t")).status
        query("update threads set lease_expires_at = standfast.now() - interval '1 second' where id = 'dead'")
        query("update threads set due_at = standfast.now() where id = 't'")
        query("update waits set until = standfast.now() where thread_id = 't'")
        assert "succeeded" == (await runtime.aresume("t")).status


@pytest.mark.parametrize("key", ["model:ScriptedModel", "operation:ping"])
async def test_a_rate_that_is_spent_parks_until_the_next_call_is_free(
    opened: Open, query: Query, clock: Clock, key: str
) -> None:
    blocked = Blocked()
    blocked.go.set()
    async with opened(blocked.operation()) as runtime:
        await runtime.aset_limit(Limit(key, rate=2, per=3600, burst=2))
        began = clock.now()
        request = script([call("ping", text="a")], [call("ping", text="b")], [call("ping", text="c")])
        result = await runtime.ainvoke(request, thread_id="t")
        assert "waiting" == result.status
        ((until_,),) = query("select until from waits where state = 'open'")
        assert 3600 == (until_ - began).total_seconds()
        clock.move(until_ - began)
        result = await runtime.aresume("t")
    assert ("waiting" if key.startswith("model") else "succeeded") == result.status


@pytest.mark.parametrize(
    "given",
    [
        {"key": "jot", "concurrency": 1},
        {"key": "operation:", "concurrency": 1},
        {"key": "operation:jot"},
        {"key": "operation:jot", "concurrency": 0},
        {"key": "operation:jot", "concurrency": True},
        {"key": "operation:jot", "rate": 5},
        {"key": "operation:jot", "per": 5.0},
        {"key": "operation:jot", "rate": 5, "per": 0.0},
        {"key": "operation:jot", "rate": 5, "per": 1.0, "burst": 6},
        {"key": "operation:jot", "burst": 6},
        {"key": "operation:jot", "queued": 6},
        {"key": "graph:notes", "rate": 5, "per": 1.0},
        {"key": "graph:notes", "queued": -1},
    ],
)
def test_a_limit_that_says_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest):
        Limit(**given)


async def test_a_limit_that_is_taken_away_holds_nobody_up(runtime: Runtime) -> None:
    await runtime.aset_limit(Limit("graph:notes", concurrency=1))
    await runtime.aset_limit(Limit("graph:notes", concurrency=3, queued=9))
    [row] = await runtime.alimits()
    assert (3, 9, 0) == (row.limit.concurrency, row.limit.queued, row.used)
    assert await runtime.aclear_limit("graph:notes")
    assert not await runtime.aclear_limit("graph:notes")
    assert [] == await runtime.alimits()
