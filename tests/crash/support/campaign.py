"""Kills the drivers of effects at seeded moments, and counts at the receiver what became of each.

`python tests/crash/support/campaign.py [--runs 100] [--seed N] [--kind KIND] [--forgetful]` prints a table, and as its
last line one JSON object: `runs`, `lost` (no effect, or none that its run knows of), `duplicated` (more than one),
`wrong` (the ledger tells something else than the receiver), `stuck` (no end in time), `seed`.

Each run has three drivers one after the other, each a process: the first two may be killed, the last one carries on
to the end and answers, as a person would, by what the receiver has. Invariant: what happened is counted in the
receiver's own log and in the database's own table, never in what the runtime says.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":  # run as a file: this folder gives way to the root that the imports start from
    sys.path[0] = str(Path(__file__).resolve().parents[3])

import psycopg

from standfast.checkpoint.embedded import EmbeddedPostgres
from tests.crash.support.processes import Ended, Nursery
from tests.servers.process import ServerProcess

OPERATIONS: Final[Mapping[str, str]] = {
    "idempotent": "jot_in_time",
    "transactional": "enter",
    "at_most_once": "shout",
    "reconciled": "shout_and_look",
    "pending": "commission",
}
"""The kinds of effect: `at_most_once` asks a person, `reconciled` its receiver, `pending` ends by its poll."""

_FIRST: Final[Mapping[str, int]] = {  # where the first driver dies, and how often it comes there
    "saver.fenced": 6,
    "saver.committed": 6,
    "node.validation": 1,
    "operation.begun": 3,
    "operation.done": 1,
    "operation.recorded": 1,
    "node.operate": 1,
    "drive.ending": 1,
}
_LATER: Final = (
    "lease.claimed",
    "saver.fenced",
    "saver.committed",
    "operation.begun",
    "operation.done",
    "operation.recorded",
    "node.operate",
    "drive.parking",
    "drive.ending",
)
_DOUBT: Final = ("outcome.unknown", "outcome.settled")
POINTS: Final[Mapping[str, Sequence[str]]] = {  # and where the second one does
    "idempotent": _LATER,
    "transactional": _LATER,
    "at_most_once": (*_LATER, *_DOUBT, "outcome.decided", "approval.opened", "drive.resuming"),
    "reconciled": (*_LATER, *_DOUBT, "outcome.answered"),
    "pending": (*_LATER, "operation.pending", "outcome.polled", "drive.resuming"),
}
_SECONDS: Final = 90.0  # for one driver

Kill = tuple[str, int]


@dataclass(frozen=True)
class Plan:
    """One run: the kind of its effect, and where its first drivers are killed."""

    thread: str
    kind: str
    kills: tuple[Kill, ...]


@dataclass
class Ran:
    """What became of a run."""

    plan: Plan
    killed: list[str] = field(default_factory=list)  # the points that a driver died at
    end: dict[str, Any] | None = None  # None: it did not come to its end in time
    why: str | None = None  # what the last driver said of that
    calls: int = 0  # that arrived
    effects: int = 0  # that they had

    def verdict(self) -> str:
        """`right`, or what is wrong."""
        if self.end is None:
            return "stuck"
        if self.effects > 1 or (self.plan.kind in ("at_most_once", "reconciled") and self.calls > 1):
            return "duplicated"
        if self.effects == 0 or self.end["status"] != "succeeded":
            return "lost"
        known = [one for one in self.end["operations"] if one["name"] == OPERATIONS[self.plan.kind]]
        if [one["state"] in ("succeeded", "reconciled") and one["failure"] is None for one in known] != [True]:
            return "wrong"
        return "right" if known[0]["result"] and len(self.end["effects"]) == 1 else "wrong"


@dataclass(frozen=True)
class Campaign:
    """Runs plans, several at a time, before one receiver and one database."""

    nursery: Nursery
    reports: ServerProcess
    url: str
    forgetful: bool = False

    def run(self, plans: Sequence[Plan], *, at_once: int = 4) -> list[Ran]:
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute("create table if not exists public.entries (text text)")
        with ThreadPoolExecutor(at_once) as pool:
            ran = list(pool.map(self._run, plans))
        self._count(ran)
        return ran

    def _run(self, plan: Plan) -> Ran:
        common: dict[str, Any] = {
            "url": self.url,
            "thread": plan.thread,
            "scripted": "effects",
            "forgetful": self.forgetful,
            "env": {"STANDFAST_REPORTS_URL": f"{self.reports.url}/reports"},
            "log": str(self.reports.log),
        }
        turns = [[{"name": OPERATIONS[plan.kind], "args": {"text": plan.thread}}]]
        ran = Ran(plan)
        for number, kill in enumerate(plan.kills):
            job = "ask" if number == 0 else "see_through"
            ended = self._order(job, **common, request=json.dumps({"turns": turns}), kill=kill)
            if ended is not None and ended.signal == signal.SIGKILL:
                ran.killed.append(kill[0])
        last = self._order("see_through", **common, request=json.dumps({"turns": turns}))
        if last is not None and last.told is not None:
            ran.end = last.told["value"]["did"] if "value" in last.told else None
            ran.why = last.told.get("message")
        return ran

    def _order(self, job: str, **order: Any) -> Ended | None:
        try:
            return self.nursery.run(job, seconds=_SECONDS, **order)
        except TimeoutError:
            return None

    def _count(self, ran: Sequence[Ran]) -> None:
        calls = Counter(
            one["body"]["thread"]
            for one in self.reports.requests()
            if one["method"] == "POST" and isinstance(one.get("body"), dict)
        )
        effects = Counter(one["report"]["body"]["thread"] for one in self.reports.effects())
        with psycopg.connect(self.url) as conn:
            entries = dict(conn.execute("select text, count(*)::int from public.entries group by text").fetchall())
        for one in ran:
            thread = one.plan.thread
            one.calls = calls[thread]
            one.effects = entries.get(thread, 0) if one.plan.kind == "transactional" else effects[thread]


def plans(kinds: Sequence[str], runs: int, seed: int) -> list[Plan]:
    """`runs` plans for each kind, each with up to two kills; the same for the same seed."""
    made = []
    for kind in kinds:
        for number in range(runs):
            dice = random.Random(f"{seed}/{kind}/{number}")
            first = dice.choice([(point, n) for point, most in _FIRST.items() for n in range(1, most + 1)])
            kills = (first, (dice.choice(POINTS[kind]), 1))
            made.append(Plan(f"{kind}-{seed}-{number}", kind, kills))
    return made


def totals(ran: Sequence[Ran], seed: int) -> dict[str, int]:
    """The last line's numbers."""
    verdicts = Counter(one.verdict() for one in ran)
    found = {name: verdicts[name] for name in ("lost", "duplicated", "wrong", "stuck")}
    return {"runs": len(ran), "kills": sum(len(one.killed) for one in ran), **found, "seed": seed}


def table(ran: Sequence[Ran]) -> str:
    """The numbers of each kind."""
    lines = [f"{'effect':<14}{'runs':>6}{'kills':>7}{'right':>7}{'lost':>6}{'duplicated':>12}{'wrong':>7}{'stuck':>7}"]
    for kind in OPERATIONS:
        mine = [one for one in ran if one.plan.kind == kind]
        if mine:
            verdicts = Counter(one.verdict() for one in mine)
            kills = sum(len(one.killed) for one in mine)
            lines.append(
                f"{kind:<14}{len(mine):>6}{kills:>7}{verdicts['right']:>7}{verdicts['lost']:>6}"
                f"{verdicts['duplicated']:>12}{verdicts['wrong']:>7}{verdicts['stuck']:>7}"
            )
    points = Counter(point for one in ran for point in one.killed)
    lines.append("killed at: " + ", ".join(f"{point} ({count})" for point, count in sorted(points.items())))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=100, help="runs of each kind")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kind", choices=list(OPERATIONS), action="append", help="only this one; may be repeated")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--forgetful", action="store_true", help="take the reuse of recorded ends out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="standfast-crash-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        settings = {"fsync": "off", "synchronous_commit": "off", "max_connections": "300"}
        server = EmbeddedPostgres(folder / "server", settings=settings)
        url = server.acquire()
        try:
            # Without the ledger's memory only a receiver that knows no keys sees every repetition.
            mode = ("--mode", "ignores_key") if options.forgetful else ()
            with ServerProcess("reports", folder / "reports.jsonl", *mode) as reports, Nursery(folder) as nursery:
                nursery.run("migrated", url=url, thread="").value  # noqa: B018 - AssertionError if it failed
                campaign = Campaign(nursery, reports, url, forgetful=options.forgetful)
                made = plans(options.kind or list(OPERATIONS), options.runs, options.seed)
                ran = campaign.run(made, at_once=options.at_once)
        finally:
            server.release()
    for one in ran:
        if (verdict := one.verdict()) != "right":
            print(f"{verdict}: {one}", file=sys.stderr)
    print(table(ran))
    found = totals(ran, options.seed)
    print(json.dumps(found))
    return int(any(found[name] for name in ("lost", "duplicated", "wrong", "stuck")))


if __name__ == "__main__":
    sys.exit(main())
