"""Waits as rows: what a parked thread waits for, and how each wait ended.

Invariants: a wait is written in the transaction that gives the lease up, which also looks for whatever came
before it; it ends once, by an answer, an event, or its time, and its time is absolute. Several waits can be one
question of the graph (one interrupt): the first that ends withdraws the others, or all must end.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg.rows import DictRow

from standfast.checkpoint import errors
from standfast.checkpoint.artifact import Seen
from standfast.checkpoint.artifacts import Artifacts
from standfast.checkpoint.database import Connection, Database, Rider
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements

_SQL = statements("waits")

Kind = Literal["approval", "question", "timer", "event", "completion", "child"]
Quorum = Literal["first", "all"]


@dataclass(frozen=True)
class Wait:
    """One thing that a thread waits for. `id` is the interrupt's, with a number if the interrupt has several."""

    id: str
    run_id: str
    kind: Kind
    approval_id: str | None
    node: str
    request: Any
    state: Literal["open", "answered", "timed_out", "withdrawn"]
    answer: Any
    answered_by: str | None
    opened_at: datetime
    interrupt_id: str = ""
    position: int = 0
    quorum: Quorum = "first"
    name: str | None = None
    match: str | None = None
    until: datetime | None = None
    event_seq: int | None = None
    verified_by: str | None = None  # who established the name of `answered_by`

    def __hash__(self) -> int:
        return hash((self.run_id, self.id))


class Waits:
    """The rows of waits."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def park(
        self, lease: Lease, run_id: str, open_waits: Sequence[Wait], *, riders: Sequence[Rider] = ()
    ) -> bool:
        """Write the waits and give the lease up; False if something came meanwhile (the lease is kept)."""
        params: dict[str, Any] = {"thread": lease.thread_id, "epoch": lease.epoch, "run": run_id}
        names = [one.name for one in open_waits if one.kind == "event"]
        children = [one.name for one in open_waits if one.kind == "child"]
        rows = [{**params, **self._row(lease.thread_id, one)} for one in open_waits]

        async def work(conn: Connection) -> bool:
            if children:
                await conn.execute(_SQL["begin_join"], {"children": children})
            begun = await (await conn.execute(_SQL["begin"], {**params, "names": names})).fetchone()
            if begun is None or not begun["held"]:
                return True  # by ourselves; what has come since then is for the next driver
            await conn.cursor().executemany(_SQL["put"], rows)
            await conn.execute(_SQL["withdraw"], {**params, "listed": [one.id for one in open_waits]})
            await conn.execute(_SQL["settle"], params)
            if names:
                await conn.execute(_SQL["match"], params)
            if children:
                await conn.execute(_SQL["match_joins"], params)
            for statement, values in riders:
                await conn.execute(statement, values)
            row = await (await conn.execute(_SQL["park"], params)).fetchone()
            return row is not None and bool(row["parked"])

        return await self._database.run(work)

    async def of_run(self, thread_id: str, run_id: str) -> list[Wait]:
        """All waits of a run, ended ones too, oldest first."""
        rows = await self._database.fetch(_SQL["of_run"], {"thread": thread_id, "run": run_id})
        return [self._wait(thread_id, row) for row in rows]

    async def named(self, thread_id: str, run_id: str, ids: Collection[str]) -> list[Wait]:
        """Those waits of a run, ended ones too, oldest first."""
        params = {"thread": thread_id, "run": run_id, "ids": list(ids)}
        return [self._wait(thread_id, row) for row in await self._database.fetch(_SQL["named"], params)]

    async def end_due(self, lease: Lease) -> None:
        """End the waits of the leased thread whose time has come."""
        await self._database.fetch_none(_SQL["end_due"], {"thread": lease.thread_id, "epoch": lease.epoch})

    async def answer(
        self, thread_id: str, wait_id: str, value: Any, who: str, *, verified_by: str | None = None
    ) -> None:
        """Answer an open question; `verified_by` is who established the name. Told in the audit by a digest.

        Raises `UnknownQuestion` or `AlreadyDecided`.
        """
        seen: Seen = {}
        at = ("waits", thread_id, wait_id, "answer")
        sealed = self._sealer.seal(value, at=at, where="answer", artifacts=seen)
        await Artifacts(self._database, self._sealer).refer_now(thread_id, seen)
        params = {
            "thread": thread_id,
            "wait": wait_id,
            "id": uuid.uuid4(),
            "answer": sealed,
            "who": who,
            "verified_by": verified_by,
            "sha256": self._sealer.digest(value, where="answer"),
        }
        row = await self._database.fetch_one(_SQL["answer"], params)
        assert row is not None
        if row["verdict"] == "unknown":
            raise errors.UnknownQuestion(
                f"thread {thread_id!r} has no question {wait_id!r}; see: standfast show {thread_id}",
                thread_id=thread_id,
                question_id=wait_id,
            )
        if row["verdict"] != "done":
            by = row["answered_by"]
            raise errors.AlreadyDecided(
                f"question {wait_id!r} of thread {thread_id!r} is {row['verdict']}" + (f" by {by}" if by else ""),
                thread_id=thread_id,
                decision=row["verdict"],
                by=by,
            )

    async def answers(self, thread_id: str) -> Mapping[str, Any]:
        """The answers that people gave to a thread's questions, by the question's id."""
        rows = await self._database.fetch(_SQL["answers"], {"thread": thread_id})
        at = ("waits", thread_id)
        return {row["id"]: self._sealer.unseal(row["answer"], at=(*at, row["id"], "answer")) for row in rows}

    def _row(self, thread_id: str, wait: Wait) -> dict[str, Any]:
        return {
            "id": wait.id,
            "kind": wait.kind,
            "approval": wait.approval_id,
            "node": wait.node,
            # What the question holds, the checkpoint that asks it refers to.
            "request": self._sealer.seal(wait.request, at=("waits", thread_id, wait.id, "request"), artifacts={}),
            "interrupt": wait.interrupt_id,
            "position": wait.position,
            "quorum": wait.quorum,
            "name": wait.name,
            "match": wait.match,
            "until": wait.until,
        }

    def _wait(self, thread_id: str, row: DictRow) -> Wait:
        at = ("waits", thread_id, row["id"])
        answer = row["answer"]
        return Wait(
            id=row["id"],
            run_id=row["run_id"],
            kind=row["kind"],
            approval_id=row["approval_id"],
            node=row["node"],
            request=self._sealer.unseal(row["request"], at=(*at, "request")),
            state=row["state"],
            answer=None if answer is None else self._sealer.unseal(answer, at=(*at, "answer")),
            answered_by=row["answered_by"],
            opened_at=row["opened_at"],
            interrupt_id=row["interrupt_id"] or row["id"],
            position=row["position"],
            quorum=row["quorum"],
            name=row["name"],
            match=row["match"],
            until=row["until"],
            event_seq=row["event_seq"],
            verified_by=row["verified_by"],
        )
