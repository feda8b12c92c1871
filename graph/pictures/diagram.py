"""A graph as an inline SVG, drawn here, with where a thread stands in it.

Invariant: nested graphs are boxes in boxes; a line between two rooms is drawn in the innermost box that holds both its
ends. Colours are those of the page's style sheet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from langgraph.graph.state import CompiledStateGraph, StateGraph

from standfast.checkpoint.shown import Shown
from standfast.graph.pictures.layout import Layout, Point, lay_out
from standfast.graph.pictures.markup import Html, element, joined

Path = tuple[str, ...]

_LETTER: Final = 7.4  # pixels that a letter takes
_ROW: Final = 32.0
_DOT: Final = 12.0
_PADDING: Final = 16.0
_TITLE: Final = 20.0
_MARGIN: Final = 12.0
_ENDS: Final = {"__start__", "__end__"}


@dataclass(frozen=True)
class Mark:
    """What a thread has to do with a node: how often it has finished it, and how it stands there now."""

    done: int = 0
    now: str = ""  # "waiting", "running", "next" or nothing


@dataclass(frozen=True)
class Picture(Shown):
    """A graph to look at, and a thread's place in it. `svg` is the picture alone; `lines` are (from, to, chosen)."""

    name: str
    nodes: Sequence[Path]
    lines: Sequence[tuple[Path, Path, bool]]
    marks: Mapping[Path, Mark] = field(default_factory=dict)
    thread_id: str | None = None

    @property
    def svg(self) -> str:
        """The picture, for a page that has the style sheet of our displays."""
        return _svg(self)

    def __repr__(self) -> str:
        ways: dict[Path, list[str]] = defaultdict(list)
        for source, target, _ in self.lines:
            ways[source].append("end" if target[-1] == "__end__" else "/".join(target))
        of = f", thread {self.thread_id!r}" if self.thread_id else ""
        told = []
        for path in self.nodes:
            if path[-1] == "__end__":
                continue
            mark = self.marks.get(path, Mark())
            how = [f"{mark.done} times"] * (mark.done > 1) + ["once"] * (mark.done == 1) + [mark.now] * bool(mark.now)
            line = "/".join(path).replace("__start__", "start") + (f" ({', '.join(how)})" if how else "")
            told.append(f"  {line} -> {', '.join(ways[path])}" if ways[path] else f"  {line}")
        return "\n".join([f"<Picture of graph {self.name!r}{of}", *told]) + ">"


def picture_of(
    graph: StateGraph[Any, Any, Any, Any] | CompiledStateGraph[Any, Any, Any, Any],
    *,
    name: str = "graph",
    marks: Mapping[Path, Mark] | None = None,
    thread_id: str | None = None,
) -> Picture:
    """The picture of any graph, compiled or not."""
    compiled = graph if isinstance(graph, CompiledStateGraph) else graph.compile()
    shape = compiled.get_graph(xray=True)
    lines = []
    for one in shape.edges:
        source, target = _path(one.source), _path(one.target)
        at = _common(source, target)
        lines.append((source[: at + 1], target[: at + 1], one.conditional))
    return Picture(name, [_path(one) for one in shape.nodes], list(dict.fromkeys(lines)), marks or {}, thread_id)


def _path(identifier: str) -> Path:
    return tuple(identifier.split(":"))


def _common(source: Path, target: Path) -> int:
    at = 0
    while at < min(len(source), len(target)) - 1 and source[at] == target[at]:
        at += 1
    return at


# -- drawing


@dataclass(frozen=True)
class _Room:
    """What stands at one level: its layout, and the rooms in it."""

    layout: Layout
    inner: Mapping[str, _Room]


def _svg(picture: Picture) -> Html:
    room = _room(picture, ())
    width, height = room.layout.width + 2 * _MARGIN, room.layout.height + 2 * _MARGIN
    head = element(
        "marker",
        element("path", d="M0,0.6 L7,4 L0,7.4 z", fill="var(--dim)"),
        id="standfast-arrow",
        markerWidth=8,
        markerHeight=8,
        refX=7,
        refY=4,
        orient="auto",
    )
    return element(
        "svg",
        element("title", f"The graph {picture.name}"),
        element("defs", head),
        element("g", _drawn(picture, room, ()), transform=f"translate({_MARGIN:g},{_MARGIN:g})"),
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="img",
        style="font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif",
    )


def _room(picture: Picture, at: Path) -> _Room:
    below = [path[len(at) :] for path in picture.nodes if path[: len(at)] == at and len(path) > len(at)]
    names = list(dict.fromkeys(path[0] for path in below))
    inner = {path[0]: _room(picture, (*at, path[0])) for path in below if len(path) > 1}
    sizes = {}
    for name in names:
        if name in _ENDS:
            sizes[name] = (_DOT, _DOT)
        elif name in inner:
            layout = inner[name].layout
            sizes[name] = layout.width + 2 * _PADDING, layout.height + 2 * _PADDING + _TITLE
        else:
            sizes[name] = (max(64.0, len(name) * _LETTER + 24), _ROW)
    return _Room(lay_out(sizes, ((source[-1], target[-1]) for source, target, _ in _at(picture, at))), inner)


def _at(picture: Picture, at: Path) -> Iterable[tuple[Path, Path, bool]]:
    return (one for one in picture.lines if one[0][:-1] == at)


def _drawn(picture: Picture, room: _Room, at: Path) -> Html:
    pieces: list[Html] = []
    for source, target, chosen in _at(picture, at):
        if source == target:
            pieces.append(_loop(room, source[-1]))
        else:
            pieces.append(_line(room.layout.lines[source[-1], target[-1]], chosen=chosen))
    for name, box in room.layout.boxes.items():
        path = (*at, name)
        mark = picture.marks.get(path, Mark())
        parts = [_frame(room, name, mark)]
        if name in room.inner:
            inside = _drawn(picture, room.inner[name], path)
            parts.append(element("g", inside, transform=f"translate({_PADDING:g},{_PADDING + _TITLE:g})"))
        pieces.append(element("g", *parts, transform=f"translate({box.x:.1f},{box.y:.1f})"))
    return joined(pieces)


def _frame(room: _Room, name: str, mark: Mark) -> Html:
    box = room.layout.boxes[name]
    if name in _ENDS:
        return element(
            "circle",
            cx=_DOT / 2,
            cy=_DOT / 2,
            r=_DOT / 2 - 1,
            fill="var(--dim)" if name == "__start__" else "var(--paper)",
            stroke="var(--dim)",
            stroke_width=2,
        )
    nested = name in room.inner
    colour = {"waiting": "amber", "running": "blue", "next": "violet"}.get(mark.now) or ("green" if mark.done else None)
    outline = f"var(--{colour})" if colour else "var(--line)"
    pieces = [
        element(
            "rect",
            width=f"{box.width:g}",
            height=f"{box.height:g}",
            rx=10 if nested else 6,
            fill="none" if nested else "var(--shade)",
            stroke=outline,
            stroke_width=2.5 if mark.now and not nested else 1.3,
            stroke_dasharray="5 3" if nested else None,
        ),
        element(
            "text",
            name,
            x=f"{_PADDING:g}" if nested else f"{box.width / 2:g}",
            y="17" if nested else f"{box.height / 2 + 4:g}",
            text_anchor="start" if nested else "middle",
            fill="var(--dim)" if nested else "var(--ink)",
            font_weight="600" if mark.now and not nested else None,
        ),
    ]
    badge = {0: "", 1: "\N{CHECK MARK}"}.get(mark.done, f"\N{MULTIPLICATION SIGN}{mark.done}")
    if mark.now and not nested:
        badge = mark.now
    if badge:
        pieces.append(_badge(badge, box.width, colour or "dim", above=not nested))
    return joined(pieces)


def _badge(text: str, right: float, colour: str, *, above: bool) -> Html:
    width = len(text) * 6.2 + 10
    y = -8 if above else 4
    return element(
        "g",
        element("rect", width=f"{width:g}", height=15, rx=7.5, fill=f"var(--{colour})"),
        element("text", text, x=f"{width / 2:g}", y=11, text_anchor="middle", font_size=10, fill="var(--paper)"),
        transform=f"translate({right - width + (6 if above else -8):g},{y})",
    )


def _loop(room: _Room, name: str) -> Html:
    box = room.layout.boxes[name]
    way = f"M{box.x + 26:.1f},{box.y:.1f} c8,-18 -24,-18 -16,0"
    return _stroke(way, dashed=True)


def _line(points: Sequence[Point], *, chosen: bool) -> Html:
    way = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (x + to_x) / 2
        way.append(f"C{middle:.1f},{y:.1f} {middle:.1f},{to_y:.1f} {to_x:.1f},{to_y:.1f}")
    return _stroke(" ".join(way), dashed=chosen)


def _stroke(way: str, *, dashed: bool) -> Html:
    return element(
        "path",
        d=way,
        fill="none",
        stroke="var(--dim)",
        stroke_width=1.2,
        stroke_dasharray="4 3" if dashed else None,
        marker_end="url(#standfast-arrow)",
    )
