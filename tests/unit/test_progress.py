"""What a line of progress is called: an operation by what it does, every other node by its name."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.graph import StreamEvent
from standfast.graph.cli.progress import Progress

CALL = {"name": "order_book", "args": {"title": "Middlemarch"}}


def step(kind: str, node: str, **data: Any) -> StreamEvent:
    return StreamEvent(seq=1, epoch=1, kind=kind, path=(node,), data={"task": node, **data}, at=None)


def test_a_node_after_the_operation_is_not_called_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The call stays in the state of a graph of one's own, so every later node is given it too."""
    with Progress() as progress:
        for node in ("approval", "operate", "delivery"):
            progress(step("step_begin", node, **CALL))
            progress(step("step_end", node, seconds=0.0))
    lines = [line.split(" s  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert ["approval", "order_book: Middlemarch", "delivery"] == lines


def test_an_operation_that_did_not_succeed_does_not_look_as_if_it_had(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        for state in ("failed", "succeeded"):
            progress(step("step_begin", "operate", **CALL))
            progress(step("operation_end", "operate", name="order_book", state=state))
            progress(step("step_end", "operate", seconds=0.0))
    lines = [line.split(" s  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert ["order_book: Middlemarch: failed", "order_book: Middlemarch"] == lines
