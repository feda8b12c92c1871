"""Follows runs that any process drives, by their rows: nothing is held, nothing is driven.

Invariant: what a reader sees depends on the run's stored events and on the number it asked for alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from standfast.checkpoint import errors
from standfast.checkpoint.lease import holder_of
from standfast.checkpoint.listener import Listener
from standfast.checkpoint.run_events import RunEvent
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Status, Thread

_PAGE: Final = 200  # commits
_RESTING: Final = frozenset({Status.WAITING, Status.NEEDS_ATTENTION})
_QUICK: Final = 1.0  # seconds of waiting that nobody is told of
_LOG = logging.getLogger("standfast.following")


async def follow_to_end(
    store: Store, listener: Listener, thread_id: str, run_id: str, *, ours: Callable[[Thread], bool] | None = None
) -> bool:
    """Return when the run has ended or waits (False).

    With `ours`, which tells whether the caller could drive the thread, return also when the thread is due and nobody
    drives it (True).
    """
    async with listener.following(thread_id):
        while True:
            seen = listener.seen(thread_id)
            at = ("rests", thread_id, run_id, seen)
            if await listener.look(at, lambda: _rests(store, thread_id, run_id)):
                return False
            if ours is not None:
                known = await listener.look(("get", thread_id, seen), lambda: store.threads.get(thread_id))
                if known.due and ours(known):
                    return True
            await listener.wait(thread_id, seen, polling=ours is not None)  # a lease that runs out is not told of


@asynccontextmanager
async def told_of_waiting(store: Store, thread_id: str, *, lease_seconds: float) -> AsyncIterator[None]:
    """Log whom the caller waits for inside, if it takes longer than a moment; a warning if he seems to be dead."""
    telling = asyncio.create_task(_tell_of_waiting(store, thread_id, lease_seconds))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait([telling])


async def _tell_of_waiting(store: Store, thread_id: str, lease_seconds: float) -> None:
    told = False
    while True:
        await asyncio.sleep(_QUICK)
        held = await holder_of(store.database, thread_id)
        if held is None:
            continue
        until = f"{held.expires_at.astimezone():%H:%M:%S}"
        # Whoever lives renews his lease when a third of it is over.
        if held.seconds_left < lease_seconds / 2:
            _LOG.warning(
                "thread %r is driven by %s, which has not renewed its lease and may be dead: then this process carries "
                "the thread on after %s. If you know that it is dead, `standfast release %s --yes` ends the lease now",
                thread_id,
                held.worker,
                until,
                thread_id,
            )
            return
        if not told:
            _LOG.info("thread %r is driven by %s, lease until %s; following it", thread_id, held.worker, until)
            told = True


async def follow_events(
    store: Store, listener: Listener, thread_id: str, run_id: str, *, after: int
) -> AsyncIterator[RunEvent]:
    """The run's events after a number (negative: the last n), until it ends or waits."""
    if after < 0:
        last = await listener.look(("last", thread_id, run_id), lambda: store.run_events.last(thread_id, run_id))
        after = max(0, last + after)
    async with listener.following(thread_id, reading=True):
        while True:
            seen, page = listener.seen(thread_id), partial(_page, store, thread_id, run_id, after)
            events, more, resting = await listener.look(("events", thread_id, run_id, after, seen), page)
            for event in events:
                after = event.seq
                yield event
            if more:
                continue
            if resting:
                return
            await listener.wait(thread_id, seen)


async def _page(store: Store, thread_id: str, run_id: str, after: int) -> tuple[list[RunEvent], bool, bool]:
    """The next events, whether there are more already, and whether the run rests."""
    resting = await _rests(store, thread_id, run_id)  # looked at first: its last events come before it
    return (*await store.run_events.page(thread_id, run_id, after=after, limit=_PAGE), resting)


async def _rests(store: Store, thread_id: str, run_id: str) -> bool:
    return await rests(store, await store.threads.get(thread_id), run_id)


async def rests(store: Store, known: Thread, run_id: str) -> bool:
    """Whether a run of a thread has ended, or is the thread's current one and waits. Raises `UnknownThread`."""
    if known.run_id == run_id:
        return known.status in _RESTING or known.status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
    state, _ = await store.threads.standing(known.id, run_id)
    if state is None:
        raise errors.UnknownThread(f"thread {known.id!r} has no run {run_id!r}", thread_id=known.id)
    return state not in ("queued", "open")
