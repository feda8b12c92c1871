"""Which display belongs to which type of value.

Invariant: a value that nobody has given a face to, or whose face needs a library that is not installed, is shown as its
text.
"""

from __future__ import annotations

from functools import singledispatch

from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.threads import Thread
from standfast.graph.builder import AgentGraph
from standfast.graph.history import Diff, History
from standfast.graph.pictures.cards import approval_card, result_card, thread_card
from standfast.graph.pictures.chart import chart_svg
from standfast.graph.pictures.diagram import Picture, picture_of
from standfast.graph.pictures.markup import Html, display, element, tag
from standfast.graph.pictures.tables import (
    diff_table,
    history_table,
    ledger_table,
    pruned_table,
    rows_table,
    story_table,
)
from standfast.graph.result import Result
from standfast.graph.retention import Pruned
from standfast.graph.rows import Rows
from standfast.graph.timeline import Ledger, Timeline


@singledispatch
def face_of(value: object) -> str | None:
    """The display of a value, as HTML; None if it has none."""
    return None


face_of.register(Result, result_card)
face_of.register(Thread, thread_card)
face_of.register(Approval, approval_card)
face_of.register(Ledger, ledger_table)
face_of.register(History, history_table)
face_of.register(Diff, diff_table)
face_of.register(Pruned, pruned_table)
face_of.register(Rows, rows_table)


@face_of.register
def _(value: Picture) -> str:
    of = f", and where {value.thread_id} stands in it" if value.thread_id else ""
    head = element("div", element("b", value.name), element("span", f"the graph{of}", class_="dim"), class_="head")
    return display(head, Html(value.svg))


@face_of.register
def _(value: AgentGraph) -> str | None:
    return face_of(picture_of(value, name="agent"))


@face_of.register
def _(value: Timeline) -> str:
    thread = value.thread
    head = element("div", tag(thread.status), element("b", thread.id), element("span", thread.reason), class_="head")
    try:
        drawn = chart_svg(value)
    except ImportError:  # the extra `notebooks` is not installed
        drawn = story_table(value)
    return display(head, drawn)
