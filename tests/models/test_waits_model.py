"""Waits and events against a simple model, over random orders of emitting, driving, failing and passing time."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from standfast.checkpoint import crashpoints
from standfast.graph import Runtime, all_of, event, first_of
from tests.conftest import Clock

pytestmark = pytest.mark.guarantee("G7")
NAMES = "abc"
POINTS = ("drive.parking", "drive.parked", "drive.resuming", "saver.committed", "lease.claimed")


@dataclass(frozen=True)
class Question:
    """What a thread waits for: the first or all of some events, each with a time-out in seconds or none."""

    quorum: Literal["first", "all"]
    waits: tuple[tuple[str, int | None], ...]


class State(TypedDict, total=False):
    plan: list[Any]
    got: Annotated[list[Any], operator.add]


async def node(state: State) -> dict[str, Any]:
    got = []
    for quorum, waits in state["plan"]:
        described = [event(name, timeout=timeout) for name, timeout in waits]
        ended = [await first_of(*described)] if quorum == "first" else await all_of(*described)
        got.append([(one.position, None if one.event is None else one.event.payload) for one in ended])
    return {"got": got}


@dataclass
class Asked:
    """An open question of a thread: when each of its waits times out, and how those that are over ended."""

    until: list[int | None]
    ended: dict[int, int | None] = field(default_factory=dict)


@dataclass
class ModelThread:
    plan: list[Question]
    got: list[list[tuple[int, int | None]]] = field(default_factory=list)
    asked: Asked | None = None
    received: set[int] = field(default_factory=set)

    @property
    def question(self) -> Question | None:
        return self.plan[len(self.got)] if len(self.got) < len(self.plan) else None

    def is_open(self, position: int) -> bool:
        assert self.asked is not None
        assert self.question is not None
        if position in self.asked.ended:
            return False
        return self.question.quorum == "all" or not self.asked.ended

    def end(self, position: int, payload: int | None) -> None:
        assert self.asked is not None
        self.asked.ended[position] = payload
        if payload is not None:
            self.received.add(payload)


class Model:
    """Payloads are the events' numbers, in the order of their emission."""

    def __init__(self) -> None:
        self.now = 0
        self.events: list[tuple[str, int]] = []
        self.threads: dict[str, ModelThread] = {}

    def emit(self, name: str) -> int:
        number = len(self.events) + 1
        self.events.append((name, self.now))
        woken = 0
        for thread in self.threads.values():
            if thread.asked is None or thread.question is None:
                continue
            for position, (wanted, _) in enumerate(thread.question.waits):
                until = thread.asked.until[position]
                if wanted == name and thread.is_open(position) and (until is None or until > self.now):
                    thread.end(position, number)
                    woken += 1
                    break
        return woken

    def drive(self, thread: ModelThread) -> None:
        while (question := thread.question) is not None:
            if thread.asked is None:
                thread.asked = Asked([None if timeout is None else self.now + timeout for _, timeout in question.waits])
                self._match(thread, question)
            late = [(until, one) for one, until in enumerate(thread.asked.until) if until is not None]
            for until, position in sorted(late):
                if until <= self.now and thread.is_open(position):
                    thread.end(position, None)
            if any(thread.is_open(position) for position in range(len(question.waits))):
                return
            thread.got.append(sorted(thread.asked.ended.items()))
            thread.asked = None

    def _match(self, thread: ModelThread, question: Question) -> None:
        for position, (wanted, _) in enumerate(question.waits):
            for number, (name, _) in enumerate(self.events, start=1):
                if thread.is_open(position) and name == wanted and number not in thread.received:
                    thread.end(position, number)


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    crashpoints.hook = None


def _fail_at(point: str, count: int) -> None:
    left = count

    def hook(reached: str) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if left == 0:
                raise ConnectionResetError(point)

    crashpoints.hook = hook


def _plan(dice: random.Random) -> list[Question]:
    return [
        Question(
            dice.choice(("first", "all")),
            tuple((dice.choice(NAMES), dice.choice((None, 0, 5, 20))) for _ in range(dice.randint(1, 3))),
        )
        for _ in range(3)
    ]


@pytest.mark.timeout(180)
async def test_waits_end_as_the_model_says_in_every_order(database_url: str, clock: Clock) -> None:
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    async with Runtime(graph, database_url=database_url) as runtime:
        for seed in range(12):
            await _play(runtime, clock, random.Random(seed), seed)


async def _play(runtime: Runtime, clock: Clock, dice: random.Random, seed: int) -> None:
    model = Model()
    names = {name: f"{seed}-{name}" for name in NAMES}
    story: list[Any] = []

    async def settle(thread: str) -> None:
        result = await runtime.aresume(thread)
        known = model.threads[thread]
        model.drive(known)
        expected = "waiting" if known.question is not None else "succeeded"
        assert expected == result.status, (seed, thread, story, known, result)
        if known.question is None:
            assert known.got == [[tuple(one) for one in ends] for ends in result.values["got"]], (seed, thread, story)

    for _ in range(40):
        action = dice.choice(("start", "emit", "emit", "drive", "drive", "time", "fail"))
        story.append(action)
        if action == "start" and len(model.threads) < 4:
            thread = f"{seed}-{len(model.threads)}"
            known = model.threads[thread] = ModelThread(_plan(dice))
            plan = [[one.quorum, [[names[name], timeout] for name, timeout in one.waits]] for one in known.plan]
            await runtime.ainvoke({"plan": plan}, thread_id=thread)
            await settle(thread)
        elif action == "emit":
            name = dice.choice(NAMES)
            number = len(model.events) + 1
            story.append(name)
            woken = await runtime.aemit(names[name], number, id=f"{seed}-{number}")
            assert model.emit(name) == woken, (seed, story)
            assert None is await runtime.aemit(names[name], number, id=f"{seed}-{number}")
        elif action == "time":
            seconds = dice.choice((1, 5, 30))
            model.now += seconds
            clock.move(timedelta(seconds=seconds))
        elif action in ("drive", "fail") and model.threads:
            thread = dice.choice(sorted(model.threads))
            story.append(thread)
            if action == "fail":
                point = dice.choice(POINTS)
                _fail_at(point, 1 if point == "lease.claimed" else dice.randint(1, 3))
                try:
                    await runtime.aresume(thread)
                except ConnectionResetError:
                    story.append(point)
                    if point == "lease.claimed":  # nobody lets go of it: it runs out, as after a death
                        clock.move(timedelta(seconds=16))
                        model.now += 16
                crashpoints.hook = None
            await settle(thread)
    for thread in model.threads:
        await settle(thread)
