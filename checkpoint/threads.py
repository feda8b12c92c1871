"""Threads and runs as rows: accepting a run, looking at what is due, ending it.

Invariant: what a person or a caller commits (a run, a cancellation) sets the thread's due mark in
the same transaction and takes no lease; what a driver commits checks its lease in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal
from uuid import UUID

from psycopg.rows import DictRow

from standfast.checkpoint import errors
from standfast.checkpoint.artifact import Seen
from standfast.checkpoint.artifacts import Artifacts
from standfast.checkpoint.budget import Budget
from standfast.checkpoint.database import Connection, Database, Rider
from standfast.checkpoint.lease import Lease, claimed, new_holder, worker_name
from standfast.checkpoint.outbox import Outbox
from standfast.checkpoint.plain_text import storable_text
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.shown import Shown
from standfast.checkpoint.statements import statements

_SQL = statements("threads")

OnBusy = Literal["refuse", "queue", "withdraw", "interrupt"]
Reopened = Literal["reopened", "deadline", "budget", "nothing"]
"""What became of a retry: `deadline` and `budget` say that the run ended there and needs more of it."""


class Status(StrEnum):
    """What a thread's latest run is doing."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NEEDS_ATTENTION = "needs_attention"


@dataclass(frozen=True, repr=False)
class Thread(Shown):
    """One thread, as its small columns tell; its state is not read. `due`: something is to be done, nobody drives."""

    id: str
    uuid: str
    tenant: str
    graph: str
    version: str
    fingerprint: str
    run_id: str | None
    status: Status
    reason: str | None
    worker: str | None
    due: bool
    crashes: int
    created_at: datetime
    updated_at: datetime

    @property
    def thread_id(self) -> str:
        """Its id, by the name that it has wherever something belongs to a thread."""
        return self.id

    def __repr__(self) -> str:
        why = f", {self.reason}" if self.reason else ""
        by = f", driven by {self.worker}" if self.worker else ""
        return f"<Thread {self.id!r} {self.status.upper()}{why}, graph {self.graph!r} version {self.version}{by}>"


@dataclass(frozen=True)
class Settings:
    """What is fixed with a run at its acceptance, so that any process goes on the same. Paths are absolute."""

    context: Any = None
    reports_dir: str | None = None
    reports_url: str | None = None
    traceparent: str | None = None  # the place of its drives in a trace


@dataclass(frozen=True)
class NewRun:
    """A request to be accepted."""

    thread_id: str
    run_id: str
    graph: str
    version: str
    fingerprint: str
    input: Any
    requested_by: str
    vouched: bool
    verified_by: str | None = None
    model: str | None = None
    collection_id: str | None = None
    settings: Settings = field(default_factory=Settings)
    tenant: str = "default"
    client_key: str | None = None
    input_digest: str | None = None
    on_busy: OnBusy = "refuse"
    deadline: datetime | None = None
    budget: Budget | None = None
    priority: int = 0


@dataclass(frozen=True)
class Run:
    """One run, with its sealed values opened."""

    thread_id: str
    id: str
    number: int
    state: str
    reason: str | None
    requested_by: str
    vouched: bool
    model: str | None
    collection_id: str | None
    input: Any
    settings: Settings
    outcome: Any
    accepted_at: datetime
    ended_at: datetime | None
    deadline: datetime | None = None
    budget: Budget | None = None
    parent_thread_id: str | None = None  # of a child: whose run it works for


@dataclass(frozen=True)
class Cancellation:
    """Which run is to be cancelled. `asked_at` is when somebody had asked for it before, if anybody had."""

    run_id: str
    asked_at: datetime | None


class Threads:
    """The rows of threads and runs."""

    def __init__(self, database: Database, sealer: Sealer, outbox: Outbox, artifacts: Artifacts) -> None:
        self._database = database
        self._sealer = sealer
        self._outbox = outbox
        self._artifacts = artifacts

    async def accept(self, new: NewRun, *, lease_seconds: float | None = None) -> tuple[Run, Lease | None]:
        """Commit thread, run and due mark; with `lease_seconds` take the lease in the same transaction.

        The lease is None if none was asked for, if another process has it already, or if the run is queued. The
        same run id sent again changes nothing; a client key that was used before for the same request gives the
        run of then. Raises `ThreadBusy`, `ClientKeyConflict`, `OtherTenant`, and `InvalidRequest` for a thread of
        another graph.
        """
        holder = new_holder() if lease_seconds is not None else None
        at = ("runs", new.thread_id, new.run_id)
        seen: Seen = {}
        params = {
            "thread": new.thread_id,
            "tenant": new.tenant,
            "owner": new.requested_by,
            "graph": new.graph,
            "version": new.version,
            "fingerprint": new.fingerprint,
            "run": new.run_id,
            "requested_by": new.requested_by,
            "vouched": new.vouched,
            "verified_by": new.verified_by,
            "model": new.model,
            "collection": new.collection_id,
            "input": self._sealer.seal(new.input, at=(*at, "input"), where="input", artifacts=seen),
            "settings": self._sealer.seal(settings_dict(new.settings), at=(*at, "settings"), where="settings"),
            "deadline": new.deadline,
            "budget": self._sealed_budget(new.thread_id, new.run_id, new.budget),
            "priority": new.priority,
            "client_key": new.client_key,
            "input_digest": new.input_digest,
            "on_busy": new.on_busy,
            "holder": holder,
            "worker": worker_name(),
            "seconds": lease_seconds,
        }
        referring = self._artifacts.refer(new.thread_id, seen)

        async def accept_and_refer(conn: Connection) -> DictRow | None:
            found = await (await conn.execute(_SQL["accept"], params)).fetchone()
            if found is not None and found["verdict"] in ("accepted", "queued"):
                for statement, values in referring:
                    await conn.execute(statement, values)
            return found

        if referring:
            row = await self._database.run(accept_and_refer)
        else:
            row = await self._database.fetch_one(_SQL["accept"], params)
        assert row is not None
        _refuse(new, row)
        if row["verdict"] == "same":
            return await self.run(row["open_thread"], str(row["open_run"])), None
        run = Run(
            thread_id=new.thread_id,
            id=new.run_id,
            number=row["run_number"],
            state=row["open_state"],
            reason=None,
            requested_by=new.requested_by,
            vouched=new.vouched,
            model=new.model,
            collection_id=new.collection_id,
            input=new.input,
            settings=new.settings,
            outcome=None,
            accepted_at=row["accepted_at"],
            ended_at=None,
            deadline=new.deadline,
            budget=new.budget,
        )
        if holder is None or row["epoch"] is None:
            return run, None
        assert lease_seconds is not None
        return run, claimed(new.thread_id, holder, lease_seconds, row["epoch"], row["head"])

    async def retry(
        self, thread_id: str, *, deadline: datetime | None = None, budget: Budget | None = None
    ) -> Reopened:
        """Make the thread's run due again, because somebody said so, with another deadline or budget if given."""
        run_id = (await self.get(thread_id)).run_id
        sealed = self._sealed_budget(thread_id, str(run_id), budget)
        row = await self._database.fetch_one(
            _SQL["retry"], {"thread": thread_id, "deadline": deadline, "budget": sealed}
        )
        assert row is not None
        verdict: Reopened = row["verdict"]
        return verdict

    async def take_due(self, lease: Lease) -> bool:
        """Mark what is due as seen; True if cancellation was asked for."""
        row = await self._database.fetch_one(_SQL["take_due"], {"thread": lease.thread_id, "epoch": lease.epoch})
        assert row is not None
        return bool(row["cancelling"])

    async def end(
        self,
        lease: Lease,
        run_id: str | None,
        state: str,
        *,
        reason: str | None = None,
        outcome: Any = None,
        limit: Literal["deadline", "budget"] | None = None,
        riders: Sequence[Rider] = (),
    ) -> None:
        """End the run, withdraw what it still asks, give the lease up; the next queued run becomes due.

        The message that tells of it is one with it.
        """
        sealed = None
        if outcome is not None:
            # What the state holds, its checkpoint refers to.
            sealed = self._sealer.seal(outcome, at=("runs", lease.thread_id, str(run_id), "outcome"), artifacts={})
        params = {
            "thread": lease.thread_id,
            "epoch": lease.epoch,
            "run": run_id,
            "state": state,
            "reason": storable_text(reason),
            "outcome": sealed,
            "limit": limit,
        }
        told = None if run_id is None else self._outbox.run_end(lease.thread_id, run_id, lease.epoch, reason)
        await self._database.commit([*riders, (_SQL["end"], params), *([] if told is None else [told])])

    async def get(self, thread_id: str) -> Thread:
        """One thread. Raises `UnknownThread`."""
        row = await self._database.fetch_one(_SQL["get"], {"thread": thread_id})
        if row is None:
            raise errors.UnknownThread(f"there is no thread {thread_id!r}; see: standfast threads", thread_id=thread_id)
        return _thread(row)

    async def named(self, uuid: str) -> str:
        """The id of the thread that has this UUID; the UUID itself if there is none yet. Raises `InvalidThreadId`."""
        try:
            value = UUID(uuid)
        except ValueError as error:
            raise errors.InvalidThreadId(f"{uuid!r} is no UUID") from error
        row = await self._database.fetch_one(_SQL["by_uuid"], {"uuid": value})
        return str(value) if row is None else str(row["id"])

    async def run(self, thread_id: str, run_id: str) -> Run:
        """One run of a thread."""
        row = await self._database.fetch_one(_SQL["run"], {"thread": thread_id, "run": run_id})
        if row is None:
            raise errors.UnknownThread(f"thread {thread_id!r} has no run {run_id!r}", thread_id=thread_id)
        return self._run(thread_id, row)

    async def latest(self, thread_id: str) -> tuple[Run, int]:
        """The thread's latest run, and the number of its newest event. Raises `UnknownThread` for one without runs."""
        row = await self._database.fetch_one(_SQL["latest"], {"thread": thread_id})
        if row is None:
            raise errors.UnknownThread(f"thread {thread_id!r} has no run", thread_id=thread_id)
        return self._run(thread_id, row), row["last_event"]

    async def runs(self, thread_id: str) -> Sequence[Run]:
        """All runs of a thread, oldest first."""
        return [self._run(thread_id, row) for row in await self._database.fetch(_SQL["runs"], {"thread": thread_id})]

    async def standing(self, thread_id: str, run_id: str) -> tuple[str | None, str | None]:
        """The stored state of one run and the reason for it, without its values; None if there is no such run."""
        row = await self._database.fetch_one(_SQL["standing"], {"thread": thread_id, "run": run_id})
        return (None, None) if row is None else (row["state"], row["reason"])

    async def request_cancel(self, thread_id: str) -> Cancellation | None:
        """Ask for the unfinished run's cancellation; None if there is none to cancel."""
        row = await self._database.fetch_one(_SQL["cancel"], {"thread": thread_id})
        return None if row is None else Cancellation(row["run_id"], row["asked_at"])

    def _run(self, thread_id: str, row: DictRow) -> Run:
        at = ("runs", thread_id, row["id"])
        outcome, budget = row["outcome"], row["budget"]
        return Run(
            thread_id=thread_id,
            id=row["id"],
            number=row["number"],
            state=row["state"],
            reason=row["reason"],
            requested_by=row["requested_by"],
            vouched=row["vouched"],
            model=row["model"],
            collection_id=row["collection_id"],
            input=self._sealer.unseal(row["input"], at=(*at, "input")),
            settings=Settings(**self._sealer.unseal(row["settings"], at=(*at, "settings"))),
            outcome=None if outcome is None else self._sealer.unseal(outcome, at=(*at, "outcome")),
            accepted_at=row["accepted_at"],
            ended_at=row["ended_at"],
            deadline=row["deadline"],
            parent_thread_id=row["parent_thread_id"],
            budget=None if budget is None else Budget.of_stored(self._sealer.unseal(budget, at=(*at, "budget"))),
        )

    def _sealed_budget(self, thread_id: str, run_id: str, budget: Budget | None) -> bytes | None:
        return sealed_budget(self._sealer, thread_id, run_id, budget)


def _refuse(new: NewRun, row: DictRow) -> None:
    if row["verdict"] == "full":
        raise errors.QueueFull(
            f"{row['run_number']} runs of {row['known_graph']!r} wait for a worker already, and no more may; "
            "nothing was started. Try again later, start more workers, or raise it: standfast limits set "
            f"{row['known_graph']} --queued MORE",
            thread_id=new.thread_id,
            key=row["known_graph"],
            bound=row["run_number"],
        )
    if row["verdict"] == "busy" and new.on_busy in ("queue", "withdraw"):
        raise errors.ThreadBusy(
            f"the run of thread {new.thread_id!r} needs attention, and a run behind it would not come to its turn; "
            f"nothing was queued. Retry that one (standfast retry {new.thread_id}), cancel it "
            f"(standfast cancel {new.thread_id}), or interrupt it by this one (on_busy='interrupt')",
            thread_id=new.thread_id,
            run_id=str(row["open_run"]),
        )
    if row["verdict"] == "busy":
        raise errors.ThreadBusy(
            f"thread {new.thread_id!r} has an unfinished run ({_UNFINISHED[row['open_state']]}), and on_busy is "
            f"'refuse'; nothing was started. Carry it on with: standfast resume {new.thread_id}",
            thread_id=new.thread_id,
            run_id=str(row["open_run"]),
        )
    if row["verdict"] == "other_tenant":
        raise errors.OtherTenant(
            f"there is no thread {new.thread_id!r} in the tenant {new.tenant!r}, and its id is taken; nothing was "
            "started. Choose another thread id",
            thread_id=new.thread_id,
        )
    if row["verdict"] == "other_graph":
        raise errors.InvalidRequest(
            f"thread {new.thread_id!r} belongs to graph {row['known_graph']!r}, not {new.graph!r}; "
            "choose another thread id",
            thread_id=new.thread_id,
        )
    if row["verdict"] == "other_input":
        raise errors.ClientKeyConflict(
            f"client key {new.client_key!r} stands for another request, run {row['open_run']} of thread "
            f"{row['open_thread']!r}; nothing was started. Use a new key for a new request",
            thread_id=row["open_thread"],
            run_id=str(row["open_run"]),
        )


_UNFINISHED: Final = {
    "open": "running, waiting or due",
    "queued": "queued",
    "needs_attention": "it needs attention",
}


def settings_dict(settings: Settings) -> dict[str, Any]:
    """The settings as they are sealed."""
    return {
        "context": settings.context,
        "reports_dir": settings.reports_dir,
        "reports_url": settings.reports_url,
        "traceparent": settings.traceparent,
    }


def _thread(row: DictRow) -> Thread:
    return Thread(
        id=row["id"],
        uuid=row["uuid"],
        tenant=row["tenant"],
        graph=row["graph"],
        version=row["version"],
        fingerprint=row["fingerprint"],
        run_id=row["run_id"],
        status=_status(row),
        reason=row["reason"],
        worker=row["lease_worker"] if row["leased"] else None,
        due=row["due"],
        crashes=row["crashes"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _status(row: DictRow) -> Status:
    """`running` while leased; else the run's end, or what it waits for."""
    if row["leased"]:
        return Status.RUNNING
    if row["run_state"] in (None, "open"):
        if row["waiting"] and not row["due"]:
            return Status.WAITING
        return Status.QUEUED
    return Status(row["run_state"])


def sealed_budget(sealer: Sealer, thread_id: str, run_id: str, budget: Budget | None) -> bytes | None:
    """A run's budget as its row holds it."""
    if budget is None:
        return None
    return sealer.seal(budget.as_stored(), at=("runs", thread_id, run_id, "budget"), where="budget")
