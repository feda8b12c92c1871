"""The events of a run as rows: gap-free numbers, stored before they are shown.

Invariant: only the holder of the thread's lease appends, and it gives the numbers; an append rides in the
transaction of a checkpoint or of the run's end, or goes fenced on its own. So a reader can go on from any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from standfast.checkpoint.database import Database
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements

_SQL = statements("events")


@dataclass(frozen=True)
class RunEvent:
    """One thing that happened in a run. `path` is the way to its node, by names; `epoch` whose attempt it was."""

    seq: int
    epoch: int
    kind: str
    path: tuple[str, ...]
    data: Any
    at: datetime | None  # None when it is shown in the process that has just stored it

    @property
    def node(self) -> str:
        """The innermost node, '' for the run itself."""
        return self.path[-1] if self.path else ""

    @property
    def task(self) -> str:
        """What joins the begin and the end of one step, of which several of one name may be under way."""
        return str(self.data["task"]) if isinstance(self.data, dict) and "task" in self.data else ""


class RunEvents:
    """The rows of run_events."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    def seal(self, thread_id: str, run_id: str, event: RunEvent) -> bytes | None:
        """The event's data as it is stored. Raises `UnstorableValue`."""
        if event.data is None:
            return None
        return self._sealer.seal(event.data, at=("run_events", thread_id, run_id, str(event.seq)), where="event")

    def append(
        self, thread_id: str, run_id: str, epoch: int, events: Sequence[tuple[RunEvent, bytes | None]]
    ) -> tuple[bytes, tuple[Any, ...]]:
        """The statement that appends events with their sealed data, to be sent in a fenced transaction."""
        columns = (
            [one.seq for one, _ in events],
            [one.kind for one, _ in events],
            ["|".join(one.path) for one, _ in events],
            [data for _, data in events],
        )
        return _SQL["append"], (thread_id, run_id, epoch, *columns)

    async def last(self, thread_id: str, run_id: str) -> int:
        """The newest event's number, 0 for none."""
        row = await self._database.fetch_one(_SQL["last"], {"thread": thread_id, "run": run_id})
        assert row is not None
        return int(row["seq"])

    async def read(self, thread_id: str, run_id: str, *, after: int, limit: int = 500) -> list[RunEvent]:
        """Events with numbers greater than `after`, in order."""
        params = {"thread": thread_id, "run": run_id, "after": after, "limit": limit}
        return [
            RunEvent(
                seq=row["seq"],
                epoch=row["epoch"],
                kind=row["kind"],
                path=tuple(row["path"].split("|")) if row["path"] else (),
                data=None
                if row["data"] is None
                else self._sealer.unseal(
                    row["data"], at=("run_events", thread_id, run_id, str(row["seq"])), where="event"
                ),
                at=row["at"],
            )
            for row in await self._database.fetch(_SQL["read"], params)
        ]

    async def follow(self, thread_ids: Sequence[str], *, seconds: float) -> None:
        """Ask to be told of changes of these threads for a while."""
        await self._database.fetch_none(_SQL["follow"], {"threads": list(thread_ids), "seconds": seconds})
