"""Where the boxes of a graph stand and how its lines run: a layered layout, from left to right.

Sugiyama's method in its plainest form: lines that lead back are turned round, each box goes into the first layer after
all that lead to it, lines over several layers get a place in each of them, the layers are sorted by the mean of their
neighbours, and lines get ports of their own at both ends. Invariant: boxes never overlap, and the same graph always
gets the same layout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

Point = tuple[float, float]
Line = tuple[str, str]

_BETWEEN_LAYERS: Final = 56.0
_BETWEEN_BOXES: Final = 22.0
_LANE: Final = 12.0  # the height that a line takes in a layer that it passes
_SWEEPS: Final = 8


@dataclass(frozen=True)
class Box:
    """A box by its corner, in pixels; y grows downwards."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """Boxes by their names, and for each line the points that it runs through, from its source on."""

    width: float
    height: float
    boxes: Mapping[str, Box]
    lines: Mapping[Line, Sequence[Point]]


@dataclass
class _Cell:
    """A box, or a line's place, in its layer."""

    width: float
    height: float
    layer: int = 0
    y: float = 0.0
    ahead: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)


def lay_out(sizes: Mapping[str, tuple[float, float]], lines: Iterable[Line]) -> Layout:
    """Place boxes of these sizes. A line from a box to itself is left to whoever draws the box."""
    wanted = [one for one in dict.fromkeys(lines) if one[0] != one[1]]
    turned = _leading_back(list(sizes), wanted)
    forward = {line: (line[1], line[0]) if line in turned else line for line in wanted}
    cells = {name: _Cell(width, height) for name, (width, height) in sizes.items()}
    for name, layer in _layers(list(sizes), set(forward.values())).items():
        cells[name].layer = layer
    ways = {line: _way(cells, "\0".join(line), *forward[line]) for line in wanted}
    layers = _sorted_layers(cells)
    _spread(cells, layers)
    return _drawn(cells, layers, sizes, ways, turned)


def _leading_back(names: Sequence[str], lines: Sequence[Line]) -> set[Line]:
    targets: dict[str, list[str]] = defaultdict(list)
    for source, target in lines:
        targets[source].append(target)
    entered = {target for _, target in lines}
    found: set[Line] = set()
    done: set[str] = set()
    under_way: list[str] = []

    def visit(name: str) -> None:
        under_way.append(name)
        for target in targets[name]:
            if target in under_way:
                found.add((name, target))
            elif target not in done:
                visit(target)
        under_way.pop()
        done.add(name)

    for name in sorted(names, key=lambda one: one in entered):
        if name not in done:
            visit(name)
    return found


def _layers(names: Sequence[str], lines: set[Line]) -> dict[str, int]:
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in lines:
        sources[target].append(source)
    known: dict[str, int] = {}

    def layer(name: str) -> int:
        if name not in known:
            known[name] = 1 + max((layer(one) for one in sources[name]), default=-1)
        return known[name]

    return {name: layer(name) for name in names}


def _way(cells: dict[str, _Cell], name: str, source: str, target: str) -> list[str]:
    """Give the line a cell in each layer between, and tell all cells on it of their neighbours."""
    way = [source]
    for layer in range(cells[source].layer + 1, cells[target].layer):
        between = f"{name}\0{layer}"
        cells.setdefault(between, _Cell(0.0, _LANE, layer))
        way.append(between)
    way.append(target)
    for before, after in pairwise(way):
        cells[before].ahead.append(after)
        cells[after].behind.append(before)
    return way


def _sorted_layers(cells: Mapping[str, _Cell]) -> list[list[str]]:
    layers: list[list[str]] = [[] for _ in range(1 + max((one.layer for one in cells.values()), default=0))]
    for name, cell in cells.items():
        layers[cell.layer].append(name)
    place = {name: at for layer in layers for at, name in enumerate(layer)}
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            means = {}
            for name in layer:
                near = cells[name].behind if downwards else cells[name].ahead
                means[name] = sum(place[one] for one in near) / len(near) if near else float(place[name])
            layer.sort(key=lambda name: means[name])
            place.update({name: at for at, name in enumerate(layer)})
    return layers


def _spread(cells: Mapping[str, _Cell], layers: Sequence[Sequence[str]]) -> None:
    """Heights: each layer is moved towards its neighbours' middles, and pushed apart where cells would overlap."""
    for layer in layers:
        below = 0.0
        for name in layer:
            cells[name].y = below + cells[name].height / 2
            below += cells[name].height + _BETWEEN_BOXES
    for sweep in range(_SWEEPS * 2):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = []
            for name in layer:
                near = [*cells[name].behind, *cells[name].ahead]
                wanted.append(sum(cells[one].y for one in near) / len(near) if near else cells[name].y)
            _pushed_apart(cells, layer, wanted)


def _pushed_apart(cells: Mapping[str, _Cell], layer: Sequence[str], wanted: Sequence[float]) -> None:
    """The least squares answer: neighbours that would overlap become one block, which stands at its mean."""
    blocks: list[tuple[float, int]] = []  # the sum of its members' offsets-free heights, and their number
    offsets, below = [], 0.0
    for name in layer:
        offsets.append(below + cells[name].height / 2)
        below += cells[name].height + _BETWEEN_BOXES
    for offset, y in zip(offsets, wanted, strict=True):
        blocks.append((y - offset, 1))
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1] = (blocks[-1][0] + total, blocks[-1][1] + count)
    shifts = [total / count for total, count in blocks for _ in range(count)]
    for name, offset, shift in zip(layer, offsets, shifts, strict=True):
        cells[name].y = offset + shift


def _drawn(
    cells: Mapping[str, _Cell],
    layers: Sequence[Sequence[str]],
    sizes: Mapping[str, tuple[float, float]],
    ways: Mapping[Line, Sequence[str]],
    turned: set[Line],
) -> Layout:
    right, lefts, rights = 0.0, [], []
    for layer in layers:
        lefts.append(right)
        rights.append(right + max((cells[name].width for name in layer), default=0.0))
        right = rights[-1] + _BETWEEN_LAYERS
    top = min((one.y - one.height / 2 for one in cells.values()), default=0.0)
    bottom = max((one.y + one.height / 2 for one in cells.values()), default=0.0)
    boxes = {
        name: Box(lefts[cells[name].layer], cells[name].y - height / 2 - top, width, height)
        for name, (width, height) in sizes.items()
    }
    starts = _ports(cells, ways, leaving=True)
    ends = _ports(cells, ways, leaving=False)
    lines: dict[Line, Sequence[Point]] = {}
    for line, way in ways.items():
        source, target = boxes[way[0]], boxes[way[-1]]
        height = starts[line] - top
        # A line bends between the layers only: in its own layer a narrow box may stand beside a wide one.
        points = [(source.x + source.width, height)]
        if source.width < rights[cells[way[0]].layer] - source.x:
            points.append((rights[cells[way[0]].layer], height))
        for name in way[1:-1]:
            cell = cells[name]
            points += [(lefts[cell.layer], cell.y - top), (rights[cell.layer], cell.y - top)]
        points.append((target.x, ends[line] - top))
        lines[line] = points[::-1] if line in turned else points
    return Layout(rights[-1] if layers else 0.0, bottom - top, boxes, lines)


def _ports(cells: Mapping[str, _Cell], ways: Mapping[Line, Sequence[str]], *, leaving: bool) -> dict[Line, float]:
    """At which height each line touches its box: sorted by where it goes, so that lines do not cross at the box."""
    at: dict[str, list[Line]] = defaultdict(list)
    for line, way in ways.items():
        at[way[0] if leaving else way[-1]].append(line)
    heights: dict[Line, float] = {}
    for name, touching in at.items():
        touching.sort(key=lambda line: cells[ways[line][1] if leaving else ways[line][-2]].y)
        room = min(cells[name].height * 0.7, 16.0 * (len(touching) - 1))
        for number, line in enumerate(touching):
            share = number / (len(touching) - 1) - 0.5 if len(touching) > 1 else 0.0
            heights[line] = cells[name].y + room * share
    return heights
