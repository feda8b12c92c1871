"""A run ends by name at its deadline and at its budget, keeps its work, and goes on when it is given more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.graph import START, StateGraph

from standfast.checkpoint import errors
from standfast.graph import (
    Budget,
    Effect,
    OperationContext,
    Policy,
    Price,
    Result,
    RetryPolicy,
    Runtime,
    build_agent,
    operation,
    sleep,
)
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, call, script
from tests.servers.reports import ReportsServer

pytestmark = pytest.mark.guarantee("G8")
Open = Callable[..., Any]
Query = Callable[..., list[tuple[Any, ...]]]
HOUR = timedelta(hours=1)


def texts(result: Result) -> list[str]:
    return [str(one.text) for one in result.messages if isinstance(one, ToolMessage)]


class CountingModel(ScriptedModel):
    """The scripted model; each answer takes 700 tokens in and 300 out."""

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        usage = {"input_tokens": 700, "output_tokens": 300, "total_tokens": 1000}
        return super().answer(messages).model_copy(update={"usage_metadata": usage})


JOTS = script(*[[call("jot", text=str(number))] for number in range(4)])


@pytest.mark.parametrize(
    ("small", "large", "said"),
    [
        (Budget(model_calls=2), Budget(model_calls=5), "2 of 2 model calls"),
        (Budget(tokens=1500), Budget(tokens=5000), "2000 of 1500 tokens"),
        (
            Budget(money=Decimal("0.003"), price=Price("1.00", "3.00")),  # type: ignore[arg-type]
            Budget(money=Decimal("9"), price=Price("1.00", "3.00")),  # type: ignore[arg-type]
            "0.0032 of 0.003 money",
        ),
    ],
)
async def test_a_run_that_has_spent_its_budget_ends_by_name_and_goes_on_with_more(
    opened: Open, reports_server: ReportsServer, small: Budget, large: Budget, said: str
) -> None:
    async with opened(model=CountingModel()) as runtime:
        ended = await runtime.ainvoke(JOTS, thread_id="t", budget=small)
        assert ("failed", "budget") == (ended.status, ended.reason)
        assert said in str(ended.error)
        assert 2 == len(reports_server.effects())
        assert ("failed", "budget") == ((again := await runtime.aresume("t")).status, again.reason)
        with pytest.raises(errors.RunLimitReached):
            await runtime.aretry("t")
        await runtime.aretry("t", budget=large)
        result = await runtime.aresume("t")

    assert ("succeeded", 4) == (result.status, len(reports_server.effects()))
    assert [f"noted {number}" for number in range(4)] == texts(result)


async def test_what_is_spent_is_counted_over_all_processes(opened: Open, clock: Clock) -> None:
    @operation(policy=Policy(effect=Effect.READ))
    async def nap() -> str:
        """Sleep for an hour."""
        await sleep(for_=HOUR)
        return "slept"

    for attempt in range(3):
        async with opened(nap, model=CountingModel()) as runtime:
            if attempt == 0:
                turns = script([call("nap")], [call("nap")], [call("nap")])
                result = await runtime.ainvoke(turns, thread_id="t", budget=Budget(model_calls=2))
            else:
                result = await runtime.aresume("t")
            clock.move(HOUR)

    assert ("failed", "budget") == (result.status, result.reason)
    assert ["slept", "slept"] == texts(result)


async def test_every_attempt_at_calling_the_model_is_a_call(opened: Open) -> None:
    class Absent(ScriptedModel):
        def answer(self, messages: list[BaseMessage]) -> AIMessage:
            raise ConnectionError("nobody there")

    async with opened(model=Absent(), model_retry=RetryPolicy(9, 0.001)) as runtime:
        ended = await runtime.ainvoke("Are you there?", thread_id="t", budget=Budget(model_calls=3))
        attempts = await runtime.store.operations.attempts("t")

    assert ("failed", "budget") == (ended.status, ended.reason)
    assert ["failed", "failed", "failed", "waiting"] == [one.state for one in attempts]


async def test_a_specialist_spends_the_budget_of_its_run(database_url: str, tmp_path: Any) -> None:
    (tmp_path / "lighthouse.txt").write_text("The keeper of the lighthouse wrote into the log every night.\n")
    turn = [call("delegate", specialist="extractor", task=script([call("search_documents", query="keeper")], "Found."))]
    request = script(turn, "Done.")
    async with Runtime(build_agent(model=ScriptedModel()), database_url=database_url) as runtime:
        options = {"thread_id": "t", "documents": [tmp_path]}
        ended = await runtime.ainvoke(request, budget=Budget(model_calls=2), **options)
        assert ("failed", "budget") == (ended.status, ended.reason)
        assert {"extractor"} == {
            "extractor" for one in await runtime.store.operations.list("t") if one.namespace.startswith("specialist:")
        }
        await runtime.aretry("t", budget=Budget(model_calls=4))
        assert "succeeded" == (await runtime.aresume("t")).status


# -- what is shown


async def test_a_thread_shows_its_deadline_its_budget_and_what_is_spent(opened: Open, clock: Clock) -> None:
    budget = Budget(model_calls=2, tokens=5000, steps=50, money="1.00", price=Price("1.00", "3.00"))  # type: ignore[arg-type]
    async with opened(model=CountingModel()) as runtime:
        await runtime.ainvoke(JOTS, thread_id="t", budget=budget, deadline=HOUR)
        timeline = await runtime.atimeline("t")
        plain = await runtime.ainvoke(script("Done."), thread_id="plain")
        without = await runtime.atimeline(plain.thread_id)
    ends = f"{(clock.now() + HOUR).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    steps = timeline.spent[timeline.runs[-1].id].steps
    assert 0 < steps < 50
    said = (
        f"deadline {ends}; spent 2 of 2 model calls, 2,000 of 5,000 tokens, 0.0032 of 1.00 money, {steps} of 50 steps"
    )
    assert said == timeline.limits
    assert said in repr(timeline)
    assert None is without.limits
    assert (1, 1000) == ((alone := without.spent[plain.run_id]).model_calls, alone.tokens)


# -- forks


async def test_a_fork_has_as_much_time_and_as_much_to_spend_as_its_source_was_given(opened: Open, clock: Clock) -> None:
    async with opened(model=CountingModel()) as runtime:
        ended = await runtime.ainvoke(JOTS, thread_id="t", budget=Budget(tokens=1500), deadline=HOUR)
        assert ("failed", "budget") == (ended.status, ended.reason)
        clock.move(2 * HOUR)  # the source's own time is over
        await runtime.afork("t", to="fork", allow_effects=True)
        fork = (await runtime.atimeline("fork")).runs[-1]
        assert (Budget(tokens=1500), clock.now() + HOUR) == (fork.budget, fork.deadline)
        going = await runtime.aresume("fork")
        noted = [f"noted {number}" for number in range(4)]  # two of them by two more calls, as many as before
        assert ("failed", "budget", noted) == (going.status, going.reason, texts(going))
        await runtime.afork("t", to="given", allow_effects=True, budget=Budget(tokens=9000), deadline=2 * HOUR)
        given = (await runtime.atimeline("given")).runs[-1]
        assert (Budget(tokens=9000), clock.now() + 2 * HOUR) == (given.budget, given.deadline)
        assert "succeeded" == (await runtime.aresume("given")).status


async def test_the_steps_that_a_fork_took_along_cost_it_nothing(database_url: str) -> None:
    async with Runtime(counting(8), database_url=database_url) as runtime:
        await runtime.ainvoke({"n": 0}, thread_id="t", budget=Budget(steps=3))
        await runtime.afork("t", to="fork")
        assert "failed" == (await runtime.aresume("fork")).status
        assert 6 == (await runtime.astate("fork")).values["n"]
        assert 3 == next(iter((await runtime.atimeline("fork")).spent.values())).steps


# -- steps


class Count(TypedDict):
    n: int


def counting(to: int) -> StateGraph[Any, Any, Any, Any]:
    """A loop of `to` steps."""

    async def add(state: Count) -> Count:
        return {"n": state["n"] + 1}

    graph = StateGraph(Count)
    graph.add_node("add", add)
    graph.add_edge(START, "add")
    graph.add_conditional_edges("add", lambda state: "add" if state["n"] < to else "__end__", ["add", "__end__"])
    return graph


async def test_steps_are_bounded_over_the_whole_run_and_the_work_is_kept(database_url: str) -> None:
    async with Runtime(counting(8), database_url=database_url) as runtime:
        ended = await runtime.ainvoke({"n": 0}, thread_id="t", budget=Budget(steps=3))
        assert ("failed", "budget") == (ended.status, ended.reason)
        assert 3 == (await runtime.astate("t")).values["n"]
        await runtime.aretry("t", budget=Budget(steps=5))
        assert "failed" == (await runtime.aresume("t")).status
        assert 5 == (await runtime.astate("t")).values["n"]
        await runtime.aretry("t", budget=Budget(steps=8))
        result = await runtime.aresume("t")

    assert ("succeeded", 8) == (result.status, result.values["n"])


async def test_a_run_that_ends_with_its_last_step_has_not_failed(database_url: str) -> None:
    async with Runtime(counting(3), database_url=database_url) as runtime:
        assert "succeeded" == (await runtime.ainvoke({"n": 0}, thread_id="t", budget=Budget(steps=3))).status


async def test_the_steps_of_nested_graphs_count(opened: Open) -> None:
    async with opened() as runtime:
        ended = await runtime.ainvoke(script([call("jot", text="x")]), thread_id="t", budget=Budget(steps=3))

    assert ("failed", "budget") == (ended.status, ended.reason)  # analysis, validation, approval


# -- the deadline


async def test_a_step_that_hangs_is_cut_off_at_the_deadline(opened: Open, query: Query) -> None:
    begun: list[int] = []

    @operation(policy=Policy(effect=Effect.IDEMPOTENT))
    async def hang(context: OperationContext) -> str:
        """Hang, at first."""
        begun.append(context.attempt)
        if len(begun) == 1:
            await asyncio.Event().wait()
        return "done"

    async with opened(hang) as runtime:
        ended = await runtime.ainvoke(script([call("hang")]), thread_id="t", deadline=1.5)
        assert ("failed", "deadline") == (ended.status, ended.reason)
        assert [("planned",)] == query("select state from operations where name = 'hang'")
        await runtime.aretry("t", deadline=HOUR)
        result = await runtime.aresume("t")

    assert ("succeeded", ["done"], [1, 2]) == (result.status, texts(result), begun)


async def test_no_step_begins_after_the_deadline(database_url: str, clock: Clock) -> None:
    ran: list[str] = []

    async def first(state: Count) -> Count:
        ran.append("first")
        clock.move(HOUR)
        return {"n": 1}

    async def second(state: Count) -> Count:
        ran.append("second")
        return {"n": 2}

    graph = StateGraph(Count)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    async with Runtime(graph, database_url=database_url) as runtime:
        ended = await runtime.ainvoke({"n": 0}, thread_id="t", deadline=HOUR)
        assert ("failed", "deadline", ["first"]) == (ended.status, ended.reason, ran)
        await runtime.aretry("t", deadline=1.0)
        result = await runtime.aresume("t")

    assert ("succeeded", ["first", "second"]) == (result.status, ran)


async def test_a_thread_that_waits_is_woken_by_its_deadline_and_asks_again_when_it_is_given_more(
    opened: Open, clock: Clock, query: Query, reports_server: ReportsServer
) -> None:
    async with opened() as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="x")]), thread_id="t", deadline=HOUR)
        assert [(clock.now() + HOUR,)] == query("select due_at from threads")
        clock.move(HOUR)
        ended = await runtime.aresume("t")
        assert ("failed", "deadline") == (ended.status, ended.reason)
        assert [] == await runtime.aapprovals()
        await runtime.aretry("t", deadline=HOUR)
        assert "waiting" == (await runtime.aresume("t")).status
        assert [waiting.approvals[0].id] == [one.id for one in await runtime.aapprovals()]
        result = await runtime.aresume("t", approve=waiting.approvals[0].id)

    assert ("succeeded", 1) == (result.status, len(reports_server.effects()))


async def test_a_back_off_ends_at_the_deadline_of_the_run(opened: Open, clock: Clock) -> None:
    @operation(policy=Policy(effect=Effect.READ, retry=RetryPolicy(9, 7200.0, jitter=0.0)))
    async def away() -> str:
        """Fail."""
        raise ConnectionError("nobody there")

    async with opened(away) as runtime:
        assert "waiting" == (await runtime.ainvoke(script([call("away")]), thread_id="t", deadline=HOUR)).status
        clock.move(HOUR)
        ended = await runtime.aresume("t")

    assert ("failed", "deadline") == (ended.status, ended.reason)


async def test_an_operation_knows_the_time_left_to_its_run(opened: Open) -> None:
    left: list[float | None] = []

    @operation(policy=Policy(effect=Effect.READ, timeout=5000.0))
    async def look(context: OperationContext) -> str:
        """Look at the clock."""
        left.append(context.time_left)
        return ""

    async with opened(look) as runtime:
        await runtime.ainvoke(script([call("look")]), deadline=HOUR)

    assert left[0] is not None
    assert 3500.0 < left[0] <= 3600.0


async def test_the_deadline_counts_from_acceptance_not_from_the_first_drive(opened: Open, clock: Clock) -> None:
    async with opened() as runtime:
        await runtime.asubmit(script("Here."), thread_id="t", deadline=HOUR)
        clock.move(HOUR)
        ended = await runtime.aresume("t")

    assert ("failed", "deadline") == (ended.status, ended.reason)


async def test_a_run_that_ended_otherwise_is_given_nothing(opened: Open) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(script("Here."), thread_id="t")
        with pytest.raises(errors.AlreadyFinished):
            await runtime.aretry("t", deadline=HOUR, budget=Budget(steps=9))


@pytest.mark.parametrize(
    "given",
    [
        {"deadline": 0},
        {"deadline": -1},
        {"deadline": "soon"},
        {"deadline": float("nan")},
        {"deadline": datetime(2030, 1, 1)},
        {"budget": 3},
        {"budget": {"steps": 3}},
    ],
)
async def test_a_limit_that_means_nothing_is_refused_before_anything_is_accepted(
    opened: Open, query: Query, given: dict[str, Any]
) -> None:
    async with opened() as runtime:
        with pytest.raises(errors.InvalidRequest):
            await runtime.ainvoke(script("Here."), **given)
    assert [] == query("select 1 from runs")


@pytest.mark.parametrize(
    "given",
    [{"model_calls": 0}, {"tokens": 1.5}, {"steps": True}, {"money": 3}, {"money": "much", "price": Price(1, 1)}],  # type: ignore[arg-type]
)
def test_a_budget_that_means_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest):
        Budget(**given)


async def test_a_deadline_may_be_a_moment(opened: Open, query: Query) -> None:
    moment = datetime(2990, 1, 1, tzinfo=UTC)
    async with opened() as runtime:
        assert "succeeded" == (await runtime.ainvoke(script("Here."), deadline=moment)).status
    assert [(moment,)] == query("select deadline from runs")
