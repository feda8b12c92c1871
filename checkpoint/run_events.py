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

    def snapshot(self, data: Any) -> Any:
        """A copy of what somebody has told, as it would be read back. Raises `UnstorableValue`."""
        codec = self._sealer.codec
        return codec.decode(codec.encode(data, where="event"))

    def append(
        self, thread_id: str, run_id: str, epoch: int, events: Sequence[RunEvent]
    ) -> tuple[bytes, tuple[Any, ...]]:
        """The statement that appends consecutive events, to be sent in a fenced transaction."""
        first, last = events[0].seq, events[-1].seq
        told = [[one.kind, list(one.path), one.data] for one in events]
        at = ("run_events", thread_id, run_id, str(last))
        # An event tells of what the run does: its checkpoint refers to what it holds.
        sealed = self._sealer.seal(told, at=at, where="events", artifacts={})
        return _SQL["append"], (thread_id, run_id, epoch, first, last, sealed)

    async def last(self, thread_id: str, run_id: str) -> int:
        """The newest event's number, 0 for none."""
        row = await self._database.fetch_one(_SQL["last"], {"thread": thread_id, "run": run_id})
        assert row is not None
        return int(row["seq"])

    async def read(self, thread_id: str, run_id: str, *, after: int, limit: int = 200) -> list[RunEvent]:
        """Events with numbers greater than `after`, in order; those of at most `limit` commits."""
        events, _ = await self.page(thread_id, run_id, after=after, limit=limit)
        return events

    async def page(self, thread_id: str, run_id: str, *, after: int, limit: int = 200) -> tuple[list[RunEvent], bool]:
        """What `read` returns, and whether there may be more already."""
        params = {"thread": thread_id, "run": run_id, "after": after, "limit": limit}
        events: list[RunEvent] = []
        rows = await self._database.fetch(_SQL["read"], params)
        for row in rows:
            at = ("run_events", thread_id, run_id, str(row["last"]))
            told = self._sealer.unseal(row["events"], at=at, where="events")
            for seq, (kind, path, data) in enumerate(told, row["first"]):
                if seq > after:  # a commit whose answer was lost may have been repeated as part of a longer one
                    events.append(RunEvent(seq, row["epoch"], kind, tuple(path), data, row["at"]))
                    after = seq
        return events, len(rows) == limit

    async def follow(self, thread_ids: Sequence[str], *, read: Sequence[str], seconds: float) -> None:
        """Ask to be told for a while when these threads come to rest, and of each event of those that are `read`."""
        params = {"threads": list(thread_ids), "read": list(read), "seconds": seconds}
        await self._database.fetch_none(_SQL["follow"], params)
