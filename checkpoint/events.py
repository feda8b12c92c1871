"""Events that threads wait for: emitted once per sender's id, kept for waits that come later.

Invariant: an event and the waits that it ends are one transaction; an emitter and a thread that begins to wait
exclude each other by name, so that an event is never missed between looking and waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from standfast.checkpoint import errors
from standfast.checkpoint.database import Database
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements

_SQL = statements("events")
DEFAULT_TTL: Final = timedelta(days=7)
LONGEST_TTL: Final = timedelta(days=36_500)


@dataclass(frozen=True)
class Event:
    """One event as a wait receives it."""

    id: str
    name: str
    payload: Any
    emitted_by: str
    emitted_at: datetime


@dataclass(frozen=True)
class NewEvent:
    """An event to be emitted. `id` is the sender's, `match` and `digest` are digests of its match and payload."""

    id: str
    name: str
    match: str | None
    digest: str
    payload: Any
    emitted_by: str
    ttl: timedelta = DEFAULT_TTL
    tenant: str = "default"


class Events:
    """The rows of events."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def emit(self, new: NewEvent) -> int | None:
        """Commit an event and end the waits that it matches; how many, or None if it was emitted before.

        Raises `EventConflict` if the id was used for another event.
        """
        params = {
            "tenant": new.tenant,
            "id": new.id,
            "name": new.name,
            "match": new.match,
            "digest": new.digest,
            "payload": self._sealer.seal(new.payload, at=("events", new.tenant, new.id), where="payload"),
            "who": new.emitted_by,
            "ttl": new.ttl.total_seconds(),
        }
        row = await self._database.fetch_one(_SQL["emit"], params)
        assert row is not None
        if row["verdict"] == "other_payload":
            raise errors.EventConflict(
                f"event id {new.id!r} was emitted before with another name or payload; nothing was changed. "
                "Give each event its own id",
                event_id=new.id,
            )
        return int(row["woken"]) if row["verdict"] == "emitted" else None

    async def by_seq(self, seqs: list[int]) -> dict[int, Event]:
        """Events by their number."""
        rows = await self._database.fetch(_SQL["by_seq"], {"seqs": seqs})
        return {
            row["seq"]: Event(
                id=row["id"],
                name=row["name"],
                payload=self._sealer.unseal(row["payload"], at=("events", row["tenant"], row["id"]), where="payload"),
                emitted_by=row["emitted_by"],
                emitted_at=row["emitted_at"],
            )
            for row in rows
        }

    async def drop_expired(self, *, most: int = 1000) -> None:
        """Delete events whose time is over and that no unfinished run has received."""
        await self._database.fetch_none(_SQL["drop_expired"], {"most": most})
