"""A worker: one process of the fleet. It is rung, takes what is due, sweeps for what cannot be taken so, and drives.

Invariants: any number of workers on any machines may serve the same graphs; who drives is decided by leases alone.
A worker that is told to stop takes nothing new, lets the steps under way finish, gives its leases up, and is gone
within its grace period; a worker that is killed is found by the sweep of the others. Whatever a drive raises, the
worker outlives it, and no thread comes back for the same failure for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict, TypeVar

from langgraph.runtime import RunControl

from standfast.checkpoint import errors
from standfast.checkpoint.doorbell import listen
from standfast.checkpoint.fleet import Fleet, Incarnation, Overdue
from standfast.checkpoint.lease import Claimed, Lease, worker_name
from standfast.checkpoint.store import Store
from standfast.graph.deployed import Deployed
from standfast.graph.logs import about
from standfast.graph.result import Result
from standfast.graph.scheduling import fire_due
from standfast.tools.channels import Channel
from standfast.tools.dispatcher import Dispatcher

SWEEP_SECONDS: Final = 0.5
ANCHOR_SECONDS: Final = 60.0  # between two anchors of the audit
_BATCH: Final = 10  # threads taken in one transaction: a worker with many slots leaves some to the others
_PACE_SECONDS: Final = 0.005  # between two looks: those who ring at the same time are answered together
_TIDY_EVERY: Final = 600  # sweeps between two looks for artifacts that nobody refers to
_SEEN_EVERY: Final = 10  # sweeps between two signs of life
_HEALTHY_SECONDS: Final = 5.0  # after a sweep that reached the database
_SLOW_SECONDS: Final = 2.0  # a statement that takes longer is asked what it waits for
_LEAVING_SECONDS: Final = 5.0  # for giving up leases and saying goodbye, after the grace period
_LOG = logging.getLogger("standfast.worker")

T = TypeVar("T")


@dataclass(frozen=True)
class WorkerOptions:
    """`concurrency`: drives at a time. `grace`: seconds for the steps under way at a stop.

    `name` is for people: worker processes of one name are told apart. `health_file` is touched, and
    `health_port` answers 200 to HTTP, as long as the worker can reach its database.
    """

    concurrency: int = 10
    grace: float = 30.0
    name: str | None = None
    health_file: Path | None = None
    health_port: int | None = None


class WorkerSettings(TypedDict, total=False):
    """`WorkerOptions` as keyword arguments."""

    concurrency: int
    grace: float
    name: str | None
    health_file: Path | None
    health_port: int | None


class Served(Protocol):
    """An open runtime, as a worker needs it."""

    @property
    def deployed(self) -> Deployed: ...

    @property
    def store(self) -> Store: ...

    @property
    def lease_seconds(self) -> float: ...

    @property
    def channels(self) -> Sequence[Channel]: ...

    async def adrive(
        self, lease: Lease, *, control: RunControl | None = None, keep_on_error: bool = False
    ) -> Result: ...

    async def aput_aside(self, lease: Lease, reason: str) -> None: ...


class Worker:
    """Serves the graphs of some open runtimes that share one database, until `stop` is set."""

    def __init__(
        self, runtimes: Sequence[Served], options: WorkerOptions | None = None, *, stop: asyncio.Event | None = None
    ) -> None:
        self._options = options or WorkerOptions()
        if self._options.concurrency < 1 or self._options.grace < 0:
            raise errors.InvalidRequest("a worker's concurrency is at least 1, and its grace is not negative")
        self._runtimes = list(runtimes)
        codes = [one.deployed for one in runtimes]
        own = [f"{one.name}@{one.version}" for one in codes]
        if not runtimes or len(set(own)) != len(runtimes):
            raise errors.InvalidRequest("a worker serves at least one graph, each name and version once")
        taken_over = [f"{one.name}@{version}" for one in codes for version in sorted(one.takes_over)]
        graphs = tuple(dict.fromkeys([*own, *taken_over]))
        self._store = runtimes[0].store
        self._database = runtimes[0].store.database
        self._events = runtimes[0].store.events
        self._approvals = runtimes[0].store.approvals
        self._audit = runtimes[0].store.audit
        self._threads = runtimes[0].store.threads
        self._artifacts = runtimes[0].store.artifacts
        self._fleet = Fleet(self._database)
        channels = {one.name: one for runtime in runtimes for one in runtime.channels}
        self._dispatcher = Dispatcher(runtimes[0].store.outbox, list(channels.values())) if channels else None
        self._me = Incarnation(self._options.name or worker_name(), graphs, self._options.concurrency)
        self._drives: set[asyncio.Task[None]] = set()
        self._overdue: set[str] = set()
        self._rung = asyncio.Event()
        self._full = False
        self._taking = 0  # slots of what is just being taken
        self._control = RunControl()
        self._stopping = stop or asyncio.Event()
        self._healthy_until = 0.0

    async def run(self) -> bool:
        """Work until told to stop, or cancelled, then drain; a database that goes away is waited for.

        False if a step was cut off, which may still be at work in a thread, or something would not end at all.
        """
        _LOG.info("worker %s serves %s", self._me.name, ", ".join(self._me.graphs))
        taking = asyncio.create_task(self._take())
        chores = [asyncio.create_task(self._listen()), asyncio.create_task(self._sweep())]
        if self._dispatcher is not None:
            chores.append(asyncio.create_task(self._dispatcher.run()))
        try:
            async with self._health():
                await self._stopping.wait()
        finally:
            self._stopping.set()
            self._control.request_drain()
            self._rung.set()
            ended = await self._leave(chores, taking)
        return ended

    # -- finding work

    async def _listen(self) -> None:
        while True:
            try:
                await listen(self._database.conninfo, self._me.graphs, self._rung.set)
            except errors.StorageUnavailable as error:
                _LOG.warning("%s; trying again", error)
            except Exception:  # noqa: BLE001 - without its doorbell the worker would be deaf
                _LOG.exception("the doorbell has failed; trying again")
            await asyncio.sleep(SWEEP_SECONDS)

    async def _take(self) -> None:
        """Take what is due whenever somebody rings, as long as there are slots. It ends when the worker is stopped."""
        while not self._stopping.is_set():
            await self._rung.wait()
            self._rung.clear()
            try:
                more = True
                while more and not self._stopping.is_set():
                    more = await self._take_some()
                    await asyncio.sleep(_PACE_SECONDS)
            except errors.StandfastError as error:
                _LOG.warning("cannot take what is due: %s", error)
            except Exception:  # noqa: BLE001 - the worker outlives it, and looks again after a while
                _LOG.exception("taking what is due failed")

    async def _take_some(self) -> bool:
        """Whether there may be more, and a slot for it."""
        most = min(_BATCH, self._free)
        self._full = most == 0
        if self._full:
            return False
        self._taking = most
        try:
            claims = await self._fleet.claim_next(
                self._me.graphs,
                most=most,
                seconds=min(one.lease_seconds for one in self._runtimes),
                worker=self._me.name,
            )
        finally:
            self._taking = 0
        for claimed in claims:
            self._begin(self._drive(claimed))
        return len(claims) == most

    @property
    def _free(self) -> int:
        return max(0, self._options.concurrency - len(self._drives) - self._taking)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        drive = asyncio.create_task(self._guarded(work))
        self._drives.add(drive)
        drive.add_done_callback(self._ended)

    def _ended(self, drive: asyncio.Task[None]) -> None:
        self._drives.discard(drive)
        if self._full:
            self._rung.set()

    async def _sweep(self) -> None:
        count = 0
        while True:
            try:
                if count % _SEEN_EVERY == 0:
                    await self._watched(self._fleet.register(self._me))
                    await self._watched(self._fleet.forget_dead())
                    await self._watched(self._fleet.measure())
                    await self._watched(self._events.drop_expired())
                    await self._watched(self._approvals.remind())
                    await self._watched(self._anchor())
                if count % _TIDY_EVERY == _TIDY_EVERY - 1:
                    await self._watched(self._artifacts.sweep())
                await self._watched(fire_due(self._store))
                for overdue in await self._watched(self._fleet.overdue(self._me.graphs, most=self._free)):
                    if overdue.id not in self._overdue and self._free:
                        self._begin(self._take_over(overdue))
                count += 1
                self._sign_of_health()
            except errors.StandfastError as error:
                _LOG.warning("cannot sweep: %s", error)
            except Exception:  # noqa: BLE001 - the sweep goes on, it is what recovers everything else
                _LOG.exception("the sweep failed")
            self._rung.set()  # for bells that were lost
            await asyncio.sleep(SWEEP_SECONDS)

    async def _anchor(self) -> None:
        """Anchor the audit; the log is a place to keep its hash that no writer of the database reaches."""
        anchor = await self._audit.anchor(seconds=ANCHOR_SECONDS)
        if anchor is not None:
            _LOG.info("audit anchor %d:%s", anchor.number, anchor.hash)

    async def _watched(self, work: Awaitable[T]) -> T:
        """What `work` returns; while it does not come back, the log says why."""
        task = asyncio.ensure_future(work)
        said: str | None = None
        try:
            while not (await asyncio.wait([task], timeout=_SLOW_SECONDS))[0]:
                trouble = await self._fleet.trouble()
                if trouble is not None and trouble != said and not task.done():
                    _LOG.warning("waiting: %s", trouble)
                    said = trouble
            if said is not None:
                _LOG.info("going on")
        finally:
            task.cancel()
        return task.result()

    # -- driving

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (errors.LeaseLost, errors.UnknownThread) as error:
            _LOG.warning("%s", error)
        except errors.StandfastError as error:
            _LOG.warning("%s: %s", type(error).__name__, error)
        except Exception:  # noqa: BLE001 - the worker outlives whatever a drive raises
            _LOG.exception("a drive failed")

    async def _take_over(self, overdue: Overdue) -> None:
        about.set({"thread_id": overdue.id})
        self._overdue.add(overdue.id)
        try:
            lease = await self._fleet.claim_due(
                overdue.id, seconds=self._runtime(overdue).lease_seconds, worker=self._me.name
            )
        finally:
            self._overdue.discard(overdue.id)
        if lease is not None:
            await self._drive(Claimed(overdue.graph, overdue.version, None, lease))

    def _runtime(self, thread: Overdue | Claimed) -> Served:
        """The code that serves the thread's graph and version, or has taken it over."""
        able = [one for one in self._runtimes if one.deployed.serves(thread.graph, thread.version)]
        return next((one for one in able if one.deployed.version == thread.version), able[0])

    async def _drive(self, claimed: Claimed) -> None:
        lease, runtime, thread_id = claimed.lease, self._runtime(claimed), claimed.lease.thread_id
        about.set({"thread_id": thread_id, "run_id": claimed.run_id or ""})
        if self._stopping.is_set():
            await self._fleet.release(lease)
            return
        try:
            result = await runtime.adrive(lease, control=self._control, keep_on_error=True)
        except (errors.LeaseLost, errors.RuntimeClosed):
            raise
        except errors.StorageUnavailable:
            await asyncio.sleep(SWEEP_SECONDS)  # a disk that is full must not make us spin
            await self._fleet.release(lease)
            raise
        except Exception as error:  # noqa: BLE001
            if not runtime.deployed.drives(await self._threads.get(thread_id)):
                # Between the look and the claim a run of another version had its turn: its own workers come for it.
                await self._fleet.release(lease)
                return
            # Whatever this code cannot continue would come back at once: it is put before a person.
            _LOG.error("put aside: %s", error, exc_info=not isinstance(error, errors.StandfastError))
            await runtime.aput_aside(lease, f"{type(error).__name__}: {error}")
        else:
            _LOG.info("%s", "drained" if result.drained else result.status)

    # -- leaving

    async def _leave(self, chores: Sequence[asyncio.Task[None]], taking: asyncio.Task[None]) -> bool:
        """Let the steps under way finish; what has not within the grace period is cancelled, and goes on elsewhere."""
        for task in chores:
            task.cancel()
        await asyncio.wait([taking], timeout=_LEAVING_SECONDS)  # what it was just taking is given back
        taking.cancel()
        if self._drives:
            _LOG.info("finishing %d drives", len(self._drives))
            await asyncio.wait(self._drives, timeout=self._options.grace)
        late = [one for one in self._drives if not one.done()]
        for drive in late:
            drive.cancel()
        if late:
            _LOG.warning("%d steps took longer than the grace of %g s", len(late), self._options.grace)
        goodbye = asyncio.create_task(self._fleet.leave(self._me))
        _, left = await asyncio.wait([taking, *chores, *late, goodbye], timeout=_LEAVING_SECONDS)
        if left:
            _LOG.warning("leaving with %d things unfinished; what they hold runs out by itself", len(left))
        elif goodbye.exception() is not None:
            _LOG.warning("could not say goodbye: %s", goodbye.exception())
        _LOG.info("worker %s is gone", self._me.name)
        return not left and not late

    # -- health

    def _sign_of_health(self) -> None:
        self._healthy_until = asyncio.get_running_loop().time() + _HEALTHY_SECONDS
        if self._options.health_file is not None:
            self._options.health_file.touch()

    @contextlib.asynccontextmanager
    async def _health(self) -> AsyncIterator[None]:
        if self._options.health_port is None:
            yield
            return
        server = await asyncio.start_server(self._answer_health, port=self._options.health_port)
        async with server:
            yield

    async def _answer_health(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        healthy = asyncio.get_running_loop().time() < self._healthy_until
        status, body = ("200 OK", "ok\n") if healthy else ("503 Service Unavailable", "no database\n")
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
                head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write((head + body).encode())
                await writer.drain()
        writer.close()
