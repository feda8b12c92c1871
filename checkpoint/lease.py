"""Leases: who may write for a thread, and until when.

Invariant: an epoch grows with every claim and is never given twice, so a write that carries it can be checked
in its own transaction; the holder's token is made anew for each claim, so that a restarted worker of the same
name is somebody else. Renewal runs on a thread of its own: code that blocks the event loop keeps its lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from langgraph.checkpoint.base import id as id_clock
from psycopg import Connection as BlockingConnection
from psycopg.rows import DictRow, dict_row

from standfast.checkpoint import errors
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Connection, Database
from standfast.checkpoint.statements import statements

_SQL = statements("leases")
_BLOCKED_SECONDS = 1.0  # a takeover waits this long for a fenced transaction in flight
_WATCH_SECONDS = 0.5  # how often cancellations of held threads are looked up
_LOG = logging.getLogger("standfast.lease")


def worker_name() -> str:
    """This process, for people: host and pid. Never used to decide anything."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(eq=False)
class Lease:
    """The right to write for one thread at one epoch. `head` is the newest checkpoint id at the claim,
    `crashes` how many leases of the thread have run out in a row."""

    thread_id: str
    epoch: int
    holder: str
    seconds: float
    head: str | None
    crashes: int = 0
    cancel_requested: bool = False
    confirmed: float = field(default_factory=time.monotonic)
    lost: errors.LeaseLost | None = None
    on_lost: Callable[[], object] = field(default=lambda: None, repr=False)
    on_cancel: Callable[[], object] = field(default=lambda: None, repr=False)

    def lose(self, why: str) -> errors.LeaseLost:
        """Mark the lease as lost, once, and tell the driver."""
        if self.lost is None:
            self.lost = errors.LeaseLost(
                f"the lease of thread {self.thread_id!r} at epoch {self.epoch} is lost ({why}); "
                "another process may drive it now, nothing more of this one is written",
                thread_id=self.thread_id,
                epoch=self.epoch,
            )
            self.on_lost()
        return self.lost

    def require(self) -> None:
        """Raise `LeaseLost` if the lease is known to be lost."""
        if self.lost is not None:
            raise self.lost


def new_holder() -> str:
    """A token for one claim."""
    return uuid.uuid4().hex


async def claim(database: Database, thread_id: str, *, seconds: float) -> Lease:
    """Take the lease of a thread that is free or whose lease has run out.

    Raises `LeaseHeld` if another holds it, `UnknownThread` if there is no such thread. A stalled driver whose
    transaction still holds the fence is given a second, then its connection is terminated by the server.
    """
    holder = new_holder()
    params = {"thread": thread_id, "holder": holder, "worker": worker_name(), "seconds": seconds}

    async def work(conn: Connection) -> DictRow | None:
        unblocker = asyncio.create_task(_terminate_blockers(database, conn.info.backend_pid))
        try:
            return await (await conn.execute(_SQL["claim"], params)).fetchone()
        finally:
            unblocker.cancel()

    row = await database.run(work)
    if row is None:
        held = await database.fetch_one(_SQL["leased"], {"thread": thread_id})
        if held is None:
            raise errors.UnknownThread(f"there is no thread {thread_id!r}", thread_id=thread_id)
        raise errors.LeaseHeld(
            f"thread {thread_id!r} is driven by {held['lease_worker']} until {held['lease_expires_at']:%H:%M:%S}; "
            "it can be followed, or carried on when that lease has run out",
            thread_id=thread_id,
            worker=held["lease_worker"],
            expires_at=held["lease_expires_at"],
        )
    seed_clock(row["head"])
    lease = Lease(thread_id, row["epoch"], holder, seconds, row["head"], row["crashes"], row["cancel_requested"])
    reach("lease.claimed")
    return lease


def claimed(thread_id: str, holder: str, seconds: float, epoch: int, head: str | None) -> Lease:
    """The lease that a claim in SQL has just given, with the id clock of this process behind its head."""
    seed_clock(head)
    return Lease(thread_id, epoch, holder, seconds, head)


async def release(database: Database, lease: Lease) -> None:
    """Give the lease up with the thread still due; a lease that is lost already is nobody's business."""
    await database.fetch(_SQL["release"], {"thread": lease.thread_id, "epoch": lease.epoch})


async def _terminate_blockers(database: Database, pid: int) -> None:
    while True:
        await asyncio.sleep(_BLOCKED_SECONDS)
        await database.fetch(_SQL["blockers"], {"pid": pid})


def seed_clock(head: str | None) -> None:
    """Make the next checkpoint id of this process greater than `head`, whatever the wall clock says.

    LangGraph takes the greatest UUIDv6 for the newest checkpoint; a process whose clock is behind would
    write behind the head. The clock is a private part of langgraph-checkpoint: a canary test watches it.
    """
    if head is None:
        return
    identifier = uuid.UUID(head)
    if identifier.version != 6:
        return
    ticks = ((identifier.int >> 80) << 12) | ((identifier.int >> 64) & 0x0FFF)
    newest = max(id_clock._last_v6_timestamp or 0, ticks)
    id_clock._last_v6_timestamp = newest  # type: ignore[assignment]


class LeaseKeeper:
    """Renews all leases of a process at a third of their length, from its own thread and connection.

    A lease that could not be confirmed within its length is lost: the driver stops itself. Cancellations of
    held threads are noticed on the way, within a second.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._leases: set[Lease] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._connection: BlockingConnection[dict[str, object]] | None = None

    def keep(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        with self._lock:
            self._leases.add(lease)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="standfast-leases", daemon=True)
                self._thread.start()

    def drop(self, lease: Lease) -> None:
        """Renew it no longer."""
        with self._lock:
            self._leases.discard(lease)

    def close(self) -> None:
        """Stop the thread and close its connection."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(_WATCH_SECONDS)
            with self._lock:
                leases = [one for one in self._leases if one.lost is None]
            if not leases or self._stopping:
                continue
            try:
                self._renew([one for one in leases if time.monotonic() - one.confirmed > one.seconds / 3])
                self._watch(leases)
            except psycopg.Error as error:
                _LOG.warning("cannot renew leases: %s", error)
                self._disconnect()
            for one in leases:
                if one.lost is None and time.monotonic() - one.confirmed > one.seconds:
                    one.lose("its renewal could not be confirmed in time")
        self._disconnect()

    def _renew(self, leases: list[Lease]) -> None:
        for seconds in {one.seconds for one in leases}:
            due = [one for one in leases if one.seconds == seconds]
            sent = time.monotonic()
            params = {
                "threads": [one.thread_id for one in due],
                "epochs": [one.epoch for one in due],
                "seconds": seconds,
            }
            rows = self._execute(_SQL["renew"], params)
            standing = {(row["id"], row["epoch"]) for row in rows}
            for one in due:
                if (one.thread_id, one.epoch) in standing:
                    one.confirmed = sent
                else:
                    one.lose("its renewal was refused")

    def _watch(self, leases: list[Lease]) -> None:
        rows = self._execute(_SQL["cancelled"], {"threads": [one.thread_id for one in leases]})
        cancelled = {row["id"] for row in rows}
        for one in leases:
            if one.thread_id in cancelled:
                one.on_cancel()

    def _execute(self, statement: bytes, params: dict[str, object]) -> list[dict[str, object]]:
        if self._connection is None:
            self._connection = BlockingConnection.connect(
                self._conninfo, autocommit=True, row_factory=dict_row, connect_timeout=5
            )
        return self._connection.execute(statement, params).fetchall()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
