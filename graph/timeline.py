"""Everything that is recorded about one thread, read from its rows and its checkpoints.

Invariant: nothing of it needs the thread's graph, so a thread can be looked at wherever its database can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.budget import Spent
from standfast.checkpoint.documents import Member
from standfast.checkpoint.operations import Attempt, Operation
from standfast.checkpoint.shown import Shown
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Run, Thread
from standfast.checkpoint.waits import Wait
from standfast.graph.drives import Drives, read_drives
from standfast.graph.history import read_history
from standfast.graph.visible import local_time
from standfast.tools.limits import spent_by


@dataclass(frozen=True)
class Step:
    """One committed superstep of the root graph: what ran, and the checkpoint that it led to."""

    number: int
    at: datetime
    source: str
    nodes: Mapping[str, int]  # how many of each name ran
    checkpoint_id: str
    run_id: str | None


@dataclass(frozen=True, repr=False)
class Ledger(Shown):
    """What a thread has done or tried to do: its operations, the oldest first, and the attempts at each."""

    thread_id: str
    operations: Sequence[Operation]
    attempts: Mapping[str, Sequence[Attempt]]

    def __len__(self) -> int:
        return len(self.operations)

    def __repr__(self) -> str:
        lines = [f"<Ledger of thread {self.thread_id!r}, operations: {len(self)}"]
        for one in self.operations:
            tries = len(self.attempts.get(one.id, ()))
            lines.append(f"  {one.name}: {one.state}" + (f" after {tries} attempts" if tries > 1 else ""))
        return "\n".join(lines) + ">"


@dataclass(frozen=True, repr=False)
class Timeline(Shown):
    """One thread's record, each list oldest first. `documents` and `spent` are by run id; `told` is what its events
    tell.

    A notebook shows it as a chart, if the extra `notebooks` is installed.
    """

    thread: Thread
    runs: Sequence[Run]
    steps: Sequence[Step]
    operations: Sequence[Operation]
    attempts: Mapping[str, Sequence[Attempt]]
    approvals: Sequence[Approval]
    waits: Sequence[Wait]
    documents: Mapping[str, Sequence[Member]] = field(default_factory=dict)
    told: Drives = field(default_factory=Drives)
    spent: Mapping[str, Spent] = field(default_factory=dict)

    @property
    def ledger(self) -> Ledger:
        """The operations alone."""
        return Ledger(self.thread.id, self.operations, self.attempts)

    @property
    def limits(self) -> str | None:
        """The latest run's deadline, and what it has spent of its budget, in words; None for one without either."""
        run = self.runs[-1] if self.runs else None
        if run is None or (run.deadline is None and run.budget is None):
            return None
        parts = [] if run.deadline is None else [f"deadline {local_time(run.deadline)}"]
        return "; ".join([*parts, f"spent {self.spent.get(run.id, Spent()).of(run.budget)}"])

    def __repr__(self) -> str:
        drives = [f"{number} {drive.end}" for number, drive in enumerate(self.told.drives, 1)]
        parts = [
            f"{self.thread.status.upper()} thread {self.thread.id!r}",
            f"{len(self.runs)} runs, {len(self.steps)} checkpoints, {len(self.operations)} operations",
            f"drives: {', '.join(drives) or 'none'}",
            *([self.limits] if self.limits else []),
            *(f"{one.id} for {one.operation} {one.state}" for one in self.approvals),
        ]
        return f"<Timeline {'; '.join(parts)}>"


async def read_timeline(store: Store, thread_id: str) -> Timeline:
    """The record of a thread. Raises `UnknownThread`, and `UnknownStoredType` for values of unregistered types."""
    thread = await store.threads.get(thread_id)
    runs = await store.threads.runs(thread_id)
    attempts: dict[str, list[Attempt]] = {}
    for attempt in await store.operations.attempts(thread_id):
        attempts.setdefault(attempt.operation_id, []).append(attempt)
    approvals = await store.approvals.list(thread_id=thread_id, state=None, limit=None)
    return Timeline(
        thread=thread,
        runs=runs,
        steps=await _steps(store, thread_id),
        operations=await store.operations.list(thread_id),
        attempts=attempts,
        approvals=sorted(approvals, key=lambda one: one.requested_at),
        waits=[wait for run in runs for wait in await store.waits.of_run(thread_id, run.id)],
        documents={run.id: await store.documents.members(run.collection_id) for run in runs if run.collection_id},
        told=await read_drives(store, thread_id, [run.id for run in runs]),
        spent={run.id: await spent_by(run, store.operations, store.children) for run in runs},
    )


async def _steps(store: Store, thread_id: str) -> list[Step]:
    steps: list[Step] = []
    due: Mapping[str, int] = {}
    for one in reversed(await read_history(store, thread_id)):
        steps.append(Step(one.number, one.at, one.source, due, one.checkpoint_id, one.run_id))
        due = one.next
    return steps
