"""Forks as rows, and the history that they start from: checkpoints without their values.

Invariant: a fork is made in one transaction, under a lease of its own, and reads its source only. It takes along what
the source has done, and no grant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from standfast.checkpoint import errors
from standfast.checkpoint.budget import Budget
from standfast.checkpoint.database import Database
from standfast.checkpoint.lease import Lease, claimed, new_holder, worker_name
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements
from standfast.checkpoint.threads import sealed_budget

_SQL = statements("forks")
_ID: Final = re.compile(r"[0-9a-f-]{4,36}")


@dataclass(frozen=True)
class Fork:
    """Where a thread was forked from. `effects`: whether it may have new ones."""

    run_id: str
    source_thread_id: str
    source_run_id: str
    checkpoint_id: str
    lineage: Sequence[Sequence[str]]  # the thread and run of every source, the first one's first
    effects: bool
    forked_by: str
    vouched: bool
    forked_at: datetime


@dataclass(frozen=True)
class Inherited:
    """What the source has done at one place of the run."""

    id: str
    digest: str


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint of the root graph: its small values, those that say what comes next, and the versions of all."""

    id: str
    parent_id: str | None
    at: datetime
    metadata: Mapping[str, Any]
    small: Mapping[str, Any]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class NewFork:
    """A fork to be made. `altered`: values are to be written; until it is opened then, nobody drives it.

    Without a deadline or a budget it has those of the source's run: as much time from now on, as much to spend.
    """

    source: str
    at: str
    target: str
    run_id: str
    effects: bool
    altered: bool
    by: str
    vouched: bool
    tenant: str
    deadline: datetime | None = None
    budget: Budget | None = None


Place = tuple[str, str, int, int]  # kind, namespace, turn, index


class Forks:
    """The rows of forks, and of checkpoints as far as history needs them."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def make(self, new: NewFork, *, lease_seconds: float) -> Lease:
        """Make the fork and hold its lease. Raises `UnknownThread`, `UnknownCheckpoint`, `InvalidRequest`."""
        holder = new_holder()
        params = {
            "source": new.source,
            "at": new.at,
            "target": new.target,
            "run": new.run_id,
            "effects": new.effects,
            "altered": new.altered,
            "by": new.by,
            "vouched": new.vouched,
            "tenant": new.tenant,
            "deadline": new.deadline,
            "budget": sealed_budget(self._sealer, new.target, new.run_id, new.budget),
            "holder": holder,
            "worker": worker_name(),
            "seconds": lease_seconds,
        }
        row = await self._database.fetch_one(_SQL["fork"], params)
        if row is None:  # sent again, and somebody drives it already
            raise errors.LeaseHeld(f"thread {new.target!r} is driven by another process", thread_id=new.target)
        if row["verdict"] == "unknown":
            raise errors.UnknownThread(f"there is no thread {new.source!r}; nothing was made", thread_id=new.source)
        if row["verdict"] == "no_checkpoint":
            raise _unknown(new.source, new.at)
        if row["verdict"] == "taken":
            raise errors.InvalidRequest(
                f"there is a thread {new.target!r} already; a fork is a new thread: choose another id",
                thread_id=new.target,
            )
        return claimed(new.target, holder, lease_seconds, row["epoch"], row["head"])

    async def open(self, lease: Lease) -> None:
        """The values of an altered fork are written: it can be driven from now on."""
        await self._database.fetch_none(_SQL["open"], {"thread": lease.thread_id, "epoch": lease.epoch})

    async def undo(self, lease: Lease) -> None:
        """Take a fork away again, under its lease; its checkpoints are its saver's to delete."""
        await self._database.fetch_none(_SQL["undo"], {"thread": lease.thread_id, "epoch": lease.epoch})

    async def of(self, thread_id: str) -> Fork | None:
        """Where the thread was forked from, if it was."""
        row = await self._database.fetch_one(_SQL["get"], {"thread": thread_id})
        return None if row is None else Fork(**row)

    async def inherited(self, thread_id: str, run_id: str) -> dict[Place, Inherited]:
        """What a fork's run found done, by place."""
        rows = await self._database.fetch(_SQL["inherited"], {"thread": thread_id, "run": run_id})
        return {
            (row["kind"], row["namespace"], row["turn"], row["index"]): Inherited(row["id"], row["digest"])
            for row in rows
        }

    async def holds(self, thread_id: str, operation_id: str) -> bool:
        """Whether a fork found this operation done."""
        return await self._database.fetch_one(_SQL["holds"], {"thread": thread_id, "id": operation_id}) is not None

    async def history(self, thread_id: str, *, before: str | None, limit: int | None) -> Sequence[CheckpointRow]:
        """The root graph's checkpoints, newest first."""
        params = {"thread": thread_id, "before": before, "limit": limit}
        found = []
        for row in await self._database.fetch(_SQL["history"], params):
            where = f"thread {thread_id!r}, state"
            small: dict[str, Any] = {}
            if row["sealed"] is not None:
                at = ("checkpoints", thread_id, "", row["checkpoint_id"], "sealed")
                small.update(self._sealer.unseal(row["sealed"], at=at, where=where))
            for channel, blob in row["due"] or ():
                name = channel.decode()
                at = ("checkpoint_blobs", thread_id, "", name, str(row["versions"][name]))
                small[name] = self._sealer.unseal(blob, at=at, where=where)
            found.append(
                CheckpointRow(
                    id=row["checkpoint_id"],
                    parent_id=row["parent_checkpoint_id"],
                    at=datetime.fromisoformat(row["at"]),
                    metadata=row["metadata"],
                    small=small,
                    versions=row["versions"],
                )
            )
        return found

    async def checkpoint(self, thread_id: str, given: str | None) -> str:
        """The id of the checkpoint that `given` begins; without it the newest. Raises `UnknownCheckpoint`."""
        if given is not None and not _ID.fullmatch(given):
            raise _unknown(thread_id, given)
        rows = await self._database.fetch(_SQL["matching"], {"thread": thread_id, "prefix": given or ""})
        if not rows:
            raise _unknown(thread_id, given)
        if given is not None and len(rows) > 1 and rows[0]["checkpoint_id"] != given:
            raise errors.UnknownCheckpoint(
                f"thread {thread_id!r} has several checkpoints that begin with {given!r}; give more of the id",
                thread_id=thread_id,
                checkpoint_id=given,
            )
        return str(rows[0]["checkpoint_id"])


def _unknown(thread_id: str, given: str | None) -> errors.UnknownCheckpoint:
    what = "checkpoint yet" if given is None else f"checkpoint {given!r}"
    return errors.UnknownCheckpoint(
        f"thread {thread_id!r} has no {what}; see: standfast history {thread_id}",
        thread_id=thread_id,
        checkpoint_id=given,
    )
