"""A soak: threads for minutes, without faults, and what is left of them: `make soak MINUTES=10`.

What must be steady once the fleet is warm: a worker's memory, the connections, and, with the threads that have ended
deleted as retention does it, the size of tables and indexes. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import psycopg
from psycopg import sql

from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.checkpoint.migrate import migrate
from tests.crash.chaos import graphs
from tests.crash.chaos.crew import Crew
from tests.crash.chaos.fire import open_runtimes
from tests.crash.chaos.people import Case, People
from tests.servers.process import ServerProcess

ROUND: Final = 24  # threads at a time
STEADY: Final = {"memory": 1.15, "connections": 1.25, "tables": 1.3, "indexes": 1.3}  # of what it was when warm
_SETTINGS: Final = {
    "fsync": "off",
    "autovacuum_naptime": "2s",  # a soak of minutes sees what takes days at the usual minute
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_threshold": "100",
}


@dataclass(frozen=True)
class Sample:
    """After a round: bytes of the workers, their connections, bytes of tables and of indexes."""

    memory: int
    connections: int
    tables: int
    indexes: int


@dataclass(frozen=True)
class Soaked:
    """`grown`: the median of the last third of the samples, by that of the first third after the warm-up."""

    threads: int
    done: int
    seconds: float
    samples: int
    grown: dict[str, float]

    @property
    def steady(self) -> bool:
        return self.done == self.threads and all(self.grown[what] <= bar for what, bar in STEADY.items())

    def line(self) -> str:
        """One JSON object."""
        return json.dumps({**asdict(self), "steady": self.steady})


async def soak(seconds: float, seed: int, folder: Path) -> Soaked:
    """Round after round of all graphs, each deleted when it has ended."""
    began = time.monotonic()
    rng = random.Random(seed)
    samples: list[Sample] = []
    threads = done = 0
    async with AsyncExitStack() as stack:
        server = EmbeddedPostgres(folder / "server", settings=_SETTINGS)
        url = server.acquire()
        stack.callback(server.release)
        await migrate(url)
        receiver = stack.enter_context(ServerProcess("reports", folder / "receiver.jsonl"))
        runtimes = await open_runtimes(stack, url, receiver)
        crew = await stack.enter_async_context(Crew(url, 2, folder, lease=5.0))
        with psycopg.connect(url, autocommit=True, options="-c search_path=standfast") as conn:
            conn.execute("create table public.entries (text text not null)")
            while time.monotonic() - began < seconds or len(samples) < 6:
                names = [graphs.GRAPHS[number % len(graphs.GRAPHS)] for number in range(ROUND)]
                cases = [Case(f"{name}-{len(samples)}-{at}", name, rng.randint(2, 5)) for at, name in enumerate(names)]
                people = People(runtimes, receiver, cases, rng)
                looking = asyncio.create_task(people.look_after(60))
                await people.submit(1.0)
                await looking
                threads += ROUND
                done += ROUND - len(people.unfinished)
                await asyncio.to_thread(_retain, conn)
                samples.append(_sample(conn, crew))
    return Soaked(threads, done, round(time.monotonic() - began, 1), len(samples), _grown(samples))


def _retain(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    """Delete what has ended, as retention does."""
    with conn.transaction():
        ended = [row[0] for row in conn.execute("select thread_id from runs where ended_at is not null")]
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
            conn.execute(sql.SQL("delete from {} where thread_id = any(%s)").format(sql.Identifier(table)), (ended,))
        conn.execute("delete from threads where id = any(%s)", (ended,))
        conn.execute("delete from events")  # whose time would be over in a week


def _sample(conn: psycopg.Connection[tuple[object, ...]], crew: Crew) -> Sample:
    row = conn.execute(
        """select (select count(*) from pg_stat_activity where datname = current_database()),
                  sum(pg_table_size(c.oid)), sum(pg_indexes_size(c.oid))
             from pg_class c where c.relkind = 'r' and c.relnamespace = 'standfast'::regnamespace
              and c.relname not like 'audit%'"""  # the audit stays
    ).fetchone()
    assert row is not None
    connections, tables, indexes = (int(str(one)) for one in row)
    return Sample(sum(post.rss() for post in crew.posts), connections, tables, indexes)


def _grown(samples: Sequence[Sample]) -> dict[str, float]:
    warm = samples[len(samples) // 3 :]
    part = max(1, len(warm) // 3)
    return {
        what: round(
            median(getattr(one, what) for one in warm[-part:]) / median(getattr(one, what) for one in warm[:part]), 3
        )
        for what in STEADY
    }


def run(seconds: float, seed: int) -> Soaked:
    """A soak in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="standfast-soak-"))
    folder.chmod(0o755)
    try:
        return asyncio.run(soak(seconds, seed, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Threads for minutes, and what is left of them.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    soaked = run(options.minutes * 60, options.seed)
    print(soaked.line())
    return 0 if soaked.steady else 1


if __name__ == "__main__":
    sys.exit(main())
