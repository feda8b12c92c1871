"""A dispatcher that dies between sending and recording: what it sent is sent again with the same id, never lost."""

from __future__ import annotations

import base64
import signal
from datetime import timedelta
from typing import TypedDict

from langgraph.graph import END, START, StateGraph

from standfast.graph import LogChannel, Runtime, notify
from tests.conftest import Clock
from tests.crash.support.processes import Nursery
from tests.servers.process import ServerProcess

SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
CLAIM = timedelta(seconds=30)


class State(TypedDict, total=False):
    count: int


def say(state: State) -> State:
    for number in range(state["count"]):
        notify("said", {"number": number}, key=f"key-{number % 2}")
    return {}


def test_a_message_whose_dispatcher_died_before_recording_it_is_sent_again_with_the_same_id(
    nursery: Nursery, database_url: str, clock: Clock, reports: ServerProcess
) -> None:
    graph = StateGraph(State)
    graph.add_node("say", say)
    graph.add_edge(START, "say")
    graph.add_edge("say", END)
    with Runtime(graph, database_url=database_url, channels=[LogChannel("hook", topics=["said"])]) as runtime:
        runtime.invoke({"count": 6}, thread_id="t")
        order = {"url": database_url, "scripted": True, "to": f"{reports.url}/reports", "secret": SECRET}
        before = len(reports.requests())
        kills = 0
        for _ in range(30):
            killed = nursery.run("dispatch", **order, kill=["outbox.sent", 2 if kills % 2 else 1])
            kills += killed.signal == signal.SIGKILL
            clock.move(CLAIM)
            if not runtime.deliveries(state="pending"):
                break
            nursery.run("dispatch", **order)
            clock.move(CLAIM)
        left = runtime.deliveries(state="pending")

    sent = [(one["body"]["data"]["number"], one["headers"]["webhook-id"]) for one in reports.requests()[before:]]
    assert kills >= 2
    assert [] == left
    assert set(range(6)) == {number for number, _ in sent}
    assert 6 == len({identifier for _, identifier in sent}), "each message has one id"
    assert len(sent) > 6, "what was sent before a kill was sent again"
    for key in (0, 1):
        firsts = list(dict.fromkeys(number for number, _ in sent if number % 2 == key))
        assert sorted(firsts) == firsts, "each key in its order"
