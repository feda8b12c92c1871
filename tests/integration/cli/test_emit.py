"""`standfast emit`, and what a command says of a thread that waits for an event."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

GRAPH = """
from typing import TypedDict
from langgraph.graph import END, START, StateGraph
from standfast.graph import wait_for_event

class State(TypedDict, total=False):
    text: str
    paid: object

async def wait(state):
    paid = await wait_for_event("paid", match={"order": 7})
    return {"paid": paid.payload}

graph = StateGraph(State)
graph.add_node("wait", wait)
graph.add_edge(START, "wait")
graph.add_edge("wait", END)
"""


@pytest.fixture
def waiting(cli: Callable[..., Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A thread `t` that waits for the event `paid` of order 7."""
    (tmp_path / "paying.py").write_text(GRAPH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    done = cli("run", json.dumps({"text": "a"}), "--graph", "paying:graph", "--thread", "t")
    assert 3 == done.code
    return done


def test_a_command_says_which_event_a_thread_waits_for_and_how_to_emit_it(cli: Any, waiting: Any) -> None:
    assert "Waiting for event 'paid' with {'order': 7}, at wait." in waiting.out
    assert """emit paid [JSON] --match '{"order": 7}' --id ID""" in waiting.out
    shown = cli("resume", "t", "--graph", "paying:graph", "--json")
    assert [("event", "paid", {"order": 7})] == [(w["kind"], w["name"], w["match"]) for w in shown.json["waits"]]


def test_an_event_ends_the_wait_that_it_matches_once(cli: Any, waiting: Any) -> None:
    event = ("emit", "paid", '{"by": "card"}', "--id", "payment-1")
    other = cli("emit", "paid", "--match", '{"order": 8}', "--id", "payment-0")
    assert (0, "Event 'paid' (payment-0) is kept; it ended 0 waits.") == (other.code, other.sentence)
    ended = cli(*event, "--match", '{"order": 7}')
    assert "Event 'paid' (payment-1) is kept; it ended 1 wait." == ended.sentence
    again = cli(*event, "--match", '{"order": 7}', "--json")
    assert {"id": "payment-1", "name": "paid", "waits_ended": None} == again.json
    done = cli("resume", "t", "--graph", "paying:graph", "--json")
    assert 0 == done.code
    conflict = cli(*event)
    assert 2 == conflict.code
    assert "payment-1" in conflict.sentence


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("paid", "card", "--id", "1"), "the payload is not JSON"),
        (("paid", "--match", "{", "--id", "1"), "--match is not JSON"),
        (("paid", "--ttl", "soon", "--id", "1"), "a time is a number"),
        (("", "--id", "1"), "an event's name"),
    ],
)
def test_an_event_that_is_none_is_refused(cli: Any, arguments: tuple[str, ...], said: str) -> None:
    refused = cli("emit", *arguments)
    assert 2 == refused.code
    assert said in refused.sentence
