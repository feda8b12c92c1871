"""Standfast against plain LangGraph on the same server, in one run: `python tests/benchmarks/bench.py --json FILE`.

The contenders take turns (A B C, B C A, ...), and each ratio is the median of the ratios of the rounds, so that what
slows the machine for a while slows all of them. A bar that is missed is said in the table; the exit code stays 0.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal

from contenders import STEPS, Drive, contenders
from ledger import Costs, ledger_costs
from messages import OURS as OURS_KEPT
from messages import WHOLE_LIST, stored_per_step
from place import fresh_database
from rich.console import Console
from rich.table import Table

OURS: Final = "standfast"
SHARED: Final = "one shared saver"
OWN: Final = "one saver per run"
ALONE: Final = {SHARED: 1.0, OWN: 1.0}  # of their time
LEDGER: Final = 4.0  # commits, that it may add to the call of a tool
TOGETHER: Final = {SHARED: 1.5, OWN: 1.2}  # of their throughput


@dataclass(frozen=True)
class Measurement:
    """One line of the table. `ratio` is ours over `baseline`'s, `spread` its least and its greatest in one round."""

    name: str
    value: float
    unit: str
    baseline: str | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    bar: str | None = None
    met: bool | None = None


@dataclass(frozen=True)
class Size:
    """How much is measured: rounds, threads one after another, threads at a time, and steps of a long thread."""

    rounds: int
    one_by_one: int
    at_a_time: int
    steps: int
    operations: int


FULL: Final = Size(rounds=7, one_by_one=30, at_a_time=200, steps=200, operations=100)
SHORT: Final = Size(rounds=2, one_by_one=2, at_a_time=8, steps=20, operations=5)


def main() -> None:
    parser = argparse.ArgumentParser(description="Standfast against plain LangGraph on the same Postgres.")
    parser.add_argument("--url", help="a Postgres server where a database may be made; by default an embedded one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there as well")
    parser.add_argument("--short", action="store_true", help="a few seconds: does it run, not how fast")
    options = parser.parse_args()
    with fresh_database(options.url) as url:
        measurements = asyncio.run(measure(url, SHORT if options.short else FULL))
    console = Console()
    console = console if console.is_terminal else Console(width=170)  # a log has no width of its own
    console.print(table(measurements))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in measurements], indent=2) + "\n", encoding="utf-8")


async def measure(url: str, size: Size) -> list[Measurement]:
    """All measurements, in the order of the table."""
    async with contenders(url) as drives:
        for drive in drives.values():  # connections are made and statements prepared
            await asyncio.gather(*(drive() for _ in range(min(size.at_a_time, 40))))
        seconds, rates = await rounds(drives, size)
    costs = await ledger_costs(url, size.operations)
    whole = await stored_per_step(url, WHOLE_LIST, size.steps)
    deltas = await stored_per_step(url, OURS_KEPT, size.steps)
    return [
        *_compared("time per step, one thread at a time", seconds, "ms", 1000.0 / STEPS, "at most", ALONE),
        *_compared(f"steps, {size.at_a_time} threads at a time", rates, "1/s", STEPS, "at least", TOGETHER),
        *_ledger(costs),
        *_messages(whole, deltas, size.steps),
    ]


async def rounds(drives: Mapping[str, Drive], size: Size) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds per thread alone, and threads per second together, of each contender in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in drives}
    rates: dict[str, list[float]] = {name: [] for name in drives}
    for number in range(size.rounds):
        spent: dict[str, list[float]] = {name: [] for name in drives}
        for turn in range(size.one_by_one):
            for name in _turned(tuple(drives), turn):
                spent[name].append(await _timed(drives[name]))
        for name in _turned(tuple(drives), number):
            gc.collect()  # what the one before has left is not this one's

            async def together(drive: Drive = drives[name]) -> None:
                await asyncio.gather(*(drive() for _ in range(size.at_a_time)))

            rates[name].append(size.at_a_time / await _timed(together))
        for name, times in spent.items():
            seconds[name].append(median(times))
    return seconds, rates


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def _turned(names: Sequence[str], by: int) -> Sequence[str]:
    by %= len(names)
    return (*names[by:], *names[:by])


def _compared(
    name: str,
    values: Mapping[str, Sequence[float]],
    unit: str,
    scale: float,
    word: Literal["at most", "at least"],
    bars: Mapping[str, float],
) -> Iterator[Measurement]:
    for baseline in bars:
        yield Measurement(f"{name}: {baseline}", median(values[baseline]) * scale, unit)
    for baseline, bar in bars.items():
        ratios = [ours / theirs for ours, theirs in zip(values[OURS], values[baseline], strict=True)]
        ratio = median(ratios)
        yield Measurement(
            name=f"{name}: {OURS}",
            value=median(values[OURS]) * scale,
            unit=unit,
            baseline=baseline,
            ratio=ratio,
            spread=(min(ratios), max(ratios)),
            bar=f"{word} {bar:g}",
            met=ratio <= bar if word == "at most" else ratio >= bar,
        )


def _ledger(costs: Costs) -> Iterator[Measurement]:
    yield Measurement("one commit", median(costs.commit) * 1000, "ms")
    yield Measurement("one tool call: ToolNode", median(costs.tool_node) * 1000, "ms")
    ratio = median(costs.commits)
    yield Measurement(
        name=f"one tool call: {OURS}'s ledger, beyond ToolNode",
        value=median(costs.operation) * 1000,
        unit="ms",
        baseline="one commit",
        ratio=ratio,
        spread=(min(costs.commits), max(costs.commits)),
        bar=f"at most {LEDGER:g}",
        met=ratio <= LEDGER,
    )


def _messages(whole: float, deltas: float, steps: int) -> Iterator[Measurement]:
    yield Measurement(f"stored per step of a {steps}-step thread, 2 kB messages: whole list", whole / 1000, "kB")
    yield Measurement(
        name=f"stored per step of a {steps}-step thread, 2 kB messages: {OURS}",
        value=deltas / 1000,
        unit="kB",
        baseline="whole list",
        ratio=deltas / whole,
    )


def table(measurements: Sequence[Measurement]) -> Table:
    """The measurements for people."""
    shown = Table(title=f"Standfast and plain LangGraph, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    shown.add_column("what")
    shown.add_column("value", justify="right")
    shown.add_column("against")
    shown.add_column("ratio", justify="right")
    shown.add_column("in one round", justify="right")
    shown.add_column("bar")
    shown.add_column("")
    for one in measurements:
        shown.add_row(
            one.name,
            f"{one.value:,.2f} {one.unit}",
            one.baseline or "",
            "" if one.ratio is None else f"{one.ratio:.2f}",
            "" if one.spread is None else f"{one.spread[0]:.2f} to {one.spread[1]:.2f}",
            one.bar or "",
            "" if one.met is None else "met" if one.met else "MISSED",
        )
    return shown


if __name__ == "__main__":
    main()
