"""Lists as a runtime returns them: plain lists, that are read as a table in text and in a notebook.

Invariant: what a list shows are small columns of its items; the items are the ones that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.artifacts import KeptArtifact
from standfast.checkpoint.audit import Entry
from standfast.checkpoint.fleet import Unserved, WorkerRow
from standfast.checkpoint.flow import LimitRow
from standfast.checkpoint.groups import Member
from standfast.checkpoint.listing import OpenWait, RunRow
from standfast.checkpoint.outbox import Delivery
from standfast.checkpoint.schedules import Schedule
from standfast.checkpoint.shown import Shown
from standfast.checkpoint.threads import Thread
from standfast.graph.visible import plain, shortened

_MOST_LINES: Final = 50
_WIDEST: Final = 60  # characters of a cell in text

T = TypeVar("T")


class State(str):
    """A cell that is a state, in the colour that it has everywhere."""

    __slots__ = ()


class Name(str):
    """A cell that is an identifier."""

    __slots__ = ()


Cell = str | int | datetime | None


@dataclass(frozen=True)
class Columns:
    """How the items of one type are listed."""

    noun: str
    nouns: str
    headings: tuple[str, ...]
    cells: Callable[[Any], tuple[Cell, ...]]


class Rows(list[T], Shown):
    """Items of one kind, in their order. Slices, and everything else that a list does, give lists."""

    def __init__(self, kind: type[T], items: Iterable[T]) -> None:
        super().__init__(items)
        self.kind = kind

    @property
    def columns(self) -> Columns:
        """How its items are listed."""
        return COLUMNS[self.kind]

    @property
    def head(self) -> str:
        """How many there are, of what."""
        columns = self.columns
        if not self:
            return f"No {columns.nouns}"
        return f"{len(self):,} {columns.noun if len(self) == 1 else columns.nouns}"

    def __repr__(self) -> str:
        cells = [[_text(cell) for cell in self.columns.cells(one)] for one in self[:_MOST_LINES]]
        widths = [max((len(row[at]) for row in cells), default=0) for at in range(len(self.columns.headings))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        if len(self) > _MOST_LINES:
            lines.append(f"and {len(self) - _MOST_LINES:,} more")
        return "\n  ".join([f"<{self.head}", *lines]) + ">"


def _text(cell: Cell) -> str:
    if isinstance(cell, datetime):
        return f"{cell.astimezone():%Y-%m-%d %H:%M:%S}"
    if isinstance(cell, State):
        return cell.replace("_", " ")
    return "" if cell is None else shortened(plain(cell), _WIDEST)


def _limited(one: LimitRow) -> tuple[Cell, ...]:
    limit = one.limit
    at_a_time = None if limit.concurrency is None else f"{one.used} of {limit.concurrency}"
    rate = None if limit.rate is None else f"{limit.rate} in {limit.per:g} s, {limit.burst} at once"
    return Name(limit.key), at_a_time, rate, limit.queued, one.changed_at, one.changed_by


def _told(one: Entry) -> tuple[Cell, ...]:
    facts = one.facts
    what = facts.get("decision") or facts.get("state") or facts.get("change") or facts.get("error")
    about = facts.get("operation") or facts.get("group") or facts.get("question")
    identifier = facts.get("approval")
    return (
        one.seq,
        str(facts.get("at", ""))[:19].replace("T", " "),
        str(facts.get("kind", "")),
        State(what) if what else None,
        about,
        Name(identifier) if identifier else None,
        facts.get("by"),
    )


COLUMNS: Final[Mapping[type, Columns]] = {
    Thread: Columns(
        "thread",
        "threads",
        ("thread", "status", "graph", "changed", ""),
        lambda one: (
            Name(one.id),
            State(one.status),
            one.graph,
            one.updated_at,
            f"by {one.worker}" if one.worker else one.reason,
        ),
    ),
    RunRow: Columns(
        "run",
        "runs",
        ("thread", "run", "status", "graph", "asked by", "accepted", "ended", ""),
        lambda one: (
            Name(one.thread_id),
            one.number,
            State(one.status),
            f"{one.graph}@{one.version}",
            one.requested_by,
            one.accepted_at,
            one.ended_at,
            one.reason,
        ),
    ),
    OpenWait: Columns(
        "open wait",
        "open waits",
        ("thread", "kind", "for", "at", "since", "until"),
        lambda one: (
            Name(one.thread_id),
            one.kind,
            Name(one.name or one.approval_id or one.id),
            one.node,
            one.opened_at,
            one.until,
        ),
    ),
    WorkerRow: Columns(
        "worker",
        "workers",
        ("worker", "graphs", "at a time", "started", "seen"),
        lambda one: (Name(one.name), ", ".join(one.graphs), one.concurrency, one.started_at, one.seen_at),
    ),
    Unserved: Columns(
        "unserved graph",
        "unserved graphs",
        ("graph", "due runs", "the oldest since"),
        lambda one: (f"{one.graph}@{one.version}", one.runs, one.oldest),
    ),
    Entry: Columns("entry", "entries", ("", "at (UTC)", "what", "", "about", "approval", "by"), _told),
    Member: Columns(
        "member",
        "members",
        ("group", "who", "since", "put in by"),
        lambda one: (one.group, one.principal, one.added_at, one.added_by),
    ),
    Approval: Columns(
        "approval",
        "approvals",
        ("approval", "state", "operation", "thread", "asked by", "since", "until"),
        lambda one: (
            Name(one.id),
            State(one.state),
            one.operation,
            Name(one.thread_id),
            one.requested_by,
            one.requested_at,
            one.expires_at,
        ),
    ),
    Delivery: Columns(
        "delivery",
        "deliveries",
        ("message", "topic", "thread", "channel", "state", "attempts", "due", ""),
        lambda one: (
            Name(one.message_id),
            one.topic,
            one.thread_id,
            one.channel,
            State(one.state) if one.state else None,
            one.attempts,
            one.due_at,
            one.failure,
        ),
    ),
    KeptArtifact: Columns(
        "artifact",
        "artifacts",
        ("id", "name", "type", "bytes", "thread", "since"),
        lambda one: (
            Name(one.artifact.sha256[:16]),
            one.artifact.name,
            one.artifact.media_type,
            one.artifact.size,
            Name(one.thread_id),
            one.referred_at,
        ),
    ),
    LimitRow: Columns("limit", "limits", ("key", "at a time", "rate", "queued", "set", "by"), _limited),
    Schedule: Columns(
        "schedule",
        "schedules",
        ("schedule", "cron", "zone", "graph", "next", "last", ""),
        lambda one: (
            Name(one.name),
            one.cron,
            one.zone,
            one.graph,
            None if one.paused else one.next_at,
            one.last_at,
            "paused" if one.paused else one.last_verdict,
        ),
    ),
}
