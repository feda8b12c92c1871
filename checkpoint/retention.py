"""What has ended long ago goes: whole threads, the older part of long histories, and documents that nobody uses.

Invariant: a thread goes in one transaction with all that refers to it but its audit, and only while nobody drives it
and nothing of it is open. A history is cut where every checkpoint that stays can be read. Each call is one short
transaction that waits for nobody; what it leaves is found by the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from standfast.checkpoint.artifacts import GRACE, Artifacts
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Connection, Database
from standfast.checkpoint.parts import Parts
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements
from standfast.checkpoint.step_values import TAG, Refers, StepValues

_SQL = statements("retention")
Kept = Literal["in_use", "undelivered", "family"]
"""Why a thread stays: somebody uses it, it has messages to deliver, or a parent or child of it has to stay."""


@dataclass(frozen=True)
class Selection:
    """Which threads are meant: those of a tenant that have not changed since `before`."""

    before: datetime
    tenant: str
    graph: str | None
    states: Sequence[str] | None
    keep: int | None  # checkpoints of each; None: nothing


@dataclass(frozen=True)
class Candidate:
    """A thread that is meant. `state` is that of its latest run."""

    id: str
    graph: str
    state: str
    changed: datetime


@dataclass(frozen=True)
class Oldest:
    """The oldest checkpoint that stays, the DeltaChannels that it has not in full, and the first that there is."""

    checkpoint_id: str
    channels: Sequence[str]
    first: str


@dataclass(frozen=True)
class Full:
    """What DeltaChannels hold at one checkpoint, as snapshots, by channel, read from `first` on."""

    checkpoint_id: str
    values: Mapping[str, Any]
    first: str


_FIRST: Final = Candidate("", "", "", datetime.min.replace(tzinfo=UTC))


class Retention:
    """The rows that are too old to keep."""

    def __init__(self, database: Database, sealer: Sealer, artifacts: Artifacts) -> None:
        self._database = database
        self._sealer = sealer
        self._artifacts = artifacts

    async def count(self, selection: Selection) -> int:
        """How many threads are meant."""
        statement = _SQL["count_ended" if selection.keep is None else "count_long"]
        row = await self._database.fetch_one(statement, vars(selection))
        assert row is not None
        return int(row["threads"])

    async def page(self, selection: Selection, after: Candidate | None, *, most: int) -> list[Candidate]:
        """The threads that are meant, those that have rested longest first."""
        last = after or _FIRST
        params = {**vars(selection), "changed": last.changed, "id": last.id, "most": most}
        rows = await self._database.fetch(_SQL["ended" if selection.keep is None else "long"], params)
        return [Candidate(row["id"], row["graph"], row["state"], row["updated_at"]) for row in rows]

    async def would_keep(self, ids: Sequence[str], selection: Selection) -> list[Kept | None]:
        """Why each of these threads would stay, as far as can be said without a lock; None: it would go."""
        rows = await self._database.fetch(_SQL["would_keep"], {**vars(selection), "ids": list(ids)})
        found = {row["thread"]: row["kept"] for row in rows}
        return [found[one] for one in ids]

    async def delete(self, ids: Sequence[str], selection: Selection) -> list[Kept | None]:
        """Delete those of these threads that may go, in one transaction; why each of the others stays."""
        params = {**vars(selection), "ids": list(ids)}

        async def work(conn: Connection) -> list[Any]:
            rows = await (await conn.execute(_SQL["delete"], params)).fetchall()
            reach("retention.deleting")
            return rows

        found = {row["thread"]: row["kept"] for row in await self._database.run(work)}
        reach("retention.deleted")
        return [cast("Kept | None", found[one]) for one in ids]

    async def oldest_kept(self, thread_id: str, keep: int) -> Oldest | None:
        """The oldest of the newest `keep` checkpoints."""
        row = await self._database.fetch_one(_SQL["oldest_kept"], {"thread": thread_id, "keep": keep})
        return None if row is None else Oldest(row["checkpoint_id"], list(row["since"] or ()), row["first"])

    async def cut(self, thread_id: str, selection: Selection, full: Full | None = None) -> int | None:
        """Keep a thread's newest checkpoints and those that they are read from; how many others were deleted.

        What is `full` needs none before it. None, and nothing done, if the thread is in use.
        """
        refers = Refers()
        parts = Parts(self._artifacts)
        blobs = [] if full is None else await self._sealed(thread_id, full, parts, refers)
        await parts.put()
        riders = [
            *self._artifacts.refer(thread_id, refers.artifacts),
            *self._artifacts.refer(thread_id, refers.parts, as_parts=True),
        ]
        params = {
            **vars(selection),
            "thread": thread_id,
            "first_read": None if full is None else full.first,
            "at": None if full is None else full.checkpoint_id,
            "channels": [channel for channel, _, _ in blobs],
            "tag": TAG,
            "blobs": [blob for _, blob, _ in blobs],
            "parts": [named for _, _, named in blobs],
        }

        done: tuple[str, int] | None = None  # by which transaction, should its commit not be heard of

        async def work(conn: Connection) -> int | None:
            nonlocal done
            if done is not None:
                row = await (await conn.execute(_SQL["committed"], {"transaction": done[0]})).fetchone()
                assert row is not None
                if row["committed"]:
                    return done[1]
            taken = await (await conn.execute(_SQL["take_unused"], params)).fetchone()
            assert taken is not None
            if not taken["taken"]:
                return None
            for statement, values in riders:
                await conn.execute(statement, values)
            row = await (await conn.execute(_SQL["cut"], params)).fetchone()
            reach("retention.cutting")
            assert row is not None
            if row["deleted"] is None:
                return None
            done = row["transaction"], row["deleted"]
            return done[1]

        return await self._database.run(work)

    async def _sealed(
        self, thread_id: str, full: Full, parts: Parts, refers: Refers
    ) -> list[tuple[str, bytes, str | None]]:
        row = await self._database.fetch_one(_SQL["versions"], {"thread": thread_id, "at": full.checkpoint_id})
        versions = {} if row is None else {name: row["versions"][name] for name in full.values}
        blobs = StepValues(self._sealer, parts).blobs(thread_id, "", dict(full.values), versions, refers)
        return [(channel, blob, named) for _, _, channel, _, _, blob, named in blobs]

    async def sweep_documents(self, *, most: int = 100) -> int:
        """Delete documents that no run, schedule or recent reader has in its collection; how many."""
        params = {"seconds": GRACE.total_seconds(), "most": most}
        row = await self._database.fetch_one(_SQL["sweep_documents"], params)
        assert row is not None
        return int(row["documents"])
