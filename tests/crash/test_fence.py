"""A driver that is stopped for longer than its lease, and wakes up when another has taken over, changes nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.crash.support.processes import wait_until_stopped

Query = Callable[..., list[tuple[Any, ...]]]

LEASE = 1.0
TAKEOVER = LEASE + 4.0  # the follower's poll, a second for a stalled transaction, and a busy machine

DRIVER = """
import asyncio, json, operator, os, signal, sys, time
from typing import Annotated, TypedDict
import psycopg
from langgraph.graph import START, StateGraph
from standfast.checkpoint import crashpoints, errors
from standfast.graph.runtime import AsyncRuntime

url, verb, stop_at, lease = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])

class State(TypedDict, total=False):
    done: Annotated[list, operator.add]

def stop(here):
    global stop_at
    if here == stop_at:
        stop_at = ""
        os.kill(os.getpid(), signal.SIGSTOP)

reached = {}
claimed = 0.0
def hook(point):
    global claimed
    if point == "lease.claimed":
        claimed = time.monotonic()
    reached[point] = reached.get(point, 0) + 1
    stop(f"{point}:{reached[point]}")
crashpoints.hook = hook

def node(name):
    async def run(state):
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("insert into effects (node, pid) values (%s, %s)", (name, os.getpid()))
        stop(name)
        return {"done": [[name, os.getpid()]]}
    return run

graph = StateGraph(State)
names = ["one", "two", "three", "four"]
for name in names:
    graph.add_node(name, node(name))
graph.add_edge(START, "one")
for before, after in zip(names, names[1:]):
    graph.add_edge(before, after)

async def main():
    async with AsyncRuntime(graph, database_url=url, lease_seconds=lease) as runtime:
        opened = time.monotonic()
        result = await (runtime.ainvoke({"done": []}, thread_id="t") if verb == "invoke" else runtime.aresume("t"))
        print(json.dumps({"status": result.status, "done": result.values["done"],
                          "opened": opened, "claimed": claimed}))

try:
    asyncio.run(main())
except errors.StandfastError as error:
    print(json.dumps({"error": type(error).__name__}))
"""


def start(url: str, verb: str, stop_at: str = "-") -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", DRIVER, url, verb, stop_at, str(LEASE)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=30)
    return dict(json.loads(output.splitlines()[-1]))


@contextmanager
def stopped(url: str, stop_at: str) -> Iterator[subprocess.Popen[str]]:
    """A driver that has stopped itself at a place."""
    process = start(url, "invoke", stop_at)
    try:
        wait_until_stopped(process, stop_at, seconds=30)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def everything(query: Query) -> list[Any]:
    return [
        query(f"select * from {table} order by 1, 2, 3")
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "threads", "runs", "waits")
    ]


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    "stop_at",
    [
        pytest.param("saver.committed:2", id="between two nodes"),
        pytest.param("two", id="inside a node, its effect done"),
        pytest.param("saver.fenced:3", id="between the fence and the commit"),
        pytest.param("drive.ending:1", id="before the end is written"),
    ],
)
def test_a_stopped_driver_changes_nothing_after_the_takeover(database_url: str, query: Query, stop_at: str) -> None:
    query("create table public.effects (node text, pid int)")
    with stopped(database_url, stop_at) as process:
        began = time.monotonic()
        if stop_at.startswith("saver.fenced"):
            assert [("threads", "RowShareLock", True)] == fences(query)
        taker = start(database_url, "resume")
        result = said(taker)
        assert "succeeded" == result["status"]
        assert ["one", "two", "three", "four"] == [name for name, _ in result["done"]]
        assert result["claimed"] - max(began, result["opened"]) < TAKEOVER  # one clock for all processes

        time.sleep(max(0.0, began + 2 * LEASE - time.monotonic()))  # stopped for twice its lease
        before = everything(query)
        process.send_signal(signal.SIGCONT)
        assert {"error": "LeaseLost"} == said(process)
        assert before == everything(query)

    drivers = dict(query("select pid, array_agg(node) from public.effects group by pid"))
    assert {process.pid, taker.pid} >= drivers.keys()
    assert set(drivers[process.pid]).isdisjoint({"three", "four"} if stop_at != "drive.ending:1" else ())


def fences(query: Query) -> list[tuple[Any, ...]]:
    """The locks on threads that open transactions of drivers hold."""
    return query(
        """select l.relation::regclass::text, l.mode, l.granted
             from pg_locks l join pg_stat_activity a using (pid)
            where l.relation = 'threads'::regclass and l.mode = 'RowShareLock' and a.xact_start is not null
              and a.datname = current_database() and a.pid <> pg_backend_pid()"""
    )
