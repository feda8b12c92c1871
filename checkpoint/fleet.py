"""The fleet's rows: workers, and the sweep that finds what no bell has told of.

Invariant: recovery looks at leases and due marks only. A worker's row tells people who is there; nothing is decided
by it, and a restarted worker of the same name is a new row.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Database
from standfast.checkpoint.lease import Lease, new_holder, seed_clock, worker_name
from standfast.checkpoint.statements import statements

_SQL = statements("fleet")
_DEAD_SECONDS: Final = 60.0
_FORGET_SECONDS: Final = 86_400.0


@dataclass(frozen=True)
class WorkerRow:
    """A worker as its row tells. `silent_seconds` is how long ago it was last heard of."""

    id: str
    name: str
    graphs: Sequence[str]
    concurrency: int
    started_at: datetime
    seen_at: datetime
    silent_seconds: float


@dataclass(frozen=True)
class Unserved:
    """Due runs of a graph and version that no living worker serves."""

    graph: str
    version: str
    runs: int
    oldest: datetime


@dataclass(frozen=True)
class Incarnation:
    """One worker process. `graphs` are `graph@version`."""

    name: str
    graphs: Sequence[str]
    concurrency: int
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


class Fleet:
    """The rows of workers, and what workers need to find their work."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim_due(self, thread_id: str, *, seconds: float) -> Lease | None:
        """Take the lease of a thread that has something due, or None: nothing is due, or somebody drives it."""
        holder = new_holder()
        params = {"thread": thread_id, "holder": holder, "worker": worker_name(), "seconds": seconds}
        row = await self._database.fetch_one(_SQL["claim_due"], params)
        if row is None:
            return None
        seed_clock(row["head"])
        lease = Lease(thread_id, row["epoch"], holder, seconds, row["head"], row["crashes"], row["cancel_requested"])
        reach("lease.claimed")
        return lease

    async def sweep(self, graphs: Sequence[str], *, most: int = 200) -> list[str]:
        """Ring for overdue threads and for those whose driver has died; returns their ids."""
        return [row["id"] for row in await self._database.fetch(_SQL["sweep"], {"graphs": list(graphs), "most": most})]

    async def register(self, worker: Incarnation) -> None:
        """Make this process known."""
        params = {
            "id": worker.id,
            "name": worker.name,
            "graphs": list(worker.graphs),
            "concurrency": worker.concurrency,
        }
        await self._database.fetch_none(_SQL["register"], params)

    async def seen(self, worker: Incarnation) -> None:
        """This process is alive. Also clears what dead ones have left behind."""
        await self._database.fetch_none(_SQL["seen"], {"id": worker.id})
        await self._database.fetch_none(_SQL["forget_dead"], {"seconds": _FORGET_SECONDS})
        await self._database.fetch_none(_SQL["clear_bells"], {"seconds": _DEAD_SECONDS})

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
