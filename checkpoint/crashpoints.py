"""Named places in the shipped code where a test may kill the process. In production each is one comparison.

Invariant: `POINTS` and the lists beside it (of outcomes, retention, children, groups) have them all; reaching another
name is a mistake in our code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

POINTS: Final = (
    "migrate.between",  # a component's tables made, not yet recorded
    "migrate.inside",  # in the transaction of one of our migrations
    "run.accepted",  # the run is committed, nothing has been driven
    "lease.claimed",  # a driver has the lease and has read nothing
    "saver.fenced",  # the fence is passed, the transaction is not committed
    "saver.committed",  # a checkpoint is committed
    "drive.parking",  # the graph waits, the waits are not yet written
    "drive.parked",  # the waits are written and the lease is free
    "drive.resuming",  # answers are gathered, the graph has not gone on
    "drive.ending",  # the graph has ended, the end is not yet written
    "drive.ended",  # the end is written
    "model.called",  # a model has answered, the answer is not recorded
    "model.recorded",  # the answer is recorded, the graph does not know it
    "node.analysis",
    "node.validation",
    "node.approval",
    "node.operate",
    "node.specialist",
    "node.record",
    "approval.opened",  # the request is committed, the question is not asked yet
    "approval.decided",  # the decision is committed, nobody has gone on
    "operation.begun",  # the attempt is recorded, the effect has not happened
    "operation.done",  # the effect has happened, nothing says so
    "operation.recorded",  # the result is recorded, the graph does not know it
    "outbox.sent",  # a channel has taken a message, nothing says so
    "operation.failed",  # the failure is recorded, and when the next attempt may begin
    "parts.put",  # large parts of a value are put, and no row refers to them yet
    "artifact.placing",  # an artifact's row is committed, its bytes are not yet at their place outside Postgres
    "report.written",  # the report's bytes are on disk under a temporary name
)
OUTCOME_POINTS: Final = (
    "operation.pending",  # the work goes on elsewhere, and its handle is recorded
    "outcome.unknown",  # nobody knows how the attempt ended, and nobody has been asked
    "outcome.answered",  # the operation's reconcile has answered, nothing says so
    "outcome.decided",  # a person's decision is read, nothing follows from it yet
    "outcome.settled",  # what became of it is recorded, the graph does not know it
    "outcome.polled",  # the operation's poll has answered, nothing says so
    "outcome.completed",  # a completion is committed, nobody has gone on
)
RETENTION_POINTS: Final = (
    "retention.deleting",  # some threads are deleted, the transaction is not committed
    "retention.deleted",  # it is, and there are more
    "retention.cutting",  # a history is cut, the transaction is not committed
)
CHILD_POINTS: Final = (
    "child.spawning",  # children are made, their transaction is not committed
    "child.spawned",  # they are committed, the node does not know it
)
GROUP_POINTS: Final = (
    "group.fenced",  # several threads' fences are passed, their one transaction is not committed
)

_POINTS: Final = frozenset((*POINTS, *OUTCOME_POINTS, *RETENTION_POINTS, *CHILD_POINTS, *GROUP_POINTS))
hook: Callable[[str], None] | None = None


def watched() -> bool:
    """Whether a test watches: what would leave it no moment to act in is then done in smaller pieces."""
    return hook is not None


def reach(point: str) -> None:
    """Tell the hook, if a test has set one, that the code has come to `point`."""
    if hook is not None:
        if point not in _POINTS:
            raise LookupError(f"{point!r} is not listed in POINTS")
        hook(point)
