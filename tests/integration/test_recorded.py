"""What a node records in its middle is found again, by name, place and arguments."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, interrupt
from pydantic import BaseModel

from standfast.checkpoint import errors
from standfast.graph import Runtime, durable_step, now, random, uuid
from tests.conftest import Clock

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


class State(TypedDict, total=False):
    rounds: Annotated[list[Any], operator.add]
    answer: str


class Price(BaseModel):
    amount: Decimal


@pytest.fixture
def opened(database_url: str) -> Opened:
    """`async with opened(node) as runtime:` a graph of that one node, which may be called `rounds` times."""

    @asynccontextmanager
    async def opening(node: Any, *, rounds: int = 1, retry: RetryPolicy | None = None) -> AsyncIterator[Runtime]:
        def again(state: State) -> Literal["only", "__end__"]:
            return "only" if len(state.get("rounds", ())) < rounds and rounds > 1 else END

        graph = StateGraph(State)
        graph.add_node("only", node, retry_policy=retry)
        graph.add_edge(START, "only")
        graph.add_conditional_edges("only", again)
        async with Runtime(graph, database_url=database_url) as runtime:
            yield runtime

    return opening


@dataclass
class Counted:
    """A function that counts its calls."""

    calls: int = 0

    async def __call__(self, *args: Any) -> int:
        self.calls += 1
        return self.calls


@pytest.mark.guarantee("G2")
async def test_a_step_before_a_question_is_not_repeated_by_its_answer(opened: Opened) -> None:
    called: list[str] = []

    @durable_step
    async def fetch(name: str) -> str:
        called.append(name)
        return name.upper()

    async def node(state: State) -> State:
        found = await fetch("a")
        return {"answer": f"{found} {interrupt('which?')}"}

    async with opened(node) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        done = await runtime.aresume("t", "b")
    assert "A b" == done.values["answer"]
    assert ["a"] == called


async def test_other_arguments_are_another_step(opened: Opened) -> None:
    called: list[int] = []

    @durable_step
    async def charge(amount: int) -> int:
        called.append(amount)
        return amount

    amounts = iter([10, 99_999])

    async def node(state: State) -> State:
        charged = await charge(next(amounts))  # a node that is not deterministic
        return {"answer": f"{charged} {interrupt('which?')}"}

    async with opened(node) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        done = await runtime.aresume("t", "b")
    assert "99999 b" == done.values["answer"]
    assert [10, 99_999] == called


async def test_each_round_of_a_loop_and_each_thread_is_a_place_of_its_own(opened: Opened) -> None:
    count = Counted()
    step = durable_step(count, name="count")

    async def node(state: State) -> State:
        return {"rounds": [await step()]}

    async with opened(node, rounds=3) as runtime:
        first = await runtime.ainvoke({}, thread_id="one")
        second = await runtime.ainvoke({}, thread_id="two")
    assert [1, 2, 3] == first.values["rounds"]
    assert [4, 5, 6] == second.values["rounds"]


async def test_the_same_step_twice_in_a_node_is_two_steps_and_both_are_found_again(opened: Opened) -> None:
    count = Counted()
    step = durable_step(count, name="count")
    seen: list[list[int]] = []

    async def node(state: State) -> State:
        seen.append([await step("x"), await step("x")])
        return {"answer": str(interrupt("which?"))}

    async with opened(node) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        await runtime.aresume("t", "b")
    assert [[1, 2], [1, 2]] == seen


async def test_a_retried_node_finds_its_steps_from_the_first_one_on(opened: Opened) -> None:
    count = Counted()
    step = durable_step(count, name="count")
    tries: list[list[int]] = []

    async def node(state: State) -> State:
        tries.append([await step(), await step()])
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return {}

    retry = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False)
    async with opened(node, retry=retry) as runtime:
        await runtime.ainvoke({}, thread_id="t")
    assert [[1, 2]] * 3 == tries


async def test_a_step_that_raises_is_called_again_and_its_failure_is_recorded(opened: Opened) -> None:
    outcomes = iter([ValueError("the first time"), "at last"])

    @durable_step(name="flaky")
    def flaky() -> str:  # a blocking function
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def node(state: State) -> State:
        return {"answer": await flaky()}

    async with opened(node) as runtime:
        failed = await runtime.ainvoke({}, thread_id="t")
        done = await runtime.aresume("t")
        (step,) = (await runtime.atimeline("t")).operations
        attempts = await runtime.store.operations.attempts("t")
    assert isinstance(failed.error, ValueError)
    assert "at last" == done.values["answer"]
    assert ("flaky", "step", "succeeded") == (step.name, step.kind, step.state)
    assert ["failed", "succeeded"] == [one.state for one in attempts]


async def test_what_is_taken_is_the_same_when_the_node_runs_again(opened: Opened, clock: Clock) -> None:
    seen: list[tuple[datetime, float, float, UUID]] = []

    async def node(state: State) -> State:
        seen.append((await now(), await random(), await random(), await uuid()))
        return {"answer": interrupt("which?")}

    async with opened(node) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        from_then = clock.now()
        clock.move(from_then - from_then.replace(hour=0))
        await runtime.aresume("t", "b")
    first, again = seen
    assert first == again
    assert from_then == first[0]
    assert first[1] != first[2]


async def test_arguments_of_every_day_identify_a_step(opened: Opened) -> None:
    count = Counted()
    step = durable_step(count, name="count")
    given: list[Any] = [
        Decimal("1.0"), Decimal("1.00"), date(2026, 1, 1), "2026-01-01", Price(amount=Decimal(1)), {"amount": "1"},
        ("a", 1), None, 1, "1",
    ]  # fmt: skip

    async def node(state: State) -> State:
        return {"rounds": [[await step(one) for one in given]]}

    async with opened(node) as runtime:
        done = await runtime.ainvoke({}, thread_id="t")
    assert list(range(1, len(given) + 1)) == done.values["rounds"][0]


@pytest.mark.parametrize("argument", [object(), {1, 2}, b"bytes", {1: 2}], ids=lambda one: type(one).__name__)
async def test_an_argument_that_identifies_nothing_is_refused_before_the_call(opened: Opened, argument: Any) -> None:
    count = Counted()
    step = durable_step(count, name="count")

    async def node(state: State) -> State:
        return {"rounds": [await step(argument)]}

    async with opened(node) as runtime:
        failed = await runtime.ainvoke({}, thread_id="t")
    assert isinstance(failed.error, errors.UnstorableValue)
    assert 0 == count.calls


async def test_a_step_outside_a_runtime_is_refused_by_name() -> None:
    step = durable_step(Counted(), name="count")

    async def node(state: State) -> State:
        return {"rounds": [await step()]}

    graph = StateGraph(State)
    graph.add_node("only", node)
    graph.add_edge(START, "only")
    with pytest.raises(errors.UsageError, match="only under"):
        await graph.compile().ainvoke({})
