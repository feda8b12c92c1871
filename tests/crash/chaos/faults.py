"""The attacker: every so often a fault, drawn by a seeded generator, at one worker, at the network, at Postgres.

Invariant: each fault ends by itself, so that what is left at the end is the work's own doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import psycopg

from standfast.checkpoint.embedded import EmbeddedPostgres
from tests.crash.chaos.crew import Crew, Post
from tests.crash.chaos.proxy import Proxy

SHORTEST: Final = 0.5  # seconds between two faults
LONGEST: Final = 3.0
KINDS: Final = ("kill", "stop", "postgres", "terminate", "cut_before", "cut_after", "half_open", "delay")
_WEIGHTS: Final = (5, 3, 1, 3, 4, 4, 2, 2)


class Attacker:
    """Attacks `crew`, the network of the people, and `server`. `told` is what it did, and when."""

    def __init__(
        self,
        crew: Crew,
        people: Proxy,
        server: EmbeddedPostgres,
        rng: random.Random,
        *,
        lease: float,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        self._crew = crew
        self._people = people
        self._server = server
        self._rng = rng
        self._lease = lease
        self._kinds = [one for one in KINDS if one in kinds]
        self._weights = [weight for one, weight in zip(KINDS, _WEIGHTS, strict=True) if one in kinds]
        self._restarting = asyncio.Lock()
        self._busy: set[object] = set()
        self._began = time.monotonic()
        self.done: Counter[str] = Counter()
        self.told: list[str] = []

    async def attack(self, faults: int, seconds: float) -> None:
        """`faults` faults, or as many as fit into `seconds`; returns when the last one is over."""
        deadline = time.monotonic() + seconds
        doers: Mapping[str, Callable[[], Awaitable[str | None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "postgres": self._restart,
            "terminate": self._terminate,
            "cut_before": lambda: self._cut("before"),
            "cut_after": lambda: self._cut("after"),
            "half_open": self._half_open,
            "delay": self._delay,
        }
        running: set[asyncio.Task[None]] = set()
        while sum(self.done.values()) < faults and time.monotonic() < deadline:
            await asyncio.sleep(self._rng.uniform(SHORTEST, LONGEST))
            kind = self._rng.choices(self._kinds, self._weights)[0]
            task = asyncio.create_task(self._one(kind, doers[kind]))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _one(self, kind: str, do: Callable[[], Awaitable[str | None]]) -> None:
        at = time.monotonic() - self._began
        what = await do()
        if what is not None:  # somebody was there to be attacked
            self.done[kind] += 1
            self.told.append(f"{at:7.1f} s  {kind}: {what}")

    @contextlib.contextmanager
    def _taking(self, what: object) -> object:  # type: ignore[misc]
        self._busy.add(what)
        try:
            yield
        finally:
            self._busy.discard(what)

    def _victim(self) -> Post | None:
        free = [one for one in self._crew.posts if one not in self._busy and one.alive]
        return self._rng.choice(free) if free else None

    def _network(self) -> Proxy | None:
        free = [one for one in (self._people, *(post.proxy for post in self._crew.posts)) if one not in self._busy]
        return self._rng.choice(free) if free else None

    async def _kill(self) -> str | None:
        victim = self._victim()
        if victim is None:
            return None
        pause = self._rng.uniform(0.0, 1.0)
        with self._taking(victim):
            await victim.kill()
            await asyncio.sleep(pause)
            await victim.start()
        return f"{victim}"

    async def _stop(self) -> str | None:
        victim = self._victim()
        if victim is None:
            return None
        with self._taking(victim):
            victim.halt()
            await asyncio.sleep(2 * self._lease)
            victim.go_on()
        return f"{victim} for {2 * self._lease:g} s"

    async def _restart(self) -> str | None:
        pause = self._rng.uniform(0.1, 1.5)
        async with self._restarting:
            pid = self._server.status().pid
            if pid is None:
                return None
            os.kill(pid, signal.SIGQUIT)
            await asyncio.sleep(pause)
            await asyncio.to_thread(self._server.acquire)
        return f"away for {pause:.1f} s"

    async def _terminate(self) -> str | None:
        share = self._rng.uniform(0.3, 1.0)
        try:
            async with await psycopg.AsyncConnection.connect(self._server.uri(), autocommit=True) as conn:
                cursor = await conn.execute(
                    """select count(pg_terminate_backend(pid)) from pg_stat_activity
                        where datname = current_database() and pid <> pg_backend_pid() and random() < %s""",
                    (share,),
                )
                row = await cursor.fetchone()
        except psycopg.Error:
            return None  # it is away itself
        return f"{row[0] if row else 0} connections"

    async def _cut(self, moment: str) -> str | None:
        network = self._network()
        if network is None:
            return None
        with self._taking(network):
            cut = await network.cut_commit("before" if moment == "before" else "after", patience=5.0)
        return f"{moment} a commit" if cut else None

    async def _half_open(self) -> str | None:
        network = self._network()
        if network is None:
            return None
        seconds = self._rng.uniform(0.5, 2.0) * self._lease
        with self._taking(network):
            network.hang()
            await asyncio.sleep(seconds)
            network.heal()
        return f"for {seconds:.1f} s"

    async def _delay(self) -> str | None:
        network = self._network()
        if network is None:
            return None
        delay, seconds = self._rng.uniform(0.01, 0.15), self._rng.uniform(1.0, 4.0)
        with self._taking(network):
            network.delay = delay
            await asyncio.sleep(seconds)
            network.delay = 0.0
        return f"{delay * 1000:.0f} ms each way for {seconds:.1f} s"
