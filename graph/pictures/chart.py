"""A thread's timeline as a chart: its drives, waits, people, steps, attempts and tokens, with what died marked.

Invariant: the chart shows what is recorded and nothing else. Long waits are cut short, and say how long they were.
matplotlib (the extra `notebooks`) is loaded when a chart is drawn, and draws no window and asks no network.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage

from standfast.graph.pictures.markup import COLOURS, Html
from standfast.graph.pictures.scale import Scale, lasting, scale_of
from standfast.graph.timeline import Timeline
from standfast.graph.visible import plain, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH: Final = 9.6  # inches
_ROW: Final = 0.30
_LANE: Final = 0.35  # of a row, between two lanes of it
_LABELLED_LANE: Final = 0.6
_MOST_LANES: Final = 8  # of what happens side by side in one row
_ATTEMPT: Final = {"succeeded": "green", "failed": "red", "abandoned": "red", "waiting": "amber", "executing": "blue"}
_DRIVE: Final = {"waited": "blue", "ended": "blue", "left": "blue", "died": "red", "open": "blue"}


@dataclass(frozen=True)
class _Bar:
    since: datetime
    until: datetime
    colour: str
    text: str = ""
    mark: str = ""  # what stands at its end
    inside: str = ""  # what stands in it, if there is room


@dataclass
class _Row:
    name: str
    bars: list[_Bar] = field(default_factory=list)


def chart(timeline: Timeline, *, dark: bool = False) -> Figure:
    """The chart as matplotlib's figure, to be saved: `chart(timeline).savefig("thread.png")`.

    Raises ImportError without the extra `notebooks`.
    """
    return _drawn(timeline, {name: pair[dark] for name, pair in COLOURS.items()})


def chart_svg(timeline: Timeline) -> Html:
    """The chart for a page that has the style sheet of our displays, whose colours it takes."""
    from matplotlib import rc_context

    colours = {name: pair[0] for name, pair in COLOURS.items()}
    written = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": timeline.thread.id}):
        figure = _drawn(timeline, colours)
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = written.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"font: ([^;\"]*?)'[^;\"]*", r"font: \1system-ui,'DejaVu Sans',sans-serif", svg)
    for name, colour in colours.items():
        svg = svg.replace(colour, f"var(--{name})")
    return Html(svg)


# -- what there is to draw


def _rows(timeline: Timeline) -> list[_Row]:
    end = _end(timeline)
    rows = [_drives(timeline), *_waits(timeline, end)]
    steps: dict[str, _Row] = {}
    for span in timeline.told.spans:
        if len(span.path) == 1:
            row = steps.setdefault(span.path[0], _Row(span.path[0]))
            colour = "green" if span.until else "dim"
            row.bars.append(_Bar(span.since, span.until or _drive_end(timeline, span.epoch, end), colour))
    rows += steps.values()
    attempts: dict[str, _Row] = {}
    for one in timeline.operations:
        row = attempts.setdefault(one.name, _Row(f"{one.name}()" if one.kind != "model" else f"model {one.name}"))
        tries = timeline.attempts.get(one.id, ())
        for attempt in tries:
            mark = "x" if attempt.state in ("failed", "abandoned") else ""
            text = str(attempt.number) if len(tries) > 1 else ""
            until = attempt.ended_at or end
            if attempt.ended_at is None or attempt.state == "abandoned":  # it is given up only when it is taken over
                until = _heard_of(timeline, attempt.started_at, until)
            row.bars.append(_Bar(attempt.started_at, until, _ATTEMPT.get(attempt.state, "dim"), text, mark))
    return [row for row in [*rows, *attempts.values()] if row.bars]


def _drives(timeline: Timeline) -> _Row:
    row = _Row("drives")
    took_over = False
    for number, drive in enumerate(timeline.told.drives, 1):
        inside = f"{number}, takes over" if took_over else str(number)
        took_over = drive.end == "died"
        colour, mark, text = _DRIVE[drive.end], "x" if took_over else "", "died" if took_over else ""
        row.bars.append(_Bar(drive.since, drive.until, colour, text, mark, inside))
    return row


def _waits(timeline: Timeline, end: datetime) -> list[_Row]:
    rows: dict[str, _Row] = {}
    for approval in timeline.approvals:
        row = rows.setdefault("people", _Row("people"))
        by = f" by {approval.decided_by}" if approval.decided_by else ""
        until = approval.decided_at or end
        text = f"{approval.operation}: {approval.state}{by}"
        row.bars.append(_Bar(approval.requested_at, until, "amber", text, "D" if approval.decided_at else ""))
    for wait in timeline.waits:
        if wait.kind == "approval":
            continue
        name = "people" if wait.kind == "question" else "waits"
        by = f", answered by {wait.answered_by}" if wait.answered_by else ""
        text = {"timer": "a time", "event": f"event {wait.name}"}.get(wait.kind, "question") + by
        until = end if wait.state == "open" else _next_drive(timeline, wait.opened_at, end)
        mark = "D" if wait.answered_by else ""
        rows.setdefault(name, _Row(name)).bars.append(_Bar(wait.opened_at, until, "amber", text, mark))
    return list(rows.values())


def _next_drive(timeline: Timeline, after: datetime, end: datetime) -> datetime:
    return min((one.since for one in timeline.told.drives if one.since > after), default=end)


def _heard_of(timeline: Timeline, started: datetime, until: datetime) -> datetime:
    """The last that was heard of the drive in which something started, if it died."""
    of = max((one for one in timeline.told.drives if one.since <= started), key=lambda one: one.since, default=None)
    return max(started, of.until) if of is not None and of.end == "died" else until


def _drive_end(timeline: Timeline, epoch: int, end: datetime) -> datetime:
    return max((one.until for one in timeline.told.drives if one.epoch == epoch), default=end)


def _end(timeline: Timeline) -> datetime:
    known = [timeline.thread.updated_at, *(one.until for one in timeline.told.drives)]
    known += [one.ended_at for one in timeline.runs if one.ended_at]
    known += [one.decided_at for one in timeline.approvals if one.decided_at]
    return max(known)


def _tokens(timeline: Timeline) -> list[tuple[datetime, int]]:
    total, told = 0, []
    for one in sorted(timeline.operations, key=lambda each: each.updated_at):
        usage = one.result.usage_metadata if isinstance(one.result, AIMessage) else None
        if usage:
            total += usage["total_tokens"]
            told.append((one.updated_at, total))
    return told


# -- drawing


def _drawn(timeline: Timeline, colours: dict[str, str]) -> Figure:
    from matplotlib.figure import Figure

    rows, end = _rows(timeline), _end(timeline)
    worked = [(one.since, one.until) for one in timeline.told.drives]
    worked += [(bar.since, bar.until) for row in rows for bar in row.bars if bar.colour != "amber"]
    scale = scale_of(worked, end)
    tokens = _tokens(timeline)
    lanes = [_lanes(row) for row in rows]
    steps = [_LABELLED_LANE if any(bar.text for bar in row.bars) else _LANE for row in rows]
    heights = [max(each, default=0) * step + 1 for each, step in zip(lanes, steps, strict=True)]
    height = _ROW * (sum(heights) + (2.5 if tokens else 0)) + 0.6
    figure = Figure(figsize=(_WIDTH, height))
    figure.set_facecolor(colours["paper"])
    axes = figure.add_axes((0.17, 0.28 / height, 0.81, (height - 0.48) / height))
    _prepare(axes, scale, sum(heights) + (2.5 if tokens else 0), colours)
    names, places, top = [], [], 0.0
    for row, assigned, step, size in zip(rows, lanes, steps, heights, strict=True):
        for bar, lane in zip(row.bars, assigned, strict=True):
            _draw_bar(axes, scale, bar, top + 0.5 + lane * step, colours)
        names.append(shortened(plain(row.name), 26))
        places.append(top + size / 2)
        top += size
    if tokens:
        counts = [(scale.place(at), total) for at, total in tokens]
        _draw_tokens(axes, scale, counts, top, colours)
        names.append("tokens")
        places.append(top + 1.4)
    axes.set_yticks(places, names, fontsize=9, color=colours["ink"])
    return figure


def _lanes(row: _Row) -> list[int]:
    """Which lane each bar of a row gets: those of one time stand below each other, and so do those with a label."""
    last = max((bar.until for bar in row.bars), default=datetime.max)
    ends: list[datetime] = []
    assigned = []
    for bar in sorted(row.bars, key=lambda one: one.since):
        free = next((at for at, until in enumerate(ends) if until <= bar.since), len(ends))
        lane = min(free, _MOST_LANES - 1)
        until = last if bar.text else bar.until  # a label may stand on either side of its bar
        if lane == len(ends):
            ends.append(until)
        else:
            ends[lane] = max(ends[lane], until)
        assigned.append(lane)
    row.bars.sort(key=lambda one: one.since)
    return assigned


def _prepare(axes: Axes, scale: Scale, height: float, colours: dict[str, str]) -> None:
    length = scale.places[-1] or 1.0
    axes.set_facecolor("none")
    axes.set_xlim(-0.01 * length, 1.01 * length)
    axes.set_ylim(height, 0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    for gap in scale.gaps:
        axes.axvspan(gap.since, gap.until, color=colours["shade"], zorder=0, linewidth=0)
        middle = (gap.since + gap.until) / 2
        text = f"{lasting(gap.lasted)} later"
        axes.text(middle, -0.15, text, ha="center", va="bottom", fontsize=8, color=colours["dim"])
    starts = [0.0, *(gap.until for gap in scale.gaps)]
    ends = [*(gap.since for gap in scale.gaps), length]
    ticks, labels = [], []
    for number, (since, until) in enumerate(zip(starts, ends, strict=True)):
        if until - since > 0.12 * length or not number:
            step = _round(max((until - since) / 4, length / 10))
            count = int((until - since) / step)
            ticks += [since + step * one for one in range(count + 1)]
            labels += [_seconds(step * one) if one else "0" for one in range(count + 1)]
    axes.set_xticks(ticks, labels, fontsize=8, color=colours["dim"])
    axes.grid(axis="x", color=colours["line"], linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)


def _draw_bar(axes: Axes, scale: Scale, bar: _Bar, y: float, colours: dict[str, str]) -> None:
    length = scale.places[-1] or 1.0
    since, until = scale.place(bar.since), scale.place(bar.until)
    width = max(until - since, 0.003 * length)
    colour = colours[bar.colour]
    axes.barh(y, width, left=since, height=0.56 if bar.inside else 0.3, color=colour, linewidth=0, zorder=3)
    fits = width > 0.011 * length * len(bar.inside)
    if bar.inside and fits:
        middle: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 8}
        axes.text(since + width / 2, y, bar.inside, color=colours["paper"], zorder=6, **middle)
    if bar.mark:
        marker: dict[str, Any] = {"x": {"marker": "X", "color": colours["red"]}, "D": {"marker": "D", "color": colour}}[
            bar.mark
        ]
        axes.plot([since + width], [y], markersize=7, markeredgecolor=colours["paper"], zorder=5, **marker)
    text = bar.text or ("" if fits else bar.inside)
    if text:
        right = since + width + 0.012 * length
        leftwards = right > 0.62 * length
        axes.text(
            since - 0.008 * length if leftwards else right,
            y,
            shortened(plain(text), 60),
            ha="right" if leftwards else "left",
            va="center_baseline",
            fontsize=8,
            color=colours["ink"],
            zorder=6,
        )


def _draw_tokens(
    axes: Axes, scale: Scale, steps: Sequence[tuple[float, int]], top: float, colours: dict[str, str]
) -> None:
    most = steps[-1][1] or 1
    xs = [0.0, *(place for place, _ in steps), scale.places[-1]]
    ys = [top + 2.3 - 1.7 * count / most for count in (0, *(total for _, total in steps), most)]
    axes.step(xs, ys, where="post", color=colours["violet"], linewidth=1.5, zorder=3)
    axes.text(xs[-1], ys[-1] - 0.15, f"{most:,}", ha="right", va="bottom", fontsize=8, color=colours["violet"])


def _round(value: float) -> float:
    size = 10.0 ** int(f"{value:e}".split("e")[1])
    return next((size * one for one in (1, 2, 5, 10) if size * one >= value), size * 10)


def _seconds(value: float) -> str:
    return f"+{value:g} s" if value < 120 else f"+{value / 60:g} min"
