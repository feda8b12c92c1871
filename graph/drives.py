"""What the recorded events of a run tell of its drives and of the steps in them: when, for how long, how they ended.

Invariant: a drive says how it ends; one that did not, and that another one followed, was killed or lost its lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from standfast.checkpoint.run_events import RunEvent
from standfast.checkpoint.store import Store

End = Literal["waited", "ended", "left", "died", "open"]
_ENDS: Final[dict[str, End]] = {"run_wait": "waited", "run_end": "ended", "run_left": "left"}
_TOLD: Final = {"run_begin", "run_resume", *_ENDS, "step_begin", "step_end", "operation_begin"}
_PAGE: Final = 500


@dataclass(frozen=True)
class Drive:
    """One drive of a run, under the lease of `epoch`. `until` is the last thing that was heard of it.

    Of one that ended its run, `status` and `reason` say how.
    """

    run_id: str
    epoch: int
    since: datetime
    until: datetime
    end: End
    status: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Span:
    """One task of a drive. `path` is the way to its node; one that did not end has None for `until`."""

    run_id: str
    epoch: int
    path: tuple[str, ...]
    task: str
    since: datetime
    until: datetime | None


@dataclass(frozen=True)
class Drives:
    """The drives of some runs, and the spans in them, each in the order in which they began."""

    drives: Sequence[Drive] = ()
    spans: Sequence[Span] = ()


async def read_drives(store: Store, thread_id: str, run_ids: Iterable[str]) -> Drives:
    """The drives of these runs of a thread, read from their events."""
    drives: list[Drive] = []
    spans: list[Span] = []
    for run_id in run_ids:
        events: list[RunEvent] = []
        after, more = 0, True
        while more:
            page, more = await store.run_events.page(thread_id, run_id, after=after, limit=_PAGE)
            after = page[-1].seq if page else after
            events += [one for one in page if one.kind in _TOLD]
        found = drives_of(run_id, events)
        drives += found.drives
        spans += found.spans
    return Drives(drives, spans)


def drives_of(run_id: str, events: Iterable[RunEvent]) -> Drives:
    """The drives that the stored events of one run tell of, oldest first."""
    drives: list[Drive] = []
    spans: list[Span] = []
    begun: dict[tuple[int, str], int] = {}
    for event in events:
        if event.at is None:
            continue
        if not drives or drives[-1].epoch != event.epoch:
            if drives and drives[-1].end == "open":
                drives[-1] = replace(drives[-1], end="died")
            drives.append(Drive(run_id, event.epoch, event.at, event.at, "open"))
        until = max(drives[-1].until, event.at)
        drives[-1] = replace(drives[-1], until=until, end=_ENDS.get(event.kind, "open"))
        if event.kind == "run_end":
            drives[-1] = replace(drives[-1], status=event.data["status"], reason=event.data["reason"])
        if event.kind == "step_begin":
            begun[event.epoch, event.task] = len(spans)
            spans.append(Span(run_id, event.epoch, event.path, event.task, event.at, None))
        elif event.kind == "step_end" and (event.epoch, event.task) in begun:
            at = begun.pop((event.epoch, event.task))
            # Events are stored some at a time: how long the step took is told, and is nearer than its own times.
            since = min(spans[at].since, event.at - timedelta(seconds=event.data.get("seconds", 0.0)))
            spans[at] = replace(spans[at], since=max(since, drives[-1].since), until=event.at)
    return Drives(drives, spans)
