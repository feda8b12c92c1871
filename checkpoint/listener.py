"""Hears of changes of threads: one listening connection for each process, however many listen.

Invariant: a notification is a hint. Whoever waits looks at the rows, is woken by the hint, and looks again at the
latest after `POLL_SECONDS`, so that nothing depends on a notification that never came.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

import psycopg

from standfast.checkpoint.database import Connection, Database, connect
from standfast.checkpoint.errors import StandfastError
from standfast.checkpoint.run_events import RunEvents

POLL_SECONDS: Final = 0.5
_FOLLOWED_SECONDS: Final = 30.0
_LOG = logging.getLogger("standfast.listener")


class Listener:
    """Wakes those who wait for a thread. The connection exists only while somebody waits."""

    def __init__(self, database: Database, run_events: RunEvents) -> None:
        self._database = database
        self._run_events = run_events
        self._waiting: Counter[str] = Counter()
        self._changed: dict[str, asyncio.Event] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def following(self, thread_id: str) -> AsyncIterator[None]:
        """Within it `wait` is woken by changes of the thread."""
        self._waiting[thread_id] += 1
        self._changed.setdefault(thread_id, asyncio.Event())
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen())
        if self._waiting[thread_id] == 1:
            await self._run_events.follow([thread_id], seconds=_FOLLOWED_SECONDS)
        try:
            yield
        finally:
            self._waiting[thread_id] -= 1
            if not self._waiting[thread_id]:
                del self._waiting[thread_id], self._changed[thread_id]

    async def wait(self, thread_id: str) -> None:
        """Return when the thread has changed, or after `POLL_SECONDS`."""
        changed = self._changed[thread_id]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await changed.wait()
        changed.clear()

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _listen(self) -> None:
        while self._waiting:
            try:
                async with await connect(self._database.conninfo) as conn:
                    await conn.execute("listen standfast_threads")
                    await self._hear(conn)
            except (psycopg.Error, StandfastError) as error:
                _LOG.warning("not listening for a moment: %s", error)
                await asyncio.sleep(POLL_SECONDS)

    async def _hear(self, conn: Connection) -> None:
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while self._waiting:
            async for note in conn.notifies(timeout=_FOLLOWED_SECONDS / 10):
                changed = self._changed.get(note.payload)
                if changed is not None:
                    changed.set()
                if loop.time() - renewed > _FOLLOWED_SECONDS / 3:
                    break
            if loop.time() - renewed > _FOLLOWED_SECONDS / 3:
                renewed = loop.time()
                await self._run_events.follow(list(self._waiting), seconds=_FOLLOWED_SECONDS)
