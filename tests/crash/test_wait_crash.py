"""A wait outlives the processes that began it: timers of days, absolute time-outs, events that come meanwhile."""

from __future__ import annotations

import asyncio
import operator
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from standfast.graph import Runtime, sleep, wait_for_event
from tests.conftest import Clock
from tests.servers.fixtures import Eventually

Query = Callable[..., list[tuple[Any, ...]]]
pytestmark = pytest.mark.guarantee("G7")
DAY = timedelta(days=1)

PROCESS = """
import asyncio, os, signal, sys
from datetime import timedelta
from typing import TypedDict
from langgraph.graph import START, StateGraph
from standfast.checkpoint import crashpoints
from standfast.graph import Runtime, sleep, wait_for_event

class State(TypedDict, total=False):
    got: list

async def node(state):
    await sleep(for_=timedelta(days=3))
    happened = await wait_for_event("a", timeout=timedelta(days=1))
    return {"got": [None if happened is None else happened.payload]}

def kill(point):
    if point == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    crashpoints.hook = kill
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    async with Runtime(graph, database_url=sys.argv[1], lease_seconds=1.0) as runtime:
        if sys.argv[2] == "work":
            await runtime.awork()
        elif sys.argv[2] == "ask":
            await runtime.ainvoke({}, thread_id="t")
        else:
            await runtime.aresume("t")

asyncio.run(main())
"""


class State(TypedDict, total=False):
    got: Annotated[list[Any], operator.add]


async def node(state: State) -> dict[str, Any]:
    await sleep(for_=3 * DAY)
    happened = await wait_for_event("a", timeout=DAY)
    return {"got": [None if happened is None else happened.payload]}


@pytest.fixture
def runtime(database_url: str) -> Runtime:
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return Runtime(graph, database_url=database_url)


@pytest.fixture
def process(database_url: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process that does `work`, `ask` or `resume`, and is killed at a point."""
    started: list[subprocess.Popen[bytes]] = []

    def start(verb: str, point: str = "") -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", PROCESS, database_url, verb, point]))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


async def test_a_timer_of_three_days_fires_after_its_worker_was_killed(
    runtime: Runtime,
    process: Callable[..., subprocess.Popen[bytes]],
    clock: Clock,
    query: Query,
    eventually: Eventually,
) -> None:
    async with runtime:
        first = process("work")
        await runtime.asubmit({}, thread_id="t")
        assert "waiting" == (await runtime.aresult("t", timeout=30)).status
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert [(None,)] == query("select lease_holder from threads")
        clock.move(3 * DAY - timedelta(seconds=1))
        assert "waiting" == (await runtime.aresume("t")).status
        second = process("work")
        clock.move(timedelta(seconds=1))
        parked = "select name from waits where state = 'open'"
        await asyncio.to_thread(eventually, lambda: query(parked) == [("a",)], 20)
        second.send_signal(signal.SIGKILL)
        second.wait()
        assert 1 == await runtime.aemit("a", "come", id="1")
        assert ["come"] == (await runtime.aresume("t")).values["got"]


@pytest.mark.parametrize("point", ["drive.parking", "drive.parked"])
async def test_a_time_out_is_absolute_though_its_process_died_around_the_parking(
    runtime: Runtime, process: Callable[..., subprocess.Popen[bytes]], clock: Clock, query: Query, point: str
) -> None:
    until = clock.now() + 3 * DAY
    assert -signal.SIGKILL == await asyncio.to_thread(process("ask", point).wait)
    async with runtime:
        clock.move(DAY)
        assert "waiting" == (await runtime.aresume("t")).status
        assert [(until,)] == query("select until from waits")
        clock.move(until - clock.now())
        assert "waiting" == (await runtime.aresume("t")).status
        assert [(until + DAY,)] == query("select until from waits where state = 'open'")


@pytest.mark.parametrize("point", ["lease.claimed", "drive.resuming", "saver.fenced", "drive.parking"])
async def test_an_event_that_woke_a_process_that_died_is_received_by_the_next(
    runtime: Runtime, process: Callable[..., subprocess.Popen[bytes]], clock: Clock, query: Query, point: str
) -> None:
    async with runtime:
        await runtime.ainvoke({}, thread_id="t")
        clock.move(3 * DAY)
        assert "waiting" == (await runtime.aresume("t")).status
        assert 1 == await runtime.aemit("a", "come", id="1")
        died = await asyncio.to_thread(process("resume", point).wait)
        assert died in (-signal.SIGKILL, 0)
        clock.move(2 * DAY)
        assert ["come"] == (await runtime.aresume("t")).values["got"]
        assert [("answered",), ("timed_out",)] == query("select state from waits order by 1")
