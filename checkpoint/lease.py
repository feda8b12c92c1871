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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import psycopg
from langgraph.checkpoint.base import id as id_clock
from psycopg import Connection as BlockingConnection
from psycopg.rows import DictRow, dict_row

from standfast.checkpoint import errors, telemetry
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Connection, Database, connect
from standfast.checkpoint.statements import statements

_SQL = statements("leases")
_BLOCKED_SECONDS = 1.0  # a takeover waits this long for a fenced transaction in flight
_WATCH_SECONDS = 0.5  # how often cancellations of held threads are looked up
_LOG = logging.getLogger("standfast.lease")
T = TypeVar("T")


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
            telemetry.lease_lost()
            self.lost = errors.LeaseLost(
                f"the lease of thread {self.thread_id!r} at epoch {self.epoch} is lost ({why}); "
                "another process may drive it now, nothing more of this one is written",
                thread_id=self.thread_id,
                epoch=self.epoch,
            )
            self.on_lost()
        return self.lost

    def require(self) -> None:
        """Raise `LeaseLost` if the lease is lost, or is not known to stand: directly before what must not be late."""
        if self.lost is not None:
            raise self.lost
        if self.overdue:
            raise self.lose("its renewal could not be confirmed in time")

    @property
    def overdue(self) -> bool:
        """Whether it may have run out: it was not confirmed within its length."""
        return time.monotonic() - self.confirmed > self.seconds


def new_holder() -> str:
    """A token for one claim."""
    return uuid.uuid4().hex


async def claim(database: Database, thread_id: str, *, seconds: float) -> Lease:
    """Take the lease of a thread that is free or whose lease has run out.

    Raises `LeaseHeld` if another holds it, `UnknownThread` if there is no such thread.
    """
    while True:
        lease = await _take(database, _SQL["claim"], thread_id, seconds, worker_name())
        if lease is not None:
            return lease
        await _raise_if_held(database, thread_id)


async def claim_due(database: Database, thread_id: str, *, seconds: float, worker: str) -> Lease | None:
    """Take the lease of a thread that has something due, or None: nothing is due, or somebody drives it."""
    return await _take(database, _SQL["claim_due"], thread_id, seconds, worker)


@dataclass(frozen=True)
class Claimed:
    """A thread that a worker has taken to drive it: whose code it needs, and the lease."""

    graph: str
    version: str
    run_id: str | None
    lease: Lease


async def claim_next(
    database: Database, graphs: Sequence[str], *, most: int, seconds: float, worker: str
) -> list[Claimed]:
    """Take up to `most` threads of these graphs (`graph@version`) that are due, in one transaction, the first first.

    Whatever somebody else is just taking or changing is left to the next look.
    """
    holders = [new_holder() for _ in range(most)]
    params: dict[str, object] = {"graphs": list(graphs), "holders": holders, "worker": worker, "seconds": seconds}
    sent_before = False

    async def work() -> tuple[float, list[DictRow]]:
        nonlocal sent_before
        given, sent_before = {**params, "again": sent_before}, True
        sent = time.monotonic()
        async with database.pool.connection() as conn:
            return sent, await (await conn.execute(_SQL["claim_next"], given, binary=True)).fetchall()

    sent, rows = await _in_time(lambda: database.again(work), seconds)
    claims = [
        Claimed(row["graph"], row["version"], row["run_id"], _lease(row["id"], row["holder"], seconds, row, sent))
        for row in rows
    ]
    for _ in claims:
        reach("lease.claimed")
    return claims


async def _take(database: Database, statement: bytes, thread_id: str, seconds: float, worker: str) -> Lease | None:
    holder = new_holder()
    params: dict[str, object] = {"thread": thread_id, "holder": holder, "worker": worker, "seconds": seconds}

    async def work(conn: Connection) -> tuple[float, DictRow | None]:
        sent = time.monotonic()  # the lease runs from here at the earliest: a blocked claim takes its time
        return sent, await _unblocked(database, conn, statement, params)

    sent, row = await _in_time(lambda: database.run(work), seconds)
    if row is None:
        return None
    lease = _lease(thread_id, holder, seconds, row, sent)
    reach("lease.claimed")
    return lease


async def _in_time(claim: Callable[[], Awaitable[tuple[float, T]]], seconds: float) -> tuple[float, T]:
    """When a claim was sent, and what it took. One that was held up has used up its own time: sent again by the same
    holders it renews what it took."""
    sent, taken = await claim()
    while taken and time.monotonic() - sent > seconds / 2:
        sent, taken = await claim()
    return sent, taken


def _lease(thread_id: str, holder: str, seconds: float, row: DictRow, sent: float) -> Lease:
    seed_clock(row["head"])
    return Lease(thread_id, row["epoch"], holder, seconds, row["head"], row["crashes"], row["cancel_requested"], sent)


@dataclass(frozen=True)
class Holder:
    """Who drives a thread, and how long he may without renewing his lease; below zero it has run out."""

    worker: str
    expires_at: datetime
    seconds_left: float


async def holder_of(database: Database, thread_id: str) -> Holder | None:
    """Who has the thread's lease, or had it last, if it was not given up."""
    row = await database.fetch_one(_SQL["leased"], {"thread": thread_id})
    if row is None or row["lease_worker"] is None:
        return None
    return Holder(row["lease_worker"], row["lease_expires_at"], row["seconds_left"])


async def _raise_if_held(database: Database, thread_id: str) -> None:
    held = await database.fetch_one(_SQL["leased"], {"thread": thread_id})
    if held is None:
        raise errors.UnknownThread(f"there is no thread {thread_id!r}", thread_id=thread_id)
    if held["lease_worker"] is None:  # it was let go in between
        return
    raise errors.LeaseHeld(
        f"thread {thread_id!r} is driven by {held['lease_worker']} until {held['lease_expires_at']:%H:%M:%S}; "
        "it can be followed, or carried on when that lease has run out",
        thread_id=thread_id,
        worker=held["lease_worker"],
        expires_at=held["lease_expires_at"],
    )


def claimed(thread_id: str, holder: str, seconds: float, epoch: int, head: str | None) -> Lease:
    """The lease that a claim in SQL has just given, with the id clock of this process behind its head."""
    seed_clock(head)
    return Lease(thread_id, epoch, holder, seconds, head)


async def release(database: Database, lease: Lease) -> None:
    """Give the lease up with the thread still due; a lease that is lost already is nobody's business."""
    await database.fetch(_SQL["release"], {"thread": lease.thread_id, "epoch": lease.epoch})


async def leave(database: Database, lease: Lease) -> None:
    """Give the lease up with nothing due; what has come meanwhile makes the thread due again."""
    params = {"thread": lease.thread_id, "epoch": lease.epoch}
    row = await database.fetch_one(_SQL["leave"], params)
    if row is None or not row["left"]:
        await release(database, lease)


async def break_lease(database: Database, thread_id: str) -> str | None:
    """Take a dead process's lease away and make the thread due; returns who held it, None if nobody did.

    A holder that lives after all is fenced from here on: nothing more of it is written.
    """

    async def work(conn: Connection) -> DictRow | None:
        return await _unblocked(database, conn, _SQL["break"], {"thread": thread_id})

    row = await database.run(work)
    return None if row is None else str(row["worker"])


async def _unblocked(
    database: Database, conn: Connection, statement: bytes, params: dict[str, object]
) -> DictRow | None:
    """The row of a statement that takes a thread from somebody.

    Whoever holds that row in a stalled transaction is given a second, then the server ends his connection.
    """
    unblocker = asyncio.create_task(_terminate_blockers(database.conninfo, await database.pid_of(conn)))
    try:
        return await (await conn.execute(statement, params)).fetchone()
    finally:
        unblocker.cancel()
        await asyncio.wait([unblocker])


async def _terminate_blockers(conninfo: str, pid: int) -> None:
    await asyncio.sleep(_BLOCKED_SECONDS)
    try:
        # Not of the pool, which may be full of claims that wait as this one does.
        async with await connect(conninfo) as conn:
            while True:
                ended = await (await conn.execute(_SQL["terminate_blockers"], {"pid": pid})).fetchall()
                _LOG.warning("ended the stalled transactions of backends %s", [row["pid"] for row in ended])
                await asyncio.sleep(_BLOCKED_SECONDS)
    except (errors.StandfastError, psycopg.Error) as error:
        _LOG.warning("cannot end the transaction that holds up a claim: %s", error)


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


def _pause(leases: list[Lease]) -> float:
    return min([_WATCH_SECONDS, *(one.seconds / 10 for one in leases)])


class LeaseKeeper:
    """Renews all leases of a process at a third of their length, from a thread and connection of its own.

    A lease that could not be confirmed within its length is lost: the driver stops itself. That is watched from
    a second thread, because a renewal may hang with the server. Cancellations of held threads are noticed on
    the way, within a second.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._leases: set[Lease] = set()
        self._changed = threading.Condition()
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._connection: BlockingConnection[dict[str, object]] | None = None

    def keep(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        with self._changed:
            self._leases.add(lease)
            if _pause([lease]) < _WATCH_SECONDS:
                self._changed.notify_all()  # a pause has begun that is too long for it
            if not self._threads:
                self._threads = [
                    threading.Thread(target=self._every_turn, args=(turn,), name=f"standfast-{name}", daemon=True)
                    for name, turn in (("leases", self._renew_and_watch), ("lease-ends", self._expire))
                ]
                for thread in self._threads:
                    thread.start()

    def drop(self, lease: Lease) -> None:
        """Renew it no longer."""
        with self._changed:
            self._leases.discard(lease)

    def close(self) -> None:
        """Stop the threads; one that hangs with the server is left behind, and ends with the process."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_WATCH_SECONDS)

    def _every_turn(self, turn: Callable[[list[Lease]], None]) -> None:
        while leases := self._next():
            try:
                turn(leases)
            except Exception:  # noqa: BLE001 - a thread that ends here would cost every lease of the process
                _LOG.exception("keeping leases failed; going on")
        if turn == self._renew_and_watch:
            self._disconnect()

    def _next(self) -> list[Lease]:
        """What is held, after a pause; nothing when it is time to stop."""
        with self._changed:
            held: list[Lease] = []
            while not held and not self._stopping:
                self._changed.wait(_pause([one for one in self._leases if one.lost is None]))
                held = [one for one in self._leases if one.lost is None]
            return [] if self._stopping else held

    def _renew_and_watch(self, leases: list[Lease]) -> None:
        try:
            self._renew([one for one in leases if time.monotonic() - one.confirmed > one.seconds / 3])
            self._watch(leases)
        except psycopg.Error as error:
            _LOG.warning("cannot renew leases: %s", error)
            self._disconnect()

    def _expire(self, leases: list[Lease]) -> None:
        for one in leases:
            if one.overdue:
                one.lose("its renewal could not be confirmed in time")

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
