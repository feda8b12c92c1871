"""Random kills and random answers: whatever dies whenever, each call is executed once, by the one who answered it."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from standfast.checkpoint.database import Database
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.store import Store
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.checkpoint.threads import Status

Query = Callable[..., list[tuple[Any, ...]]]

SECONDS = float(os.environ.get("STANDFAST_FUZZ_SECONDS", "20"))
LEASE = 0.4

# Imports once, then forks a driver for each thread id that it reads: a process start would take a second.
NURSERY = """
import asyncio, operator, os, random, sys
from typing import Annotated, TypedDict
import psycopg
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt
from standfast.checkpoint import crashpoints, errors
from standfast.graph.runtime import AsyncRuntime

url, lease = sys.argv[1], float(sys.argv[2])

class State(TypedDict, total=False):
    thread: str
    calls: list
    results: Annotated[list, operator.add]

class Call(TypedDict, total=False):
    thread: str
    call: dict
    by: str
    results: Annotated[list, operator.add]

class Out(TypedDict):
    results: Annotated[list, operator.add]

async def nap():
    await asyncio.sleep(random.random() * 0.03)

async def analysis(state):
    await nap()
    return {}

def approval(state):
    return {"by": interrupt({"call": state["call"]["id"]}) if state["call"]["risky"] else "nobody"}

async def operate(state):
    await nap()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute(
            "insert into public.ledger values (%s, %s, %s) on conflict do nothing",
            (state["thread"], state["call"]["id"], state["by"]))
    await nap()
    return {"results": [[state["call"]["id"], state["by"]]]}

call = StateGraph(Call, output_schema=Out)
call.add_node("approval", approval)
call.add_node("operate", operate)
call.add_edge(START, "approval")
call.add_edge("approval", "operate")
graph = StateGraph(State)
graph.add_node("analysis", analysis)
graph.add_node("operation", call.compile())
graph.add_edge(START, "analysis")
graph.add_conditional_edges(
    "analysis",
    lambda state: END if state.get("results") else
        [Send("operation", {"thread": state["thread"], "call": one}) for one in state["calls"]],
    ["operation", END])
graph.add_edge("operation", "analysis")
CALLS = [{"id": name, "risky": name != "c"} for name in "abcd"]

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def hook(point):
    if point in ("lease.claimed", "run.accepted"):
        say("claimed", os.getpid())

async def drive(thread):
    async with AsyncRuntime(graph, database_url=url, lease_seconds=lease) as runtime:
        try:
            await runtime.acarry_on(thread)
        except errors.UnknownThread:
            await runtime.ainvoke({"thread": thread, "calls": CALLS, "results": []}, thread_id=thread)

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        crashpoints.hook = hook
        code = 1
        try:
            asyncio.run(drive(line.strip()))
            code = 0
        except (errors.LeaseLost, errors.ThreadBusy):
            code = 2
        finally:
            os._exit(code)
    say("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class Nursery:
    """Drivers, one after another, each killed at random or left alone."""

    def __init__(self, url: str, rng: random.Random) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY, url, str(LEASE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._rng = rng
        self.kills = 0

    def drive(self, thread_id: str) -> int:
        """Let a driver work on the thread and return its exit code; -9 if it was killed under its lease."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{thread_id}\n".encode())
        self._process.stdin.flush()
        kill = self._rng.random() < 0.75
        while True:
            word, value = self._read()
            if word == "ended":
                return int(value)
            if kill and not self._readable(self._rng.random() * 0.13):
                os.kill(int(value), signal.SIGKILL)
                self.kills += 1
                kill = False

    def _readable(self, seconds: float) -> bool:
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def _read(self) -> tuple[str, str]:
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):  # unbuffered, so that select sees what is left
            got = os.read(self._process.stdout.fileno(), 1)
            assert got, "the nursery has died"
            line += got
        word, value = line.split()
        return word.decode(), value.decode()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def nursery(database_url: str) -> Iterator[Nursery]:
    nursery = Nursery(database_url, random.Random(7))
    yield nursery
    nursery.close()


@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G3")
@pytest.mark.timeout(SECONDS + 100)
async def test_each_call_ends_once_with_its_own_answer_whatever_is_killed(
    database_url: str, query: Query, nursery: Nursery
) -> None:
    query("create table public.ledger (thread text, call text, by text, primary key (thread, call))")
    rng = random.Random(11)
    database = Database(database_url, pool_size=2)
    await database.open()
    store = Store.over(database, TypeRegistry())
    threads = 0
    codes: dict[int, int] = {}
    stop = time.monotonic() + SECONDS
    while time.monotonic() < stop:
        threads += 1
        thread = f"t{threads}"
        given: dict[str, str] = {}
        asked: dict[str, str] = {}
        status = None
        for _ in range(100):
            code = await asyncio.to_thread(nursery.drive, thread)
            codes[code] = codes.get(code, 0) + 1
            assert code in (0, 2, -9), "a driver failed by itself"
            if not query("select 1 from threads where id = %s", thread):
                continue
            while (known := await store.threads.get(thread)).status is Status.RUNNING:
                await asyncio.sleep(0.02)  # the lease of the dead runs out
            status = known.status
            if status is Status.SUCCEEDED:
                break
            assert known.run_id is not None
            for wait in await store.waits.of_run(thread, known.run_id):
                call = wait.request["call"]
                assert wait.id == asked.setdefault(call, wait.id)
                if wait.state == "open" and rng.random() < 0.5:
                    given[call] = f"person {rng.random():.3f}"
                    await store.waits.answer(thread, wait.id, given[call], "someone")
        assert Status.SUCCEEDED is status
        expected = sorted({**given, "c": "nobody"}.items())
        assert ["a", "b", "c", "d"] == [call for call, _ in expected]
        assert expected == query("select call, by from public.ledger where thread = %s order by call", thread)
        assert expected == sorted(await results(store, thread))
    await database.close()
    print(f"\n{threads} threads, {nursery.kills} kills, exit codes {codes}")
    assert nursery.kills >= threads


async def results(store: Store, thread_id: str) -> list[tuple[str, str]]:
    saver = LeasedSaver(store.database, store.sealer)
    found = await saver.aget_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
    assert found is not None
    return [(call, by) for call, by in found.checkpoint["channel_values"]["results"]]
