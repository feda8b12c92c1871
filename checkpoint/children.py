"""The rows of child threads: made for a run, joined by whoever has their handle, and what a family spends.

Invariant: children are made in the transaction that records them in their parent's ledger, and their ids come from
their place in the parent: a crash neither loses nor doubles one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from standfast.checkpoint.artifact import Seen
from standfast.checkpoint.artifacts import Artifacts
from standfast.checkpoint.budget import Budget
from standfast.checkpoint.child import Child
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Connection, Database, Rider
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.operations import Begun, Call, Operations
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements
from standfast.checkpoint.threads import Settings, settings_dict

_SQL = statements("children")


@dataclass(frozen=True)
class NewChild:
    """A child to be made. `graph` None: its parent's. `deadline` and `budget` only narrow what it inherits."""

    child: Child
    input: Any
    settings: Settings
    graph: str | None = None
    version: str | None = None
    deadline: datetime | None = None
    budget: Budget | None = None


@dataclass(frozen=True)
class Ancestor:
    """A run that a run descends from."""

    thread_id: str
    run_id: str
    budget: Budget | None


@dataclass(frozen=True)
class ModelCalls:
    """Calls of models, and their recorded answers if those were asked for."""

    count: int
    answers: Sequence[Any]


class Children:
    """The rows of children."""

    def __init__(self, database: Database, sealer: Sealer, operations: Operations, artifacts: Artifacts) -> None:
        self._database = database
        self._sealer = sealer
        self._operations = operations
        self._artifacts = artifacts

    def digest_input(self, value: Any) -> bytes:
        """The bytes of a request, for its digest. Raises `UnstorableValue`."""
        return self._sealer.codec.encode(value, where="request")

    async def make(self, lease: Lease, call: Call, new: Sequence[NewChild], *, width: int | None = None) -> list[Child]:
        """Make the children and record them as the result of `call`; with `width` so many at a time.

        Found again, nothing is made. Raises `OperationMismatch` if something else was made at this place.
        """
        rows: list[dict[str, Any]] = []
        referring: list[Rider] = []
        for position, one in enumerate(new):
            at, seen = ("runs", one.child.thread_id, one.child.run_id), Seen()
            rows.append(
                {
                    "parent": lease.thread_id,
                    "parent_run": call.run_id,
                    "child": one.child.thread_id,
                    "child_run": one.child.run_id,
                    "graph": one.graph,
                    "version": one.version,
                    "input": self._sealer.seal(one.input, at=(*at, "input"), where="request", artifacts=seen),
                    "settings": self._sealer.seal(settings_dict(one.settings), at=(*at, "settings"), where="settings"),
                    "deadline": one.deadline,
                    "budget": None
                    if one.budget is None
                    else self._sealer.seal(one.budget.as_stored(), at=(*at, "budget"), where="budget"),
                    "map": None if width is None else call.id,
                    "position": position,
                    "width": width,
                }
            )
            referring += self._artifacts.refer(one.child.thread_id, seen)

        async def effect(connection: Connection, begun: Begun) -> list[list[str]]:
            await connection.cursor().executemany(_SQL["spawn"], rows)
            for statement, values in referring:
                await connection.execute(statement, values)
            reach("child.spawning")
            return [[one.child.thread_id, one.child.run_id] for one in new]

        begun, made = await self._operations.transact(lease, call, effect)
        reach("child.spawned")
        return [Child(*one) for one in (made if begun.state == "executing" else begun.result)]

    async def outputs(self, children: Sequence[Child]) -> dict[Child, tuple[Any, str | None]]:
        """What the children that are known have put out, and the reasons for their ends."""
        params = {"threads": [one.thread_id for one in children], "runs": [one.run_id for one in children]}
        found = {}
        for row in await self._database.fetch(_SQL["ends"], params):
            child, sealed = Child(row["thread_id"], row["run_id"]), row["output"]
            at = ("runs", child.thread_id, child.run_id, "output")
            found[child] = None if sealed is None else self._sealer.unseal(sealed, at=at), row["reason"]
        return found

    def put_out(self, thread_id: str, run_id: str, output: Any) -> Rider:
        """The statement that keeps a child's output, one with its end. Raises `UnstorableValue`."""
        sealed = self._sealer.seal(output, at=("runs", thread_id, run_id, "output"), where="output", artifacts={})
        return _SQL["output"], {"thread": thread_id, "run": run_id, "output": sealed}

    async def of_run(self, thread_id: str, run_id: str) -> dict[Child, str]:
        """The children of a run, in the order in which they were made, and the states of their runs."""
        rows = await self._database.fetch(_SQL["of_run"], {"thread": thread_id, "run": run_id})
        return {Child(row["thread_id"], row["run_id"]): row["state"] for row in rows}

    async def above(self, thread_id: str, run_id: str) -> list[Ancestor]:
        """The runs that a run descends from, the nearest first."""
        rows = await self._database.fetch(_SQL["above"], {"thread": thread_id, "run": run_id})
        return [Ancestor(row["thread_id"], row["run_id"], self._budget(row)) for row in rows]

    async def spent(self, thread_id: str, run_id: str, *, itself: bool, answers: bool) -> ModelCalls:
        """The model calls of a run's descendants, those in flight included; with `itself` the run's own too."""
        params = {"thread": thread_id, "run": run_id, "itself": itself, "results": answers}
        rows = await self._database.fetch(_SQL["spent"], params)
        results = [
            self._sealer.unseal(row["result"], at=("operations", row["thread_id"], row["id"], "result"))
            for row in rows
            if row["result"] is not None
        ]
        return ModelCalls(sum(row["calls"] for row in rows), results)

    def _budget(self, row: Mapping[str, Any]) -> Budget | None:
        if row["budget"] is None:
            return None
        at = ("runs", row["thread_id"], row["run_id"], "budget")
        return Budget.of_stored(self._sealer.unseal(row["budget"], at=at))
