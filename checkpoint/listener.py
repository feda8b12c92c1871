"""Hears of changes of threads: one listening connection for each process, however many listen.

Invariant: a notification is a hint. Whoever waits looks at the rows, is woken by the hint, and looks again after a
while without one, and whenever the connection is a new one: nothing depends on a notification that never came.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg

from standfast.checkpoint.database import Connection, Database, connect
from standfast.checkpoint.errors import StandfastError
from standfast.checkpoint.run_events import RunEvents

POLL_SECONDS: Final = 0.5  # while it does not listen, or for what no notification tells
_BACKSTOP_SECONDS: Final = 5.0
_FOLLOWED_SECONDS: Final = 30.0
_LOG = logging.getLogger("standfast.listener")
T = TypeVar("T")


@dataclass
class _Followed:
    """One thread that somebody waits for."""

    waiting: int = 0
    reading: int = 0  # of those, who want to hear of each event
    changes: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        self.changes += 1
        self.changed.set()
        self.changed = asyncio.Event()


class Listener:
    """Wakes those who wait for a thread, and lets them look together. It is connected only while somebody waits."""

    def __init__(self, database: Database, run_events: RunEvents) -> None:
        self._database = database
        self._run_events = run_events
        self._followed: dict[str, _Followed] = {}
        self._unfollowed: set[str] = set()  # whom somebody wants to follow, and whose row does not say so yet
        self._looks: dict[Hashable, asyncio.Task[Any]] = {}
        self._one_look = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._listening = False

    @contextlib.asynccontextmanager
    async def following(self, thread_id: str, *, reading: bool = False) -> AsyncIterator[None]:
        """Within it `wait` is woken when the thread comes to rest; with `reading`, by each of its events too."""
        followed = self._followed.setdefault(thread_id, _Followed())
        followed.waiting += 1
        followed.reading += reading
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._listen())
            if followed.waiting == 1 or (reading and followed.reading == 1):
                await self._follow([thread_id])
            yield
        finally:
            followed.waiting -= 1
            followed.reading -= reading
            if not followed.waiting:
                del self._followed[thread_id]

    def seen(self, thread_id: str) -> int:
        """How often the thread has changed: to be asked before looking at its rows, and given to `wait`."""
        return self._followed[thread_id].changes

    async def wait(self, thread_id: str, seen: int, *, polling: bool = False) -> None:
        """Return when the thread has changed since `seen`, or after a while; with `polling` after `POLL_SECONDS`."""
        followed = self._followed[thread_id]
        if followed.changes == seen:
            often = polling or not self._listening
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS if often else _BACKSTOP_SECONDS):
                    await followed.changed.wait()

    async def look(self, at: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` returns. Those who look at the same share one look, and only one is under way in a process.

        So hundreds of readers take one connection of the pool, and none from a drive for long.
        """
        task = self._looks.get(at)
        if task is None:
            task = self._looks[at] = asyncio.create_task(self._look(read))
            task.add_done_callback(lambda done: self._looked(at, done))
        return await asyncio.shield(task)

    def _looked(self, at: Hashable, done: asyncio.Task[Any]) -> None:
        del self._looks[at]
        if not done.cancelled():
            done.exception()  # those who still wait raise it; they may all have gone

    async def _look(self, read: Callable[[], Awaitable[T]]) -> T:
        async with self._one_look:
            return await read()

    async def close(self) -> None:
        """Stop listening."""
        tasks = [*self._looks.values(), *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _listen(self) -> None:
        while self._followed:
            try:
                async with await connect(self._database.conninfo) as conn:
                    await conn.execute("listen standfast_threads")
                    self._listening = True
                    for followed in self._followed.values():
                        followed.change()  # what came before this connection was told to nobody
                    await self._hear(conn)
            except (psycopg.Error, StandfastError) as error:
                _LOG.warning("not listening for a moment: %s", error)
                await asyncio.sleep(POLL_SECONDS)
            finally:
                self._listening = False

    async def _hear(self, conn: Connection) -> None:
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while self._followed:
            async for note in conn.notifies(timeout=_FOLLOWED_SECONDS / 10):
                followed = self._followed.get(note.payload)
                if followed is not None:
                    followed.change()
                if loop.time() - renewed > _FOLLOWED_SECONDS / 3:
                    break
            if loop.time() - renewed > _FOLLOWED_SECONDS / 3:
                renewed = loop.time()
                await self._follow(self._followed)

    async def _follow(self, thread_ids: Iterable[str]) -> None:
        wanted = set(thread_ids)
        self._unfollowed |= wanted
        async with self._one_look:
            if not wanted & self._unfollowed:
                return  # whoever was before us has asked for all
            asked, self._unfollowed = self._unfollowed, set()
            read = [one for one in asked if one in self._followed and self._followed[one].reading]
            try:
                await self._run_events.follow(sorted(asked), read=read, seconds=_FOLLOWED_SECONDS)
            except BaseException:
                self._unfollowed |= asked  # the next one asks for these too
                raise
