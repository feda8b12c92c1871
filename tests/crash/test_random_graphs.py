"""Random graphs and random kills: the end is that of plain LangGraph, which nobody killed.

STANDFAST_RANDOM_GRAPHS=300 tries more of them.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import uuid
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from standfast.checkpoint import errors
from standfast.graph import Status
from standfast.graph.runtime import AsyncRuntime as Runtime
from tests.crash.support import random_graphs
from tests.crash.support.processes import Nursery

EXAMPLES: Final = int(os.environ.get("STANDFAST_RANDOM_GRAPHS", "12"))
GRAPH: Final = "tests.crash.support.random_graphs:from_environment"
YES: Final = "yes"
PATIENCE: Final = 120.0  # seconds for one graph
POINTS: Final = (
    "run.accepted",
    "lease.claimed",
    "saver.fenced",
    "saver.committed",
    "drive.parking",
    "drive.parked",
    "drive.resuming",
    "operation.begun",
    "operation.done",
    "operation.recorded",
    "drive.ending",
    "drive.ended",
)
EVERYWHERE: Final = ("saver.fenced", "saver.committed")  # points that a graph passes whatever its stages are

names = st.integers(0, 10**6).map(lambda number: f"n{number}")
leaves = st.one_of(
    st.tuples(st.sampled_from(["step", "durable", "ask", "event", "early_event"]), names).map(list),
    st.tuples(st.sampled_from(["loop", "fan", "asking_fan"]), names, st.integers(1, 3)).map(list),
)
stages = st.one_of(leaves, leaves, st.tuples(st.just("sub"), names, st.lists(leaves, min_size=1, max_size=2)).map(list))
plans = st.lists(stages, min_size=3, max_size=5)
kills = st.lists(
    st.tuples(st.sampled_from(POINTS + 6 * EVERYWHERE), st.sampled_from([1, 1, 2, 3])), min_size=3, max_size=4
)


def distinct(plan: random_graphs.Plan, prefix: str = "s") -> random_graphs.Plan:
    """The plan with names by place: what hypothesis makes alike stays apart."""
    named = []
    for number, (kind, _, *rest) in enumerate(plan):
        name = f"{prefix}{number}"
        named.append([kind, name, *([distinct(rest[0], f"{name}_")] if kind == "sub" else rest)])
    return named


async def undisturbed(plan: random_graphs.Plan) -> list[str]:
    """What plain LangGraph comes to."""
    graph = random_graphs.build(plan, plain=True).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    given: Any = {"done": []}
    while True:
        await graph.ainvoke(given, config)
        state = await graph.aget_state(config)
        if not state.next:
            return random_graphs.names(state.values["done"])
        given = Command(resume={one.id: YES for one in state.interrupts})


async def disturbed(
    nursery: Nursery, url: str, plan: random_graphs.Plan, kills: list[tuple[str, int]], died: list[int]
) -> list[str]:
    """What processes come to that are killed one after the other, and one that is not; `died` gets their signals."""
    thread = f"random-{uuid.uuid4().hex[:12]}"
    order: dict[str, Any] = {
        "url": url,
        "thread": thread,
        "graph": GRAPH,
        "env": {random_graphs.PLAN: json.dumps(plan)},
    }
    left = list(kills)
    async with Runtime(random_graphs.build(plan), database_url=url) as runtime, asyncio.timeout(PATIENCE):
        known = False
        for name in random_graphs.events(plan, "early_event"):
            await runtime.aemit(name, YES, id=f"{thread}:{name}", match=thread)
        while True:
            dying = {"kill": left[0]} if left else {}
            job = {"job": "resume"} if known else {"job": "ask", "request": {"done": []}}
            ended = await asyncio.to_thread(functools.partial(nursery.run, **order, **job, **dying))
            died.extend([ended.signal] if ended.signal else [])
            left = left[1:] if ended.signal else [*left[1:], *left[:1]]  # what it did not reach the next one may
            with suppress(errors.UnknownThread):
                with suppress(errors.InvalidRequest):
                    await runtime.arelease(thread)  # of whoever was killed
                known = True
                for wait in await runtime.aopen_waits(thread_id=thread):
                    if wait.kind == "event":
                        assert wait.name is not None
                        await runtime.aemit(wait.name, YES, id=f"{thread}:{wait.name}", match=thread)
                    else:
                        await runtime.aanswer(thread, {wait.id: YES})
                status = (await runtime.store.threads.get(thread)).status
                assert status is not Status.NEEDS_ATTENTION, f"it was killed {len(kills)} times, and is put aside"
                if status is Status.SUCCEEDED:
                    return random_graphs.names((await runtime.astate(thread)).values["done"])


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G2")
@pytest.mark.timeout(120 + EXAMPLES * 20)
def test_a_graph_that_is_killed_anywhere_ends_as_one_that_is_not(nursery: Nursery, shared_database_url: str) -> None:
    died: list[int] = []

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, print_blob=True)
    @given(plans, kills)
    def check(plan: random_graphs.Plan, kills: list[tuple[str, int]]) -> None:
        plan = distinct(plan)
        expected = asyncio.run(undisturbed(plan))
        assert expected == asyncio.run(disturbed(nursery, shared_database_url, plan, kills, died))

    check()
    print(f"{EXAMPLES} graphs, {len(died)} kills")
    assert len(died) >= EXAMPLES
