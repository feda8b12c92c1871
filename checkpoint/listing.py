"""Lists for operators: threads, runs and open waits by their small columns.

Invariant: no sealed value and no checkpoint is read, so a list costs the same however long its threads are, and
one thread whose values cannot be read hides no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from standfast.checkpoint.database import Database
from standfast.checkpoint.statements import statements
from standfast.checkpoint.threads import Status, Thread
from standfast.checkpoint.waits import Kind

_SQL = statements("listing")


@dataclass(frozen=True)
class RunRow:
    """One run. `status` is the run's own: `running` while its thread is driven for it."""

    thread_id: str
    id: str
    number: int
    graph: str
    version: str
    status: Status
    reason: str | None
    requested_by: str
    model: str | None
    client_key: str | None
    accepted_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True)
class OpenWait:
    """One thing that a thread waits for. `name` is an event's; `until` is when its time is over, if ever."""

    thread_id: str
    id: str
    run_id: str
    graph: str
    version: str
    kind: Kind
    node: str
    name: str | None
    approval_id: str | None
    opened_at: datetime
    until: datetime | None


class Listing:
    """The lists. Each is of one tenant, at most `limit` rows; a filter that is None lets everything through."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def threads(
        self,
        *,
        state: Status | None = None,
        graph: str | None = None,
        before: datetime | None = None,
        limit: int = 50,
        tenant: str = "default",
    ) -> Sequence[Thread]:
        """The threads that changed last, newest first, in pages: pass the last `updated_at` as `before`."""
        params = {"state": state, "graph": graph, "before": before, "limit": limit, "tenant": tenant}
        rows = await self._database.fetch(_SQL["threads"], params)
        return [Thread(**{**row, "status": Status(row["status"])}) for row in rows]

    async def runs(
        self,
        *,
        state: Status | None = None,
        graph: str | None = None,
        thread_id: str | None = None,
        limit: int = 50,
        tenant: str = "default",
    ) -> Sequence[RunRow]:
        """The runs that were accepted last, newest first."""
        params = {"state": state, "graph": graph, "thread": thread_id, "limit": limit, "tenant": tenant}
        rows = await self._database.fetch(_SQL["runs"], params)
        return [RunRow(**{**row, "status": Status(row["status"])}) for row in rows]

    async def waits(
        self,
        *,
        kind: Kind | None = None,
        graph: str | None = None,
        thread_id: str | None = None,
        limit: int = 50,
        tenant: str = "default",
    ) -> Sequence[OpenWait]:
        """The open waits, the longest first."""
        params = {"kind": kind, "graph": graph, "thread": thread_id, "limit": limit, "tenant": tenant}
        return [OpenWait(**row) for row in await self._database.fetch(_SQL["waits"], params)]
