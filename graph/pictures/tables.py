"""The ledger, histories, differences, and a thread's story without a chart, as tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from langchain_core.messages import AIMessage

from standfast.checkpoint.operations import Attempt, Operation
from standfast.graph.history import Diff, History
from standfast.graph.pictures.markup import Html, Piece, day_of, display, element, joined, table, tag, time_of
from standfast.graph.retention import WHY, Pruned
from standfast.graph.rows import Cell, Name, Rows, State
from standfast.graph.timeline import Ledger, Timeline
from standfast.graph.visible import counted, shortened

_MOST_ROWS: Final = 200
_LONG: Final = 90  # characters
_LONGEST_CHANGE: Final = 600


def ledger_table(ledger: Ledger) -> Html:
    """Each intended effect, with its attempts."""
    rows = [_operation_row(one, ledger.attempts.get(one.id, ())) for one in ledger.operations[:_MOST_ROWS]]
    left = len(ledger.operations) - len(rows)
    return display(
        element("div", element("b", f"Ledger of {ledger.thread_id}"), class_="head"),
        table(("began", "operation", "with", "effect", "state", "attempts", "result"), rows),
        element("p", f"and {counted(left, 'more operation')}", class_="dim") if left else None,
    )


def history_table(history: History) -> Html:
    """Each checkpoint: when it was written, what its step wrote, and what was to come next."""
    rows: list[list[Piece]] = []
    for one in history[:_MOST_ROWS]:
        following = ", ".join(name if count == 1 else f"{name} ({count})" for name, count in one.next.items())
        name = element("code", one.checkpoint_id, class_="name")
        rows.append(
            [
                one.number,
                time_of(one.at),
                one.source,
                ", ".join(one.changed),
                following or ("the start" if one.source == "input" else "the end"),
                name,
            ]
        )
    left = len(history) - len(rows)
    return display(
        element("div", element("b", "History"), element("span", "the newest first", class_="dim"), class_="head"),
        table(("step", "at", "source", "wrote", "next", "checkpoint"), rows),
        element("p", f"and {counted(left, 'older checkpoint')}", class_="dim") if left else None,
    )


def diff_table(diff: Diff) -> Html:
    """Each place that differs, as it was and as it is."""
    rows: list[list[Piece]] = [[element("code", one.path), _was(one.before), _is(one.after)] for one in diff.changes]
    if diff.next_before != diff.next_after:
        rows.append(["next", _was(", ".join(diff.next_before)), _is(", ".join(diff.next_after))])
    head = element("div", element("b", "Difference"), class_="head")
    return display(head, table(("where", diff.before, diff.after), rows) if rows else element("p", "There is none."))


def rows_table(rows: Rows[Any]) -> Html:
    """A list as its columns."""
    cells = [[_cell(one) for one in rows.columns.cells(item)] for item in rows[:_MOST_ROWS]]
    left = len(rows) - len(cells)
    return display(
        element("div", element("b", rows.head), class_="head"),
        table(rows.columns.headings, cells) if cells else None,
        element("p", f"and {left:,} more", class_="dim") if left else None,
    )


def _cell(cell: Cell) -> Piece:
    if isinstance(cell, datetime):
        return day_of(cell)
    if isinstance(cell, State):
        return tag(cell)
    if isinstance(cell, Name):
        return element("code", cell, class_="name")
    return cell if isinstance(cell, int) else shortened(cell, _LONG) if cell else None


def pruned_table(pruned: Pruned) -> Html:
    """What went, and what stays for which reason."""
    rows: list[list[Piece]] = [[graph, tag(state), count] for (graph, state), count in sorted(pruned.threads.items())]
    kept = [f"{counted(count, 'thread')} {WHY[why]}" for why, count in sorted(pruned.kept.items())]
    parts = {"checkpoint": pruned.checkpoints, "artifact": pruned.artifacts, "document": pruned.documents}
    gone = ", ".join(counted(number, noun) for noun, number in parts.items() if number)
    said = "Would be pruned; nothing was changed" if pruned.dry_run else "Pruned; the audit stays"
    return display(
        element("div", element("b", said), class_="head"),
        table(("graph", "state", "threads"), rows) if rows else element("p", "No thread."),
        element("p", f"and {gone}") if gone else None,
        element("p", f"Kept: {'; '.join(kept)}", class_="dim") if kept else None,
    )


def _was(value: Any) -> Html | None:
    return None if value in (None, "", {}, []) else element("del", _said(value)[:_LONGEST_CHANGE])


def _is(value: Any) -> Html | None:
    return None if value in (None, "", {}, []) else element("ins", _said(value)[:_LONGEST_CHANGE])


def story_table(timeline: Timeline) -> Html:
    """The drives of a thread and what each did."""
    rows: list[list[Piece]] = []
    for number, drive in enumerate(timeline.told.drives, 1):
        spans = [one for one in timeline.told.spans if (one.run_id, one.epoch) == (drive.run_id, drive.epoch)]
        steps = ", ".join(dict.fromkeys("/".join(one.path) for one in spans))
        took = f"{(drive.until - drive.since).total_seconds():.2f} s"
        rows.append([str(number), time_of(drive.since), took, END_WORDS[drive.end], shortened(steps, 300)])
    return joined([table(("drive", "began", "for", "then it", "steps"), rows)])


END_WORDS: Final = {
    "waited": "waited",
    "ended": "ended",
    "left": "let the thread go",
    "died": "died",
    "open": "is under way, or has died",
}


def _operation_row(one: Operation, attempts: Any) -> list[Piece]:
    began: datetime = attempts[0].started_at if attempts else one.created_at
    result: Piece = one.failure_message
    if result is None and one.result is not None:
        result = shortened(_said(one.result), 90)
    return [
        time_of(began),
        element("b", one.name, class_="name"),
        shortened(_said(dict(one.arguments)), 90),
        "model" if one.kind == "model" else one.effect.replace("_", " "),
        tag(one.state),
        joined((_attempt(each) for each in attempts), "<br/>") if len(attempts) > 1 else f"{len(attempts)}",
        result,
    ]


def _attempt(one: Attempt) -> Html:
    took = "" if one.ended_at is None else f" in {(one.ended_at - one.started_at).total_seconds():.2f} s"
    why = f": {shortened(one.failure_message, 60)}" if one.failure_message else ""
    return element("span", f"{one.number} {one.state}{took}{why}", title=one.worker)


def _said(value: Any) -> str:
    if isinstance(value, AIMessage):
        calls = ", ".join(call["name"] for call in value.tool_calls)
        return f"asks for {calls}" if calls else str(value.text)
    if isinstance(value, dict) and value and all(_is_message(one) for one in value.values()):
        return "\n".join(f"{one['type']}: {_spoken(one)}" for one in value.values())
    if isinstance(value, dict):
        return ", ".join(f"{name}={_said(inner)}" for name, inner in value.items())
    if isinstance(value, list) and len(str(value)) > _LONG:
        return counted(len(value), "item")
    return str(value)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and {"type", "content"} <= value.keys() <= {"type", "content", "tool_calls"}


def _spoken(message: dict[str, Any]) -> str:
    calls = ", ".join(call["name"] for call in message.get("tool_calls", ()))
    return f"asks for {calls}" if calls else shortened(message["content"])
