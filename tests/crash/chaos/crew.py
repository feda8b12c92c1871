"""Worker processes, each on a network of its own, that come back when they are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

from tests.crash.chaos.graphs import GRAPHS, PLACE
from tests.crash.chaos.proxy import Proxy
from tests.crash.support.fleet import Forge

_WATCH_SECONDS: Final = 0.3
_FAKETIME: Final = "usr/lib/*/faketime/libfaketime.so.1"  # Debian's package libfaketime


def faketime() -> Path | None:
    """The library that lets a process believe another time; None if it is not installed."""
    return next(Path("/").glob(_FAKETIME), None)


def at_clock(clock: str) -> Mapping[str, str]:
    """The environment of processes whose wall clock is off, by `+300` seconds perhaps; '' is in time."""
    library = faketime()
    if not clock:
        return {}
    assert library is not None, "a clock that is off needs libfaketime"
    return {"LD_PRELOAD": str(library), "FAKETIME": clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


class Post:
    """A worker's place: one process after the other, on one network."""

    def __init__(self, crew: Crew, number: int, proxy: Proxy) -> None:
        self.proxy = proxy
        self._crew = crew
        self._number = number
        self.pid = 0
        self.wanted = False

    def __repr__(self) -> str:
        return f"worker {self._number}"

    async def start(self) -> None:
        self.pid = await self._crew.fork(self._number, self.proxy.url)
        self.wanted = True

    async def kill(self) -> None:
        """SIGKILL, and wait for the end; nobody comes in its place before `start`."""
        self.wanted = False
        os.kill(self.pid, signal.SIGKILL)
        await asyncio.to_thread(self._forge.wait, self.pid, 30.0)

    def halt(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    @property
    def alive(self) -> bool:
        return self._forge.alive(self.pid)

    @property
    def _forge(self) -> Forge:
        return self._crew.forge(self._number)

    def rss(self) -> int:
        """Bytes of memory that the process has."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Crew:
    """`size` posts before the server at `url`; the clocks of their processes, in turn, are those of `clocks`."""

    def __init__(
        self,
        url: str,
        size: int,
        folder: Path,
        *,
        lease: float,
        concurrency: int = 20,
        clocks: Sequence[str] = ("",),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._url = url
        self._size = size
        self._folder = folder
        self._concurrency = concurrency
        self._environment = {
            "STANDFAST_LEASE_SECONDS": str(lease),
            "STANDFAST_POOL_SIZE": "8",
            "STANDFAST_RETRY_SECONDS": "10",
            **(env or {}),
        }
        self._ordering = asyncio.Lock()  # the forge takes its orders one at a time
        self._stack = AsyncExitStack()
        self._forges = [Forge(PLACE, env=at_clock(clock)) for clock in clocks]
        self._watching: asyncio.Task[None]
        self.posts: list[Post] = []

    def forge(self, number: int) -> Forge:
        """Where the processes of this post come from."""
        return self._forges[number % len(self._forges)]

    async def fork(self, number: int, url: str) -> int:
        arguments = ["worker", "--name", f"worker-{number}", "--concurrency", str(self._concurrency), "--grace", "5"]
        arguments += [part for one in GRAPHS for part in ("--graph", f"{one}={PLACE}:{one}")]
        order = {
            "arguments": arguments,
            "environment": {**self._environment, "STANDFAST_DATABASE_URL": url},
            "log": str(self._folder / f"worker-{number}.log"),
        }
        async with self._ordering:
            return await asyncio.to_thread(lambda: self.forge(number).fork(**order))

    async def __aenter__(self) -> Self:
        for forge in self._forges:
            self._stack.enter_context(forge)
        for number in range(self._size):
            proxy = await self._stack.enter_async_context(Proxy(self._url))
            self.posts.append(Post(self, number, proxy))
        for post in self.posts:
            await post.start()
        self._watching = asyncio.create_task(self._watch())
        return self

    async def _watch(self) -> None:
        """Start those again that have ended by themselves, as one does that finds no database at its start."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for post in self.posts:
                if post.wanted and not post.alive:
                    await post.start()

    async def __aexit__(self, *_: object) -> None:
        self._watching.cancel()
        await asyncio.wait([self._watching])
        for post in self.posts:
            if post.alive:
                await post.kill()
        await self._stack.aclose()
