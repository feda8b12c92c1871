"""One fire: a database, a receiver, workers and people, attacked for a while; then the verdict.

Invariant: seeded (what is attacked, when and how; what people do), and bounded in time. What the machine makes of it
is not repeatable, so each fire also tells what was done.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.checkpoint.migrate import migrate
from standfast.checkpoint.settings import Settings
from standfast.graph.runtime import AsyncRuntime
from tests.crash.chaos import graphs
from tests.crash.chaos.crew import Crew
from tests.crash.chaos.faults import KINDS, LONGEST, SHORTEST, Attacker
from tests.crash.chaos.people import Case, People
from tests.crash.chaos.proxy import Proxy
from tests.crash.chaos.unfenced import SWITCH, take_out_of
from tests.crash.chaos.verdict import Verdict, count, judge
from tests.servers.process import ServerProcess

LEASE: Final = 2.0
SETTLING: Final = 90.0  # seconds after the last fault
_SERVER: Final = {"fsync": "off", "max_connections": "200"}  # the server is killed, the machine is not


@dataclass(frozen=True)
class Plan:
    """`fenced` off takes every check of the epoch out, in the database and in the workers. `clocks`: see `Crew`."""

    seed: int
    threads: int = 200
    faults: int = 60
    workers: int = 3
    kinds: Sequence[str] = KINDS
    fenced: bool = True
    clocks: Sequence[str] = ("",)

    @property
    def seconds(self) -> float:
        """The longest that the faults may take."""
        return self.faults * (SHORTEST + LONGEST) / 2 * 2 + 10


@dataclass
class Report:
    """The totals of one fire."""

    threads: int
    done: int
    lost: int
    duplicated: int
    wrong: int
    stuck: int
    faults: int
    seed: int
    kinds: dict[str, int] = field(default_factory=dict)
    people: dict[str, int] = field(default_factory=dict)
    put_aside: int = 0  # runs that five dead drivers in a row had parked, and that a person let go on
    seconds: float = 0.0

    @property
    def well(self) -> bool:
        return self.done == self.threads and not (self.lost or self.duplicated or self.wrong or self.stuck)

    def line(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))


@dataclass
class Ashes:
    """What is left for whoever wants to know more."""

    report: Report
    complaints: Sequence[str]
    told: Sequence[str]
    put_aside: Sequence[str]
    folder: Path | None


def fire(plan: Plan) -> Ashes:
    """Set one, and give the verdict. The folder with the logs is kept if something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"standfast-fire-{plan.seed}-"))
    folder.chmod(0o755)
    ashes = asyncio.run(_fire(plan, folder))
    if ashes.report.well:
        shutil.rmtree(folder, ignore_errors=True)
        ashes.folder = None
    return ashes


async def _fire(plan: Plan, folder: Path) -> Ashes:
    began = time.monotonic()
    rng = random.Random(plan.seed)
    async with AsyncExitStack() as stack:
        server = EmbeddedPostgres(folder / "server", settings=_SERVER)
        url = server.acquire()
        stack.callback(server.release)
        await migrate(url)
        _prepare(url, fenced=plan.fenced)
        receiver = stack.enter_context(ServerProcess("reports", folder / "receiver.jsonl"))
        network = await stack.enter_async_context(Proxy(url))
        runtimes = await open_runtimes(stack, network.url, receiver)
        env = {} if plan.fenced else {SWITCH: "1"}
        crew = await stack.enter_async_context(
            Crew(url, plan.workers, folder, lease=LEASE, clocks=plan.clocks, env=env)
        )
        people = People(runtimes, receiver, _cases(plan, rng), random.Random(plan.seed))
        attacker = Attacker(crew, network, server, rng, lease=LEASE, kinds=plan.kinds)
        looking = asyncio.create_task(people.look_after(plan.seconds + SETTLING))
        submitting = asyncio.create_task(people.submit(plan.seconds / 2))
        await attacker.attack(plan.faults, plan.seconds)
        await submitting
        await asyncio.wait([looking], timeout=SETTLING)
        looking.cancel()
        facts = count(url, receiver.effects(), receiver.requests())
        verdict = await judge(runtimes, list(people.cases.values()), facts)
    report = _report(plan, verdict, attacker.done, people, time.monotonic() - began)
    return Ashes(report, verdict.complaints, attacker.told, people.put_aside, folder)


def _cases(plan: Plan, rng: random.Random) -> list[Case]:
    """As many of each graph, and twice as many agents."""
    mixed = ["agent", *graphs.GRAPHS]
    return [
        Case(f"{mixed[number % len(mixed)]}-{number}", mixed[number % len(mixed)], rng.randint(2, 6))
        for number in range(plan.threads)
    ]


async def open_runtimes(stack: AsyncExitStack, url: str, receiver: ServerProcess) -> dict[str, AsyncRuntime]:
    """A runtime for each graph, on the connections of one."""
    settings = Settings(reports_url=f"{receiver.url}/reports", retry_seconds=10)
    runtimes = {
        name: AsyncRuntime(getattr(graphs, name)(), database_url=url, name=name, settings=settings)
        for name in graphs.GRAPHS
    }
    first, *others = runtimes.values()
    await stack.enter_async_context(first)
    for other in others:
        other.join(first)
    return runtimes


def _prepare(url: str, *, fenced: bool) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("create table public.entries (text text not null)")
    if not fenced:
        take_out_of(url)


def _report(plan: Plan, verdict: Verdict, faults: Counter[str], people: People, seconds: float) -> Report:
    return Report(
        threads=plan.threads,
        done=verdict.done,
        lost=len(verdict.lost),
        duplicated=len(verdict.duplicated),
        wrong=len(verdict.wrong),
        stuck=len(verdict.stuck),
        faults=sum(faults.values()),
        seed=plan.seed,
        kinds=dict(faults),
        people=dict(people.did),
        put_aside=len(people.put_aside),
        seconds=round(seconds, 1),
    )


def summed(reports: Sequence[Report]) -> dict[str, Any]:
    """The totals of several fires, with all their seeds."""
    names = ("threads", "done", "lost", "duplicated", "wrong", "stuck", "faults")
    return {name: sum(getattr(one, name) for one in reports) for name in names} | {
        "seed": [one.seed for one in reports]
    }
