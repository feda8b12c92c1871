"""Child threads: begun once, joined by a wait that holds nothing, and bound by what their parent is bound by."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.graph import (
    Artifact,
    Budget,
    Child,
    Principal,
    Runtime,
    artifacts,
    build_agent,
    end_of,
    first_of,
    join,
    map,
    spawn,
    timer,
)
from standfast.graph.worker import Worker
from tests.conftest import Clock
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel, call, script

Query = Callable[..., list[tuple[Any, ...]]]
pytestmark = pytest.mark.guarantee("G7")
HOUR = timedelta(hours=1)


class State(TypedDict, total=False):
    number: int
    text: str
    child: Any
    got: Any


def graph_of(node: Callable[..., Any]) -> StateGraph[State]:
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph


async def double(state: State) -> State:
    return {"got": state["number"] * 2}


async def ask(state: State) -> State:
    return {"got": interrupt("How many?")}


Fleet = Callable[..., Any]


@pytest.fixture
def fleet(database_url: str) -> Fleet:
    """`async with fleet(parent=..., child=...) as parent:` the graphs by name, served by a worker in this process."""

    @contextlib.asynccontextmanager
    async def serving(parent: Any, **graphs: Any) -> AsyncIterator[Runtime]:
        async with Runtime(parent, database_url=database_url, name="parent") as first:
            others = []
            for name, graph in graphs.items():
                others.append(Runtime(graph, database_url=database_url, name=name))
                others[-1].join(first)
            stop = asyncio.Event()
            worker = asyncio.create_task(Worker([first, *others], stop=stop).run())
            try:
                yield first
            finally:
                stop.set()
                await worker

    return serving


async def finished(runtime: Runtime, thread: str = "t") -> Any:
    async with asyncio.timeout(30):
        while (result := await runtime.aresult(thread)).status in ("waiting", "queued", "running"):
            await asyncio.sleep(0.02)
    assert result.status == "succeeded", result
    return result


async def test_a_child_is_a_thread_of_its_own_and_its_output_comes_back(fleet: Fleet, query: Query) -> None:
    async def parent(state: State) -> State:
        child = await spawn({"number": 21}, graph="double")
        end = await join(child)
        assert end is not None
        return {"child": child, "got": [end.status, end.output["got"]]}

    async with fleet(graph_of(parent), double=graph_of(double)) as runtime:
        await runtime.asubmit({}, thread_id="t", as_=Principal.vouched("asker@example.com"), context={"desk": 7})
        values = (await finished(runtime)).values

    assert ["succeeded", 42] == values["got"]
    assert isinstance(values["child"], Child)
    assert [("asker@example.com", "double", "t")] == query(
        "select t.owner, t.graph, r.parent_thread_id from threads t join runs r on r.thread_id = t.id where t.id = %s",
        values["child"].thread_id,
    )


async def test_joining_holds_no_lease_and_no_connection(fleet: Fleet, query: Query) -> None:
    async def parent(state: State) -> State:
        end = await join(await spawn({}, graph="ask"))
        assert end is not None
        return {"got": end.output["got"]}

    async with fleet(graph_of(parent), ask=graph_of(ask)) as runtime:
        await runtime.asubmit({}, thread_id="t")
        async with asyncio.timeout(20):
            while query("select count(*) from waits where state = 'open'") != [(2,)]:
                await asyncio.sleep(0.02)
        assert [] == query("select id from threads where lease_holder is not null")
        ((child,),) = query("select id from threads where id <> 't'")
        await runtime.aanswer(child, 5)
        assert 5 == (await finished(runtime)).values["got"]


async def test_a_node_that_runs_again_finds_the_child_that_it_has_begun(fleet: Fleet, query: Query) -> None:
    seen = []

    async def parent(state: State) -> State:
        child = await spawn({"number": 1}, graph="double")
        seen.append(child)
        interrupt("Go on?")
        other = await spawn({"number": 1}, graph="double")
        ends = [await join(child), await join(other)]
        return {"got": [one.output["got"] for one in ends if one is not None]}

    async with fleet(graph_of(parent), double=graph_of(double)) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        await runtime.aresume("t", True, follow=False)
        assert [2, 2] == (await finished(runtime)).values["got"]

    assert 1 == len(set(seen)) < len(seen)
    assert [(2,)] == query("select count(*) from threads where id <> 't'")


async def test_a_node_that_asks_for_another_child_at_the_same_place_is_refused(fleet: Fleet, query: Query) -> None:
    count = iter(range(9))

    async def parent(state: State) -> State:
        await spawn({"number": next(count)}, graph="double")
        interrupt("Go on?")
        return {}

    async with fleet(graph_of(parent), double=graph_of(double)) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        result = await runtime.aresume("t", True)

    assert "needs_attention" == result.status
    assert str(result.reason).startswith("OperationMismatch: ")
    assert [(1,)] == query("select count(*) from threads where id <> 't'")


@pytest.mark.parametrize("width", [1, 3])
async def test_a_map_keeps_its_order_and_its_bound(fleet: Fleet, query: Query, width: int) -> None:
    at_work = most = 0

    async def slow(state: State) -> State:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.02)
        at_work -= 1
        if state["number"] == 2:
            raise ValueError("not two")
        return {"got": state["number"]}

    async def parent(state: State) -> State:
        ends = await map([{"number": number} for number in range(7)], graph="slow", concurrency=width)
        return {"got": [(one.status, (one.output or {}).get("got")) for one in ends]}

    async with fleet(graph_of(parent), slow=graph_of(slow)) as runtime:
        await runtime.asubmit({}, thread_id="t")
        async with asyncio.timeout(30):
            while query("select count(*) from runs where state = 'needs_attention'") != [(1,)]:
                await asyncio.sleep(0.02)
            ((stuck,),) = query("select thread_id from runs where state = 'needs_attention'")
            await runtime.acancel(stuck)
        got = (await finished(runtime)).values["got"]

    expected = [("succeeded", number) for number in range(7)]
    expected[2] = ("cancelled", None)
    assert expected == got
    assert most <= width


async def test_cancelling_a_parent_cancels_its_children_and_theirs(fleet: Fleet, query: Query) -> None:
    async def middle(state: State) -> State:
        await map([{}, {}, {}], graph="ask", concurrency=1)
        return {}

    async def parent(state: State) -> State:
        await join(await spawn({}, graph="middle"))
        return {}

    async with fleet(graph_of(parent), middle=graph_of(middle), ask=graph_of(ask)) as runtime:
        await runtime.asubmit({}, thread_id="t")
        async with asyncio.timeout(20):
            while query("select count(*) from waits where state = 'open' and kind = 'question'") != [(1,)]:
                await asyncio.sleep(0.02)
        assert "cancelled" == (await runtime.acancel("t")).status
        async with asyncio.timeout(20):
            while query("select count(*) from runs where state = 'cancelled'") != [(5,)]:
                await asyncio.sleep(0.02)
    assert [(0,)] == query("select count(*) from waits where state = 'open'")


async def test_a_parent_that_is_cancelled_while_its_child_ends_leaves_nothing_open(fleet: Fleet, query: Query) -> None:
    """Seeded: the cancellation comes at any moment between the child's beginning and a while after its end."""
    rng = random.Random(7)

    async def parent(state: State) -> State:
        return {"got": (await join(await spawn({"number": 1}, graph="double"))).output}

    async with fleet(graph_of(parent), double=graph_of(double)) as runtime:
        for number in range(12):
            await runtime.asubmit({}, thread_id=f"t{number}")
            await asyncio.sleep(rng.uniform(0.0, 0.4))
            with contextlib.suppress(errors.AlreadyFinished):
                await runtime.acancel(f"t{number}")
        async with asyncio.timeout(30):
            while query("select count(*) from runs where state in ('open', 'queued')") != [(0,)]:
                await asyncio.sleep(0.05)
        states = Counter(state for (state,) in query("select state from runs where parent_thread_id is null"))
    assert 12 == states["cancelled"] + states["succeeded"], states
    assert [(0,)] == query("select count(*) from waits where state = 'open'")
    assert [(0,)] == query("select count(*) from threads where due_at is not null or lease_holder is not null")


async def test_a_child_has_its_parents_deadline_or_an_earlier_one(fleet: Fleet, query: Query, clock: Clock) -> None:
    async def parent(state: State) -> State:
        await spawn({}, graph="ask")
        await spawn({}, graph="ask", deadline=60)
        await spawn({}, graph="ask", deadline=7200)
        return {}

    began = clock.now()
    async with fleet(graph_of(parent), ask=graph_of(ask)) as runtime:
        await runtime.ainvoke({}, thread_id="t", deadline=HOUR)

    minute = began + timedelta(minutes=1)
    found = [row[0] for row in query("select deadline from runs where thread_id <> 't' order by deadline")]
    assert [minute, began + HOUR, began + HOUR] == found


async def test_a_join_with_a_time_limit_says_that_the_child_has_not_ended(fleet: Fleet, clock: Clock) -> None:
    async def parent(state: State) -> State:
        child = await spawn({}, graph="ask")
        late = await join(child, timeout=3600)
        ended = await first_of(timer(for_=60), end_of(child))
        return {"got": [late, ended.position, ended.child, ended.timed_out]}

    async with fleet(graph_of(parent), ask=graph_of(ask)) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        for _ in range(2):
            clock.move(HOUR)
            result = await runtime.aresume("t")
    assert [None, 0, None, True] == result.values["got"]


async def test_a_large_output_comes_as_an_artifact(fleet: Fleet) -> None:
    async def large(state: State) -> State:
        return {"text": "x" * 400_000}

    async def parent(state: State) -> State:
        end = await join(await spawn({}, graph="large"))
        assert end is not None
        assert isinstance(end.output, Artifact)
        return {"child": end, "got": len((await artifacts().load(end.output))["text"])}

    async with fleet(graph_of(parent), large=graph_of(large)) as runtime:
        await runtime.asubmit({}, thread_id="t")
        values = (await finished(runtime)).values
    assert 400_000 == values["got"]
    assert isinstance(values["child"].output, Artifact)


@pytest.mark.guarantee("G8")
async def test_a_family_spends_one_budget(fleet: Fleet, query: Query) -> None:
    class Counting(ScriptedModel):
        def answer(self, messages: list[BaseMessage]) -> AIMessage:
            usage = {"input_tokens": 700, "output_tokens": 300, "total_tokens": 1000}
            return super().answer(messages).model_copy(update={"usage_metadata": usage})

    agent = build_agent(model=Counting(), operations=OPERATIONS)

    async def parent(state: State) -> State:
        ends = [await join(await spawn(script([call("jot", text="a")], "Done."), graph="agent")) for _ in range(3)]
        return {"got": [(one.status, one.reason) for one in ends if one is not None]}

    async with fleet(graph_of(parent), agent=agent) as runtime:
        await runtime.asubmit({}, thread_id="t", budget=Budget(tokens=3000))
        got = (await finished(runtime)).values["got"]

    assert [("succeeded", None), ("failed", "budget"), ("failed", "budget")] == got
    assert [(3,)] == query("select count(*) from operations where kind = 'model' and state = 'succeeded'")


@pytest.mark.guarantee("G4")
async def test_a_fork_joins_the_child_of_its_source_and_begins_one_only_if_it_may_have_effects(
    fleet: Fleet, query: Query
) -> None:
    async def parent(state: State) -> State:
        child = await spawn({"number": 1}, graph="double")
        interrupt("Go on?")
        other = await spawn({"number": 2}, graph="double")
        return {"got": [child.thread_id, other.thread_id]}

    async with fleet(graph_of(parent), double=graph_of(double)) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        at = (await runtime.ahistory("t"))[0].checkpoint_id
        reading = await runtime.afork("t", at=at, to="reading")
        acting = await runtime.afork("t", at=at, to="acting", allow_effects=True)
        ends = {}
        for thread in ("t", reading.thread_id, acting.thread_id):
            await runtime.aresume(thread)
            ends[thread] = await runtime.aresume(thread, True)
    source, other = ends["t"].values["got"], ends["acting"].values["got"]
    assert source[0] == other[0]
    assert source[1] != other[1]
    assert "needs_attention" == ends["reading"].status
    assert [(3,)] == query("select count(*) from threads where graph = 'double'")
