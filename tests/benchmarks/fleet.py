"""What the fleet costs, each beside its floor in one run: `python tests/benchmarks/fleet.py [--short] [--json FILE]`.

Latencies are given as multiples of what the same server needs for one commit and one NOTIFY, measured in between;
throughput as a multiple of plain LangGraph driven in this process, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final, TypedDict
from unittest.mock import patch

from bench import Measurement, table
from contenders import STEPS, contenders, first, loop
from langgraph.graph import END, START, StateGraph
from place import fresh_database
from psycopg import AsyncConnection
from rich.console import Console

from standfast.graph import Runtime, wait_for_event
from standfast.graph.recorder import Recorder

TWO_WORKERS: Final = 1.5  # of plain LangGraph's throughput in one process
STREAMING: Final = 1.15  # of the processor time without

_reached: dict[str, float] = {}


class State(TypedDict, total=False):
    key: str


async def arrive(state: State) -> State:
    _reached[state["key"]] = time.perf_counter()
    return {}


async def wait(state: State) -> State:
    await wait_for_event("go", match=state["key"])
    return {}


def arriving() -> Any:
    graph = StateGraph(State)
    graph.add_node("arrive", arrive)
    graph.add_edge(START, "arrive")
    graph.add_edge("arrive", END)
    return graph


def waiting() -> Any:
    graph = StateGraph(State)
    graph.add_node("wait", wait)
    graph.add_node("arrive", arrive)
    graph.add_edge(START, "wait")
    graph.add_edge("wait", "arrive")
    graph.add_edge("arrive", END)
    return graph


async def floor(url: str, count: int) -> tuple[list[float], list[float]]:
    """Seconds of one insert with its commit, and of a NOTIFY to its listener, each `count` times."""
    commits, notes = [], []
    async with (
        await AsyncConnection.connect(url, autocommit=True) as one,
        await AsyncConnection.connect(url, autocommit=True) as other,
    ):
        await one.execute("create table if not exists public.floor (key text)")
        await other.execute("listen floor")
        for _ in range(count):
            began = time.perf_counter()
            await one.execute("insert into public.floor values ('x')")
            commits.append(time.perf_counter() - began)
            began = time.perf_counter()
            await one.execute("notify floor")
            notes.extend([time.perf_counter() - began async for _ in other.notifies(timeout=5, stop_after=1)])
    return commits, notes


async def latencies(url: str, count: int) -> Iterator[Measurement]:
    """From a submit to the first node, from an event to the node behind its wait, from one run to the next."""
    submits, events, hand_overs = [], [], []
    async with Runtime(arriving(), database_url=url, name="arriving") as runtime:
        stop = asyncio.Event()
        working = asyncio.create_task(runtime.awork(stop=stop))
        await asyncio.sleep(1)
        for _ in range(count):
            key = uuid.uuid4().hex
            began = time.perf_counter()
            await runtime.asubmit({"key": key}, thread_id=key)
            await runtime.aresult(key)
            submits.append(_reached[key] - began)
            await asyncio.gather(
                *(runtime.asubmit({"key": f"{key}{n}"}, thread_id=f"{key}q", on_busy="queue") for n in (1, 2))
            )
            while not {f"{key}1", f"{key}2"} <= _reached.keys():
                await asyncio.sleep(0.001)
            hand_overs.append(abs(_reached[f"{key}2"] - _reached[f"{key}1"]))
        stop.set()
        await working
    async with Runtime(waiting(), database_url=url, name="waiting") as runtime:
        stop = asyncio.Event()
        working = asyncio.create_task(runtime.awork(stop=stop))
        await asyncio.sleep(1)
        for _ in range(count):
            key = uuid.uuid4().hex
            await runtime.ainvoke({"key": key}, thread_id=key)
            began = time.perf_counter()
            await runtime.aemit("go", match=key, id=key)
            while key not in _reached:
                await asyncio.sleep(0.001)
            events.append(_reached[key] - began)
        stop.set()
        await working
    commits, notes = await floor(url, count)
    base = median(commits) + median(notes)
    return iter(
        [
            Measurement("one commit and one NOTIFY", base * 1000, "ms"),
            *_latency("submit to first node", submits, base),
            *_latency("event to the node behind its wait", events, base),
            *_latency("one run's node to the next queued run's", hand_overs, base),
        ]
    )


def _latency(name: str, seconds: Sequence[float], base: float) -> Iterator[Measurement]:
    ordered = sorted(seconds)
    for label, value in (("p50", median(ordered)), ("p95", ordered[int(len(ordered) * 0.95)])):
        yield Measurement(f"{name}, {label}", value * 1000, "ms", "one commit and one NOTIFY", value / base)


async def throughput(url: str, rounds: int, threads: int) -> Iterator[Measurement]:
    """Ten-step threads handed over to one and to two worker processes, and plain LangGraph in this process.

    Measured against LangGraph at its best, a saver of its own for each run; the usual way, one saver for all whose lock
    they share, is shown beside it.
    """
    plain: list[float] = []
    usual: list[float] = []
    ours: dict[int, list[float]] = {1: [], 2: []}
    async with contenders(url) as drives:
        for _ in range(rounds):
            plain.append(await _seconds(lambda: _gather(drives["one saver per run"], threads)))
            usual.append(await _seconds(lambda: _gather(drives["one shared saver"], threads)))
            for count, seconds in ours.items():
                async with Runtime(loop(), database_url=url, name="fleet") as runtime:
                    with workers(url, count):
                        await _handed_over(runtime, threads)  # as warm as the other, whose pool outlives the rounds
                        seconds.append(await _seconds(lambda runtime=runtime: _handed_over(runtime, threads)))
    steps = threads * STEPS
    shared = median(one / other for one, other in zip(plain, usual, strict=True))
    measurements = [
        Measurement("steps, plain LangGraph in one process", steps / median(plain), "1/s"),
        Measurement(
            "steps, with one shared saver", steps / median(usual), "1/s", "plain LangGraph in one process", shared
        ),
    ]
    for count, seconds in ours.items():
        ratios = [one / other for one, other in zip(plain, seconds, strict=True)]
        ratio, bar = median(ratios), TWO_WORKERS if count == 2 else None
        measurements.append(
            Measurement(
                f"steps, submitted to {count} worker process{'es' if count > 1 else ''}",
                steps / median(seconds),
                "1/s",
                "plain LangGraph in one process",
                ratio,
                (min(ratios), max(ratios)),
                None if bar is None else f"at least {bar:g}",
                None if bar is None else ratio >= bar,
            )
        )
    return iter(measurements)


@contextmanager
def workers(url: str, count: int) -> Iterator[None]:
    """Worker processes that serve the ten-step graph."""
    command = ["standfast", "--database", url, "worker", "--graph", "fleet=contenders:loop", "--concurrency", "100"]
    started = [subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


async def _handed_over(runtime: Runtime, threads: int) -> None:
    names = [uuid.uuid4().hex for _ in range(threads)]
    await asyncio.gather(*(runtime.asubmit(first(), thread_id=name) for name in names))
    await asyncio.gather(*(runtime.aresult(name) for name in names))


async def _gather(drive: Callable[[], Any], threads: int) -> None:
    await asyncio.gather(*(drive() for _ in range(threads)))


async def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def streaming(url: str, rounds: int, threads: int) -> Iterator[Measurement]:
    """Processor time of this process with its runs' events recorded, and without."""
    on, off = [], []
    async with Runtime(loop(), database_url=url, name="streaming") as runtime:
        for _ in range(rounds):
            for spent, recording in ((on, True), (off, False)):
                with patch.object(Recorder, "add", Recorder.add if recording else lambda *_, **__: None):
                    began = time.process_time()
                    for _ in range(threads):
                        await runtime.ainvoke(first(), thread_id=uuid.uuid4())
                    spent.append(time.process_time() - began)
    ratio = median(one / other for one, other in zip(on, off, strict=True))
    value = median(on) / threads / STEPS * 1000
    met = ratio <= STREAMING
    name = "processor time of a step with its events"
    return iter([Measurement(name, value, "ms", "without", ratio, None, f"at most {STREAMING:g}", met)])


async def measure(url: str, *, short: bool) -> list[Measurement]:
    """All of it on one database."""
    rounds, threads, count = (1, 8, 3) if short else (3, 200, 60)
    return [
        *await latencies(url, count),
        *await streaming(url, rounds * 3, 4 if short else 20),
        *await throughput(url, rounds, threads),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What Standfast's fleet costs, beside the floor of its server.")
    parser.add_argument("--url", help="a Postgres server where a database may be made; by default an embedded one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there as well")
    parser.add_argument("--short", action="store_true", help="a few seconds: does it run, not how fast")
    options = parser.parse_args()
    with fresh_database(options.url) as url:
        measurements = asyncio.run(measure(url, short=options.short))
    console = Console()
    (console if console.is_terminal else Console(width=170)).print(table(measurements))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in measurements], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
