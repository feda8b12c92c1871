"""What a notebook shows: escaped, without scripts and addresses, and the same story as the rows."""

from __future__ import annotations

import builtins
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.audit import Entry
from standfast.checkpoint.differences import Change
from standfast.checkpoint.flow import Limit, LimitRow
from standfast.checkpoint.listing import OpenWait
from standfast.checkpoint.operations import Attempt, Operation
from standfast.checkpoint.run_events import RunEvent
from standfast.checkpoint.threads import Status, Thread
from standfast.graph import Ledger, Picture, Result, Timeline, chart, picture_of
from standfast.graph.drives import Drive, Drives, Span, drives_of
from standfast.graph.history import Diff, History, HistoryEntry
from standfast.graph.pictures.diagram import Mark
from standfast.graph.pictures.faces import face_of
from standfast.graph.pictures.place import place_of
from standfast.graph.pictures.scale import lasting, scale_of
from standfast.graph.retention import Pruned
from standfast.graph.rows import COLUMNS, Rows

HOSTILE = "</pre><script src='https://evil.example'>x</script><img src=http://evil.example onerror=x>\u202e"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
VOID = {"br", "hr", "path", "rect", "circle", "line", "use"}


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def thread(**other: Any) -> Thread:
    known = Thread(
        id=HOSTILE,
        uuid="0",
        tenant="default",
        graph=HOSTILE,
        version=HOSTILE,
        fingerprint="f",
        run_id="r",
        status=Status.WAITING,
        reason=HOSTILE,
        worker=HOSTILE,
        due=False,
        crashes=0,
        created_at=at(0),
        updated_at=at(9),
    )
    return replace(known, **other)


APPROVAL = Approval(
    id="apr-1",
    thread_id=HOSTILE,
    tenant="default",
    run_id="r",
    operation_id="op",
    operation=HOSTILE,
    operation_version="1",
    round=1,
    state="open",
    digest="d",
    policy_version="1",
    arguments={HOSTILE: HOSTILE, "list": [HOSTILE]},
    proposed={},
    description=HOSTILE,
    failed_checks=(HOSTILE,),
    requested_by=HOSTILE,
    requested_at=at(4),
    expires_at=at(1000),
)
OPERATION = Operation(
    id="op",
    run_id="r",
    kind="tool",
    name=HOSTILE,
    namespace="",
    turn=0,
    index=0,
    effect="read",
    digest="d",
    state="succeeded",
    arguments={"a": HOSTILE},
    result=HOSTILE,
    failure_class=None,
    failure_message=None,
    attempts=2,
    next_attempt_at=None,
    created_at=at(1),
    updated_at=at(3),
)
ATTEMPTS = [
    Attempt("op", 1, HOSTILE, "abandoned", at(1), None, None, HOSTILE, None),
    Attempt("op", 2, HOSTILE, "succeeded", at(2), at(3), None, None, None),
]
TOLD = Drives(
    [Drive("r", 1, at(0), at(1), "died"), Drive("r", 2, at(2), at(4), "waited")],
    [Span("r", 1, ("work",), "a", at(0), at(1)), Span("r", 2, (HOSTILE,), "b", at(2), None)],
)
TIMELINE = Timeline(thread(), [], [], [OPERATION], {"op": ATTEMPTS}, [APPROVAL], [], told=TOLD)
VALUES = {
    "thread": thread(),
    "approval": APPROVAL,
    "result": Result(HOSTILE, "r", Status.WAITING, outcome={"answer": HOSTILE}, approvals=(APPROVAL,), reason=HOSTILE),
    "ledger": Ledger(HOSTILE, [OPERATION], {"op": ATTEMPTS}),
    "timeline": TIMELINE,
    "history": History([HistoryEntry("1f0", None, 3, at(1), "loop", "r", {HOSTILE: 2}, (HOSTILE,))]),
    "diff": Diff("1f0", "1f1", [Change(HOSTILE, HOSTILE, [HOSTILE])], (HOSTILE,), ()),
    "pruned": Pruned(True, Counter({(HOSTILE, "failed"): 2}), Counter({"family": 1}), 3, 4, 5),
    "threads": Rows(Thread, [thread(), thread(status=Status.RUNNING)]),
    "approvals": Rows(Approval, [APPROVAL]),
    "waits": Rows(OpenWait, [OpenWait(HOSTILE, "w", "r", HOSTILE, "1", "event", HOSTILE, HOSTILE, None, at(1), None)]),
    "entries": Rows(Entry, [Entry(HOSTILE, 1, {"kind": "decision", "by": HOSTILE, "at": HOSTILE}, "", "")]),
    "limits": Rows(LimitRow, [LimitRow(Limit("model:all", 2, 10, 60.0, 3), 1, at(1), HOSTILE)]),
    "picture": Picture(HOSTILE, [("a",), ("b", "c")], [(("a",), ("b",), True)], {("a",): Mark(2, "waiting")}, HOSTILE),
}


class Reader(HTMLParser):
    """Elements, attributes and text, and whether all that was opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", VALUES)
def test_a_display_is_whole_escaped_and_asks_nobody_for_anything(name: str) -> None:
    value: Any = VALUES[name]
    read = Reader(value._repr_html_())
    assert [] == read.open
    assert not {"script", "img", "link", "iframe", "object", "embed", "base", "form"} & set(read.tags)
    for attribute, given in read.attributes:
        assert not attribute.startswith("on"), attribute
        if attribute in ("src", "href", "xlink:href"):
            assert (given or "").startswith("#"), given
        elif "url(" in (given or ""):
            assert re.fullmatch(r"url\(#[\w-]+\)", given or ""), given
    style = value._repr_html_().split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "evil.example" in read.text
    assert "\u202e" not in read.text


@pytest.mark.parametrize("name", VALUES)
def test_a_display_can_be_read_as_text_too(name: str) -> None:
    text = repr(VALUES[name])
    assert text.startswith("<")
    assert text.endswith(">")
    assert len(text) < 3000


@pytest.mark.parametrize("name", VALUES)
def test_colours_are_those_of_the_page_light_and_dark(name: str) -> None:
    value: Any = VALUES[name]
    sheet, body = value._repr_html_().split("</style>", 1)
    assert "light-dark(" in sheet
    assert '[data-jp-theme-light="false"]' in sheet
    assert [] == re.findall(r"#[0-9a-f]{6}\b", body)


@pytest.mark.parametrize("kind", COLUMNS)
def test_an_empty_list_says_what_there_is_none_of(kind: type) -> None:
    none: Rows[Any] = Rows(kind, [])
    assert f"<No {COLUMNS[kind].nouns}>" == repr(none)
    assert f"No {COLUMNS[kind].nouns}" in Reader(none._repr_html_() or "").text
    assert [] == none


def test_a_list_of_many_shows_the_first_and_how_many_more_there_are() -> None:
    many = Rows(Thread, [thread(id=f"t-{number}") for number in range(1000)])
    assert "and 800 more" in Reader(many._repr_html_() or "").text
    assert repr(many).endswith("and 950 more>")


def test_what_people_decided_one_after_the_other_is_said_in_lines_of_its_own() -> None:
    pytest.importorskip("matplotlib")
    first = replace(
        APPROVAL, operation="refund", state="edited", decided_by="ann", requested_at=at(1), decided_at=at(2)
    )
    second = replace(first, state="approved", decided_by="bob", requested_at=at(2), decided_at=at(3))
    [axes] = chart(replace(TIMELINE, approvals=[first, second])).axes
    heights = [
        text.get_position()[1] for text in axes.texts if "by ann" in text.get_text() or "by bob" in text.get_text()
    ]
    assert 2 == len(set(heights))


def test_without_matplotlib_a_timeline_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    shown = face_of(TIMELINE)
    assert shown is not None
    assert "<svg" not in shown
    assert "died" in Reader(shown).text


def test_a_value_without_a_face_has_none() -> None:
    assert face_of(object()) is None


# -- the graph


class State(TypedDict, total=False):
    n: int


def nested() -> StateGraph[State, None, State, State]:
    inner = StateGraph(State)
    inner.add_node("first", lambda state: state)
    inner.add_node("second", lambda state: state)
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    inner.add_edge("second", END)
    outer = StateGraph(State)
    outer.add_node("before", lambda state: state)
    outer.add_node("inside", inner.compile())
    outer.add_edge(START, "before")
    outer.add_conditional_edges("before", lambda _: END, ["before", "inside", END])
    outer.add_edge("inside", END)
    return outer


def test_the_picture_of_a_graph_has_its_nodes_its_lines_and_its_nested_graphs() -> None:
    picture = picture_of(nested())
    assert {("before",), ("inside", "first"), ("inside", "second")} <= set(picture.nodes)
    assert (("before",), ("inside",), True) in picture.lines
    assert (("before",), ("before",), True) in picture.lines
    assert (("inside", "first"), ("inside", "second"), False) in picture.lines
    root = ET.fromstring(picture.svg)
    assert {"before", "inside", "first", "second"} <= {one.text for one in root.iter("text")}


def test_a_mark_is_seen_and_can_be_read() -> None:
    picture = picture_of(nested(), marks={("before",): Mark(3), ("inside", "second"): Mark(0, "waiting")})
    assert {"\N{MULTIPLICATION SIGN}3", "waiting"} <= {one.text for one in ET.fromstring(picture.svg).iter("text")}
    assert "before (3 times)" in repr(picture)
    assert "inside/second (waiting)" in repr(picture)


# -- drives


def event(seq: int, epoch: int, kind: str, when: float, path: tuple[str, ...] = (), **data: Any) -> RunEvent:
    return RunEvent(seq, epoch, kind, path, data, at(when))


KILLED = [
    event(1, 1, "run_begin", 0),
    event(2, 1, "step_begin", 1, ("a",), task="1"),
    event(3, 1, "step_end", 2, ("a",), task="1", seconds=0.5),
    event(4, 1, "step_begin", 2, ("b",), task="2"),
    event(5, 3, "run_resume", 20),
    event(6, 3, "step_begin", 20, ("b",), task="2"),
    event(7, 3, "run_wait", 21),
]


def test_a_drive_that_did_not_say_how_it_ended_has_died_when_another_one_follows() -> None:
    told = drives_of("r", KILLED)
    assert [(1, "died", at(2)), (3, "waited", at(21))] == [(one.epoch, one.end, one.until) for one in told.drives]
    assert [("a", at(1), at(2)), ("b", at(2), None), ("b", at(20), None)] == [
        (one.path[0], one.since, one.until) for one in told.spans
    ]


def test_a_drive_that_is_the_last_one_and_has_not_said_how_it_ended_is_open() -> None:
    assert ["open"] == [one.end for one in drives_of("r", KILLED[:4]).drives]


def test_the_place_of_a_killed_thread_is_where_it_goes_on() -> None:
    timeline = replace(TIMELINE, told=drives_of("r", KILLED[:4]), thread=thread(status=Status.QUEUED))
    assert {("a",): Mark(1), ("b",): Mark(0, "next")} == place_of(timeline)


# -- time


def test_long_waits_are_cut_short_and_say_how_long_they_were() -> None:
    scale = scale_of([(at(0), at(10)), (at(10_000), at(10_010))], at(10_010))
    (gap,) = scale.gaps
    assert timedelta(seconds=9990) == gap.lasted
    assert 10 < gap.until < 20
    assert [0.0, 5.0, 10.0] == [scale.place(at(seconds)) for seconds in (-1, 5, 10)]
    assert 5.0 == pytest.approx(scale.place(at(10_005)) - gap.until)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.25, "250 ms"), (2, "2 s"), (90, "1.5 min"), (7200, "2 h"), (3 * 86400, "3 d")]
)
def test_a_span_of_time_is_said_in_its_largest_unit(seconds: float, said: str) -> None:
    assert said == lasting(timedelta(seconds=seconds))
