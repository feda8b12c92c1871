"""Records what happens in a drive as the run's events: stored first, then shown.

Invariant: events get their numbers here, where the lease is held, and ride in the transaction of the next
checkpoint, wait or end. Tokens wait for none: they are put together and go on their own after a moment. Whoever
listens in this process hears of an event after its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from standfast.checkpoint.database import Rider
from standfast.checkpoint.errors import StandfastError
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.run_events import RunEvent, RunEvents
from standfast.checkpoint.threads import Run

TOKEN: Final = "token"  # noqa: S105 - a piece of text
_TOKEN_SECONDS: Final = 0.1
_TOKEN_CHARACTERS: Final = 2000

OnEvent = Callable[[RunEvent], None]


class Recorder:
    """Numbers and buffers the events of one drive. `last` is the newest number that the run has."""

    def __init__(
        self,
        run_events: RunEvents,
        lease: Lease,
        run: Run,
        *,
        last: int,
        flush: Callable[[], Awaitable[None]],
        on_event: OnEvent | None,
    ) -> None:
        self._run_events = run_events
        self._lease = lease
        self._run = run
        self._last = last
        self._flush = flush
        self._on_event = on_event
        self._waiting: list[RunEvent] = []
        self._sent: list[RunEvent] = []
        self._timer: asyncio.TimerHandle | None = None
        self._flusher: asyncio.Task[None] | None = None

    def add(self, kind: str, path: tuple[str, ...] = (), data: Any = None) -> None:
        """Record an event. A token of the same answer as the last one is joined to it."""
        if kind == TOKEN and self._joined(path, data):
            return
        self._last += 1
        self._waiting.append(RunEvent(self._last, self._lease.epoch, kind, path, data, None))
        if kind == TOKEN and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TOKEN_SECONDS, self._flush_tokens)

    def _joined(self, path: tuple[str, ...], data: Any) -> bool:
        if not self._waiting:
            return False
        last = self._waiting[-1]
        if last.kind != TOKEN or last.path != path or last.data["message"] != data["message"]:
            return False
        if last.data["attempt"] != data["attempt"] or len(last.data["text"]) > _TOKEN_CHARACTERS:
            return False
        self._waiting[-1] = replace(last, data={**data, "text": last.data["text"] + data["text"]})
        return True

    # -- what a transaction takes along

    def take(self) -> list[Rider]:
        """The statement for all events that wait, to be sent in the next transaction."""
        if not self._waiting:
            return []
        self._sent, self._waiting = self._waiting, []
        return [self._run_events.append(self._run.thread_id, self._run.id, self._lease.epoch, self._sent)]

    def restore(self) -> None:
        """That transaction did not happen."""
        self._waiting, self._sent = self._sent + self._waiting, []

    def stored(self) -> None:
        """That transaction is committed: show what it took."""
        sent, self._sent = self._sent, []
        if self._on_event is not None:
            for event in sent:
                self._on_event(event)

    @property
    def pending(self) -> bool:
        """Whether events wait for a transaction."""
        return bool(self._waiting)

    # -- tokens

    def _flush_tokens(self) -> None:
        self._timer = None
        if self._waiting and (self._flusher is None or self._flusher.done()):
            self._flusher = asyncio.get_running_loop().create_task(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        with contextlib.suppress(StandfastError):  # the events were put back and ride with the next transaction
            await self._flush()

    async def close(self) -> None:
        """No flush is under way or planned any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
