"""A thread's checkpoints, and what two of them differ in.

Invariant: a history reads no value but small ones and what says what comes next: it costs what it shows, however large
the state is. Two states are compared by the values that LangGraph shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from langchain_core.messages import BaseMessage
from langgraph.types import Send, StateSnapshot
from pydantic import BaseModel

from standfast.checkpoint.differences import Change, differences
from standfast.checkpoint.forks import CheckpointRow
from standfast.checkpoint.shown import Shown
from standfast.checkpoint.store import Store
from standfast.graph.changed import pending_nodes

_TASKS: Final = "__pregel_tasks"
_INNER: Final = ("__", "branch:to:", "join:")


@dataclass(frozen=True)
class HistoryEntry:
    """One checkpoint of the root graph. `next` is what was to run then, and how many of each; `changed` the fields
    that its step wrote."""

    checkpoint_id: str
    parent_id: str | None
    number: int
    at: datetime
    source: str
    run_id: str | None
    next: Mapping[str, int]
    changed: tuple[str, ...]


class History(list[HistoryEntry], Shown):
    """Checkpoints of one thread, the newest first."""

    def __repr__(self) -> str:
        lines = [f"  {one.checkpoint_id} {one.number}: {_told(one)}" for one in self]
        return "\n".join([f"<History of {len(self)} checkpoints, the newest first", *lines]) + ">"


@dataclass(frozen=True, repr=False)
class Diff(Shown):
    """How the state `after` differs from that `before`, field by field; messages are told apart by their ids."""

    before: str
    after: str
    changes: Sequence[Change]
    next_before: tuple[str, ...]
    next_after: tuple[str, ...]

    def __repr__(self) -> str:
        lines = [f"  {one}" for one in self.changes]
        if self.next_before != self.next_after:
            lines.append(
                f"  next: {', '.join(self.next_before) or 'nothing'} -> {', '.join(self.next_after) or 'nothing'}"
            )
        return "\n".join([f"<Diff of {self.before} and {self.after}", *lines]) + ">"


async def read_history(store: Store, thread_id: str, *, before: str | None = None, limit: int | None = None) -> History:
    """The checkpoints, newest first; `before` one of them, at most `limit`."""
    rows = await store.forks.history(thread_id, before=before, limit=None if limit is None else limit + 1)
    known = {one.id: one for one in rows}
    entries = [_entry(one, known.get(one.parent_id or "")) for one in rows]
    return History(entries if limit is None else entries[:limit])


def compare(before: StateSnapshot, after: StateSnapshot) -> Diff:
    """The difference of two states."""
    return Diff(
        before=_id(before),
        after=_id(after),
        changes=differences(_plain(before.values), _plain(after.values)),
        next_before=tuple(before.next),
        next_after=tuple(after.next),
    )


def _told(entry: HistoryEntry) -> str:
    following = ", ".join(name if count == 1 else f"{name} ({count})" for name, count in entry.next.items())
    wrote = f"wrote {', '.join(entry.changed)}; " if entry.changed else ""
    return f"{wrote}next: {following or 'nothing'}"


def _entry(row: CheckpointRow, parent: CheckpointRow | None) -> HistoryEntry:
    was = {} if parent is None else parent.versions
    written = sorted(name for name, version in row.versions.items() if was.get(name) != version)
    return HistoryEntry(
        checkpoint_id=row.id,
        parent_id=row.parent_id,
        number=row.metadata.get("step", 0),
        at=row.at,
        source=row.metadata.get("source", "loop"),
        run_id=row.metadata.get("run_id"),
        next=_next(row.small),
        changed=tuple(name for name in written if not name.startswith(_INNER)),
    )


def _next(values: Mapping[str, Any]) -> dict[str, int]:
    counts = dict.fromkeys(sorted(name for name in pending_nodes(values) if not name.startswith("__")), 1)
    packets = [one.node for one in values.get(_TASKS) or () if isinstance(one, Send)]
    return counts | {name: packets.count(name) for name in packets}


def _id(state: StateSnapshot) -> str:
    return str(state.config["configurable"].get("checkpoint_id", ""))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        shown = {"type": value.type, "content": value.content}
        return shown | {"tool_calls": calls} if (calls := getattr(value, "tool_calls", None)) else shown
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(one, BaseMessage) for one in value):
            return {str(one.id): _plain(one) for one in value}
        return [_plain(one) for one in value]
    return value
