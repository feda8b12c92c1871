"""The layout of graphs: whatever the graph, boxes stand apart and each line runs from its source to its target."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.graph.pictures.layout import Box, Line, lay_out

NAMES = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=9, unique=True)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, tuple[float, float]], list[Line]]:
    names = draw(NAMES)
    sizes = {name: (draw(st.floats(8, 400)), draw(st.floats(8, 300))) for name in names}
    lines = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=20))
    return sizes, lines


def apart(first: Box, second: Box) -> bool:
    return (
        first.x + first.width <= second.x
        or second.x + second.width <= first.x
        or first.y + first.height <= second.y + 1e-6
        or second.y + second.height <= first.y + 1e-6
    )


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_boxes_stand_apart_inside_the_picture(graph: tuple[dict[str, tuple[float, float]], list[Line]]) -> None:
    layout = lay_out(*graph)
    for first, second in combinations(layout.boxes, 2):
        assert apart(layout.boxes[first], layout.boxes[second]), (first, second)
    for box in layout.boxes.values():
        assert -1e-6 <= box.x <= box.x + box.width <= layout.width + 1e-6
        assert -1e-6 <= box.y <= box.y + box.height <= layout.height + 1e-6


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_each_line_runs_from_its_source_to_its_target(
    graph: tuple[dict[str, tuple[float, float]], list[Line]],
) -> None:
    sizes, lines = graph
    layout = lay_out(sizes, lines)
    assert {one for one in lines if one[0] != one[1]} == set(layout.lines)
    for (source, target), points in layout.lines.items():
        for name, (x, y) in ((source, points[0]), (target, points[-1])):
            box = layout.boxes[name]
            assert x in (box.x, box.x + box.width)
            assert box.y <= y + 1e-6
            assert y <= box.y + box.height + 1e-6


def test_what_follows_stands_to_the_right_and_what_leads_back_does_not_move_it() -> None:
    sizes = dict.fromkeys("abc", (50.0, 30.0))
    layout = lay_out(sizes, [("a", "b"), ("b", "c"), ("c", "a")])
    assert layout.boxes["a"].x < layout.boxes["b"].x < layout.boxes["c"].x
    assert layout.lines["c", "a"][0][0] > layout.lines["c", "a"][-1][0]


def test_the_same_graph_gets_the_same_layout() -> None:
    sizes = {name: (40.0 + 3 * at, 20.0) for at, name in enumerate("abcdefg")}
    lines = [("a", one) for one in "bcdef"] + [(one, "g") for one in "bcdef"] + [("g", "a")]
    assert lay_out(sizes, lines) == lay_out(dict(sizes), list(lines))
