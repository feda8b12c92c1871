"""Records what happens in a drive as the run's events: stored first, then shown.

Invariant: events get their numbers here, where the lease is held, and ride in the transaction of the next
checkpoint, wait or end. If none comes for a moment (for tokens, that are put together meanwhile, a shorter one) they
go on their own. Whoever
listens in this process hears of an event after its commit. What cannot be stored is told of in its place: an event
never fails the step that it tells of.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from standfast.checkpoint.database import Rider
from standfast.checkpoint.errors import StandfastError, UnstorableValue
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.run_events import RunEvent, RunEvents
from standfast.checkpoint.threads import Run

TOKEN: Final = "token"  # noqa: S105 - a piece of text
_TOLD_BY_OTHERS: Final = frozenset({"custom", "progress"})
_TOKEN_SECONDS: Final = 0.1
_OTHER_SECONDS: Final = 1.0  # a step that takes longer than this is seen to have begun
_TOKEN_CHARACTERS: Final = 2000

_LOG = logging.getLogger("standfast.recorder")

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
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: list[RunEvent] = []
        self._sent: list[RunEvent] = []
        self._sent_to = last
        self._timer: asyncio.TimerHandle | None = None
        self._flusher: asyncio.Task[None] | None = None

    def add(self, kind: str, path: tuple[str, ...] = (), data: Any = None) -> None:
        """Record an event, from any thread. A token of the same answer as the last one is joined to it."""
        if threading.get_ident() != self._thread:  # a blocking operation tells of its progress
            self._loop.call_soon_threadsafe(self.add, kind, path, data)
            return
        if kind == TOKEN and self._joined(path, data):
            return
        if kind in _TOLD_BY_OTHERS:  # copied now: who has told it may go on to change it
            try:
                data = self._run_events.snapshot(data)
            except UnstorableValue as error:
                data = {"unstorable": str(error)}
        self._last += 1
        self._waiting.append(RunEvent(self._last, self._lease.epoch, kind, path, data, None))
        self._arm(_TOKEN_SECONDS if kind == TOKEN else _OTHER_SECONDS)

    def _joined(self, path: tuple[str, ...], data: Any) -> bool:
        if not self._waiting:
            return False
        last = self._waiting[-1]
        if last.kind != TOKEN or last.path != path or last.data["message"] != data["message"]:
            return False
        # One that was sent may have been stored, though nobody has heard of it.
        if last.seq <= self._sent_to or len(last.data["text"]) + len(data["text"]) > _TOKEN_CHARACTERS:
            return False
        if last.data["attempt"] != data["attempt"]:
            return False
        self._waiting[-1] = replace(last, data={**data, "text": last.data["text"] + data["text"]})
        return True

    # -- what a transaction takes along

    def take(self) -> list[Rider]:
        """The statement for all events that wait, to be sent in the next transaction."""
        if not self._waiting:
            return []
        self._sent, self._waiting, self._sent_to = self._waiting, [], self._last
        if self._timer is not None:  # a commit for each moment of a busy process would cost more than it tells
            self._timer.cancel()
            self._timer = None
        return [self._run_events.append(self._run.thread_id, self._run.id, self._lease.epoch, self._sent)]

    def restore(self) -> None:
        """That transaction did not happen."""
        self._waiting, self._sent = self._sent + self._waiting, []
        if self._waiting:
            self._arm(_OTHER_SECONDS)

    def stored(self) -> None:
        """That transaction is committed: show what it took."""
        sent, self._sent = self._sent, []
        if self._on_event is not None:
            for event in sent:
                try:
                    self._on_event(event)
                except Exception:  # noqa: BLE001 - what happens does not depend on who listens
                    _LOG.exception("a listener failed at event %d; it hears no more", event.seq)
                    self._on_event = None
                    return

    @property
    def pending(self) -> bool:
        """Whether events wait for a transaction."""
        return bool(self._waiting)

    # -- what waits for no transaction

    def _arm(self, seconds: float) -> None:
        when = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._flush_now)

    def _flush_now(self) -> None:
        self._timer = None
        if self._flusher is not None and not self._flusher.done():  # a slow one: these go after it
            self._arm(_TOKEN_SECONDS)
        elif self._waiting:
            self._flusher = self._loop.create_task(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        with contextlib.suppress(StandfastError):  # the events were put back and ride with the next transaction
            await self._flush()

    async def close(self) -> None:
        """Wait for the flush under way; none is planned any more until the next token."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
