"""A worker: one process of the fleet. It answers the doorbell, sweeps for what no bell has told of, and drives.

Invariants: any number of workers on any machines may serve the same graphs; who drives is decided by leases alone.
A worker that is told to stop takes nothing new, lets the steps under way finish, gives its leases up, and is gone
within its grace period; a worker that is killed is found by the sweep of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standfast.checkpoint import errors
from standfast.checkpoint.doorbell import Doorbell
from standfast.checkpoint.fleet import Fleet, Incarnation
from standfast.checkpoint.lease import worker_name
from standfast.graph.logs import about
from standfast.graph.runtime import AsyncRuntime

SWEEP_SECONDS: Final = 0.5
_SEEN_EVERY: Final = 10  # sweeps between two signs of life
_LOG = logging.getLogger("standfast.worker")


@dataclass(frozen=True)
class WorkerOptions:
    """`concurrency`: drives at a time. `grace`: seconds for the steps under way at a stop.

    `health_file` is touched, and `health_port` answers 200, as long as the worker can reach its database.
    """

    concurrency: int = 10
    grace: float = 30.0
    name: str | None = None
    health_file: Path | None = None
    health_port: int | None = None


class Worker:
    """Serves the graphs of some open runtimes that share one database."""

    def __init__(self, runtimes: Sequence[AsyncRuntime], options: WorkerOptions | None = None) -> None:
        self._options = options or WorkerOptions()
        self._runtimes = {f"{one.name}@{one.version}": one for one in runtimes}
        if len(self._runtimes) != len(runtimes):
            raise errors.InvalidRequest("two graphs have one name and version; give one another version")
        self._database = runtimes[0].store.database
        self._threads = runtimes[0].store.threads
        self._fleet = Fleet(self._database)
        self._me = Incarnation(self._options.name or worker_name(), tuple(self._runtimes), self._options.concurrency)
        self._drives: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._healthy_until = 0.0

    def stop(self) -> None:
        """Begin to stop: take nothing new, drain what is under way."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until `stop`. A database that is away is waited for."""
        await self._fleet.register(self._me)
        _LOG.info("worker %s serves %s", self._me.name, ", ".join(self._me.graphs))
        bell = asyncio.create_task(self._answer_bells())
        sweep = asyncio.create_task(self._sweep())
        try:
            async with self._health():
                await self._stopping.wait()
        finally:
            for task in (bell, sweep):
                task.cancel()
            await asyncio.wait([bell, sweep])
            await self._drain()
            with contextlib.suppress(errors.StandfastError):
                await self._fleet.leave(self._me)
            _LOG.info("worker %s is gone", self._me.name)

    async def _answer_bells(self) -> None:
        while True:
            doorbell = Doorbell(
                self._database.conninfo, self._me.graphs, self._on_ring, concurrency=self._options.concurrency
            )
            try:
                await doorbell.listen()
            except errors.StorageUnavailable as error:
                _LOG.warning("%s; trying again", error)
                await asyncio.sleep(SWEEP_SECONDS)

    async def _on_ring(self, thread_id: str) -> None:
        """Drive in a task of our own: a doorbell that goes down must not take drives along."""
        if self._stopping.is_set():
            return
        drive = asyncio.create_task(self._drive(thread_id))
        self._drives.add(drive)
        drive.add_done_callback(self._drives.discard)
        await asyncio.wait([drive])

    async def _drive(self, thread_id: str) -> None:
        about.set({"thread_id": thread_id})
        try:
            thread = await self._threads.get(thread_id)
            runtime = self._runtimes.get(f"{thread.graph}@{thread.version}")
            if runtime is None:
                return
            about.set({"thread_id": thread_id, "run_id": thread.run_id or ""})
            lease = await self._fleet.claim_due(thread_id, seconds=runtime.lease_seconds)
            if lease is None:
                return
            try:
                result = await runtime.adrive(lease)
            except (errors.LeaseLost, errors.StorageUnavailable):
                raise
            except errors.StandfastError as error:
                # Whatever this code cannot continue would come back at once: it is put before a person.
                await runtime.aput_aside(thread_id, f"{type(error).__name__}: {error}")
                _LOG.error("put aside: %s", error)
            else:
                _LOG.info("%s", result.status)
        except errors.StandfastError as error:
            _LOG.warning("%s: %s", type(error).__name__, error)
        except Exception:  # noqa: BLE001 - the worker outlives whatever a drive raises
            _LOG.exception("a drive failed")

    async def _sweep(self) -> None:
        count = 0
        while True:
            try:
                await self._fleet.sweep(self._me.graphs)
                if count % _SEEN_EVERY == 0:
                    await self._fleet.register(self._me)
                    await self._fleet.seen(self._me)
                count += 1
                self._sign_of_health()
            except errors.StandfastError as error:
                _LOG.warning("cannot sweep: %s", error)
            except Exception:  # noqa: BLE001 - the sweep goes on, it is what recovers everything else
                _LOG.exception("the sweep failed")
            await asyncio.sleep(SWEEP_SECONDS)

    async def _drain(self) -> None:
        """Let the steps under way finish; what has not within the grace period is cancelled, and goes on elsewhere."""
        for runtime in self._runtimes.values():
            runtime.drain()
        if self._drives:
            _LOG.info("finishing %d steps", len(self._drives))
            _, late = await asyncio.wait(self._drives, timeout=self._options.grace)
            for drive in late:
                drive.cancel()
            if late:
                await asyncio.wait(late)

    # -- health

    def _sign_of_health(self) -> None:
        self._healthy_until = asyncio.get_running_loop().time() + 10 * SWEEP_SECONDS
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
