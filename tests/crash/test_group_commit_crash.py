"""A process that dies or stalls in the middle of a commit of several threads leaves each of them as it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.support.processes import wait_until_stopped

Query = Callable[..., list[tuple[Any, ...]]]

LEASE = 1.0
THREADS = 6

DRIVER = """
import asyncio, json, operator, os, signal, sys
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
from standfast.checkpoint import crashpoints, errors
from standfast.graph.runtime import AsyncRuntime

url, verb, count, lease, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])

class State(TypedDict, total=False):
    done: Annotated[list, operator.add]

def hook(point):
    global number
    if point == "group.fenced":
        number -= 1
        if number == 0:
            os.kill(os.getpid(), getattr(signal, sys.argv[6]))
crashpoints.hook = hook

def node(name):
    async def run(state):
        await asyncio.sleep(0.05)  # all threads are at the same step
        return {"done": [name]}
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
        def drive(thread):
            return runtime.ainvoke({"done": []}, thread_id=thread) if verb == "invoke" else runtime.aresume(thread)
        ended = await asyncio.gather(*(drive(f"t{n}") for n in range(count)), return_exceptions=True)
        print(json.dumps([type(one).__name__ if isinstance(one, BaseException) else [one.status, one.values["done"]]
                          for one in ended]))

asyncio.run(main())
"""


def start(url: str, verb: str, number: int = 0, signal_name: str = "SIGKILL") -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", DRIVER, url, verb, str(THREADS), str(LEASE), str(number), signal_name]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> list[Any]:
    output, _ = process.communicate(timeout=60)
    return list(json.loads(output.splitlines()[-1]))


def everything(query: Query) -> list[Any]:
    return [query(f"select * from {table} order by 1, 2, 3") for table in ("checkpoints", "checkpoint_writes", "runs")]


OPEN = """select 1 from pg_stat_activity
           where datname = current_database() and xact_start is not null and pid <> pg_backend_pid()"""
ENDED = [["succeeded", ["one", "two", "three", "four"]]] * THREADS


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("number", [1, 3])
def test_a_group_whose_process_is_killed_leaves_every_thread_to_be_carried_on(
    database_url: str, query: Query, number: int
) -> None:
    killed = start(database_url, "invoke", number)
    killed.communicate(timeout=60)
    assert -signal.SIGKILL == killed.returncode

    assert ENDED == said(start(database_url, "resume"))


@pytest.mark.guarantee("G3")
def test_a_group_that_stalls_before_its_commit_changes_nothing_after_the_takeover(
    database_url: str, query: Query
) -> None:
    stalled = start(database_url, "invoke", 2, "SIGSTOP")
    try:
        wait_until_stopped(stalled, "its second group")
        assert 1 == len(query(OPEN))

        assert ENDED == said(start(database_url, "resume"))
        before = everything(query)

        stalled.send_signal(signal.SIGCONT)
        ended = said(stalled)
        assert {"LeaseLost"} == {one for one in ended if isinstance(one, str)}
        assert before == everything(query)
    finally:
        if stalled.poll() is None:
            stalled.kill()
        stalled.communicate()
