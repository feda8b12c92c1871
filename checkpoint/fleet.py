"""The fleet's rows: workers, and how they find their work.

Invariant: recovery looks at leases and due marks only. A worker's row tells people who is there; nothing is decided
by it, and a restarted worker of the same name is a new row.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import psycopg

from standfast.checkpoint import errors, telemetry
from standfast.checkpoint.database import Database, connect, describe
from standfast.checkpoint.lease import Claimed, Lease, claim_due, claim_next, release
from standfast.checkpoint.statements import statements

_SQL = statements("fleet")
_DEAD_SECONDS: Final = 60.0
_FORGET_SECONDS: Final = 86_400.0
_PATIENCE_SECONDS: Final = 1.0  # with a row that somebody keeps locked, before his transaction is ended


@dataclass(frozen=True)
class WorkerRow:
    """A worker as its row tells. `silent_seconds` is how long ago it was last heard of; it may have died since."""

    id: str
    name: str
    graphs: Sequence[str]
    concurrency: int
    started_at: datetime
    seen_at: datetime
    silent_seconds: float


@dataclass(frozen=True)
class Unserved:
    """Due runs of a graph and version that no living worker serves, and since when the oldest has been due."""

    graph: str
    version: str
    runs: int
    oldest: datetime
    oldest_seconds: float


@dataclass(frozen=True)
class Incarnation:
    """One worker process. `graphs` are `graph@version`."""

    name: str
    graphs: Sequence[str]
    concurrency: int
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True)
class Overdue:
    """A thread that is found by looking alone, and whose code it needs."""

    id: str
    graph: str
    version: str


class Fleet:
    """The rows of workers, and what workers need to find their work."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim_next(self, graphs: Sequence[str], *, most: int, seconds: float, worker: str) -> list[Claimed]:
        """See `standfast.checkpoint.lease.claim_next`."""
        return await claim_next(self._database, graphs, most=most, seconds=seconds, worker=worker)

    async def claim_due(self, thread_id: str, *, seconds: float, worker: str) -> Lease | None:
        """See `standfast.checkpoint.lease.claim_due`."""
        return await claim_due(self._database, thread_id, seconds=seconds, worker=worker)

    async def release(self, lease: Lease) -> None:
        """See `standfast.checkpoint.lease.release`."""
        await release(self._database, lease)

    async def overdue(self, graphs: Sequence[str], *, most: int, patience: float = _PATIENCE_SECONDS) -> list[Overdue]:
        """Threads whose driver has died, and those due for `patience` seconds that no `claim_next` could take."""
        params = {"graphs": list(graphs), "patience": patience, "most": most}
        return [Overdue(**row) for row in await self._database.fetch(_SQL["overdue"], params)]

    async def register(self, worker: Incarnation) -> None:
        """Make this process known, or known to be alive still."""
        params = {
            "id": worker.id,
            "name": worker.name,
            "graphs": list(worker.graphs),
            "concurrency": worker.concurrency,
        }
        await self._database.fetch_none(_SQL["register"], params)

    async def forget_dead(self) -> None:
        """Clear the rows that dead processes have left behind."""
        await self._database.fetch_none(_SQL["forget_dead"], {"seconds": _FORGET_SECONDS})

    async def measure(self) -> None:
        """Tell the program's metrics, if it has set up any, what waits in the database."""
        if telemetry.measured():
            row = await self._database.fetch_one(_SQL["backlog"])
            assert row is not None
            telemetry.backlog(**row)

    async def leave(self, worker: Incarnation) -> None:
        """This process goes."""
        await self._database.fetch_none(_SQL["leave"], {"id": worker.id})

    async def workers(self) -> list[WorkerRow]:
        """All workers that are known, oldest first."""
        return [WorkerRow(**row) for row in await self._database.fetch(_SQL["workers"])]

    async def unserved(self) -> list[Unserved]:
        """Due runs that nobody comes for, by graph and version."""
        rows = await self._database.fetch(_SQL["unserved"], {"seconds": _DEAD_SECONDS})
        return [Unserved(**row) for row in rows]

    async def serves(self, graph: str, version: str) -> bool:
        """Whether a worker that has been heard of lately serves this graph and version."""
        params = {"graph": f"{graph}@{version}", "seconds": _DEAD_SECONDS}
        row = await self._database.fetch_one(_SQL["served"], params)
        assert row is not None
        return bool(row["served"])

    async def trouble(self) -> str | None:
        """Why statements of ours do not come back: the database is away, or somebody holds a lock. For people."""
        try:
            async with await connect(self._database.conninfo) as conn:
                program = conn.info.get_parameters().get("application_name", "")
                cursor = await conn.execute(_SQL["blockers"], {"program": program})
                rows = await cursor.fetchall()
        except (errors.StandfastError, psycopg.Error) as error:
            return str(error)
        if not rows:
            return None
        held = [f"backend {row['pid']} ({row['program']}, {row['state']} for {row['seconds']:.0f} s)" for row in rows]
        return (
            f"the database {describe(self._database.conninfo)} answers, but a lock of {' and '.join(held)} is in the "
            "way; end that transaction, or its backend with pg_terminate_backend"
        )
