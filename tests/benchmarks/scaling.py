"""What a step and a waiting thread cost the database: `python -m tests.benchmarks.scaling`.

Prints one JSON object: for a step of a small graph, and for a thread that waits for a person, the bytes that stay, the
bytes of WAL, the transactions, and the seconds. A server of its own is used, unless STANDFAST_TEST_DATABASE_URL names
one; its databases are dropped again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import os
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict
from urllib.parse import urlsplit, urlunsplit

import psycopg
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.checkpoint.migrate import migrate
from standfast.graph import Runtime

STEPS = 10


@dataclass(frozen=True)
class Cost:
    """For one of `count`: bytes that stay with their indexes, bytes of WAL, transactions, seconds one by one."""

    count: int
    bytes_kept: int
    bytes_wal: int
    transactions: float
    seconds: float


class State(TypedDict, total=False):
    done: int
    lines: Annotated[list[str], operator.add]
    answer: str


async def step(state: State) -> State:
    return {"done": state.get("done", 0) + 1, "lines": ["x" * 200]}


async def ask(state: State) -> State:
    return {"answer": interrupt("Shall I?")}


def stepping() -> StateGraph[State]:
    graph = StateGraph(State)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: "step" if state["done"] < STEPS else END)
    return graph


def asking() -> StateGraph[State]:
    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    return graph


@contextmanager
def server() -> Iterator[str]:
    """The URL of a server that may be filled."""
    given = os.environ.get("STANDFAST_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="standfast-scaling-") as folder:
        Path(folder).chmod(0o755)
        embedded = EmbeddedPostgres(Path(folder) / "server", settings={"max_connections": "100"})
        yield embedded.acquire()
        embedded.release()


async def costs(url: str, graph: Any, threads: int, each: int) -> Cost:
    """The cost of each of `each` parts of every one of `threads` runs, on a database of its own."""
    name = f"scaling_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"create database {name}")  # type: ignore[arg-type]
    own = urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    try:
        await migrate(own)
        async with Runtime(graph, database_url=own) as runtime:
            await runtime.ainvoke({}, thread_id="warm")
            return await _measured(own, threads * each, lambda: _run(runtime, threads))
    finally:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f"drop database {name} with (force)")  # type: ignore[arg-type]


async def _run(runtime: Runtime, threads: int) -> None:
    for number in range(threads):
        await runtime.ainvoke({}, thread_id=f"t{number}")


async def _measured(url: str, count: int, work: Callable[[], Awaitable[None]]) -> Cost:
    before, began = _counters(url), time.perf_counter()
    await work()
    seconds = time.perf_counter() - began
    after = _counters(url)
    kept, wal, transactions = (now - then for now, then in zip(after, before, strict=True))
    return Cost(count, kept // count, wal // count, round(transactions / count, 2), round(seconds / count, 5))


def _counters(url: str) -> tuple[int, int, int]:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("vacuum")
        conn.execute("select pg_stat_force_next_flush()")
        row = conn.execute(
            """select (select sum(pg_total_relation_size(c.oid))::bigint
                         from pg_class c join pg_namespace n on n.oid = c.relnamespace
                        where n.nspname = 'standfast' and c.relkind = 'r'),
                      pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
                      (select xact_commit from pg_stat_database where datname = current_database())"""
        ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


async def measure(threads: int) -> dict[str, Any]:
    """Both costs."""
    with server() as url:
        return {
            "step": asdict(await costs(url, stepping(), threads, STEPS)),
            "waiting thread": asdict(await costs(url, asking(), threads * 2, 1)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=200)
    print(json.dumps(asyncio.run(measure(parser.parse_args().threads)), indent=2))


if __name__ == "__main__":
    main()
