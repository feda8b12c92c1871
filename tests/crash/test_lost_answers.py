"""A commit whose answer is lost on the way: it is sent again, and recognised as our own."""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from standfast.checkpoint import crashpoints
from standfast.checkpoint.database import Database
from standfast.checkpoint.lease import claim
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.store import Store
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.graph import Runtime
from tests.crash.chaos.proxy import Moment, Proxy
from tests.crash.support.work_graphs import asking, waiting
from tests.servers.fixtures import Eventually

Query = Callable[..., list[tuple[Any, ...]]]
PATIENCE = 10.0


@pytest.fixture
async def network(database_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(database_url) as network:
        yield network


@pytest.fixture
async def far(network: Proxy) -> AsyncIterator[Store]:
    """The rows, by way of that network."""
    database = Database(network.url, pool_size=2)
    await database.open()
    yield Store.over(database, TypeRegistry())
    await database.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.guarantee("G1")
async def test_an_answer_whose_commit_was_not_heard_of_is_still_ones_own(
    database_url: str, network: Proxy, far: Store, query: Query
) -> None:
    async with Runtime(asking(), database_url=database_url) as runtime:
        asked = await runtime.ainvoke({}, thread_id="t")
        cut = asyncio.create_task(network.cut_commit("after", PATIENCE, smallest=0))
        await asyncio.sleep(0)
        await far.waits.answer("t", asked.questions[0].id, "the second one", "ann")

        assert await cut
        assert [("answered", "ann")] == query("select state, answered_by from waits")
        assert "the second one" == (await runtime.aresume("t")).values["answer"]


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G7")
async def test_a_thread_that_parked_unheard_and_was_woken_since_is_left_to_the_next_driver(
    database_url: str, network: Proxy, far: Store, query: Query
) -> None:
    """Going on, the driver would have taken the wake-up without a lease: dying then, it would have lost the thread."""
    async with Runtime(waiting(), database_url=database_url) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        [wait] = await runtime.store.waits.of_run("t", (await runtime.store.threads.get("t")).run_id or "")
        lease = await claim(far.database, "t", seconds=60)
        cut = asyncio.create_task(network.cut_commit("after", PATIENCE))
        parking = asyncio.create_task(far.waits.park(lease, wait.run_id, [wait]))
        assert await cut
        network.hang()
        await until(lambda: query("select lease_holder from threads") == [(None,)])
        assert 1 == await runtime.aemit("go", "now", id="1")
        network.heal()

        assert await parking, "the driver went on without a lease"
        assert [(True, None)] == query("select due_at is not null, lease_holder from threads")
        assert "now" == (await runtime.aresume("t")).values["answer"]


@pytest.mark.guarantee("G1")
async def test_an_input_and_its_step_that_are_sent_again_are_recognised_as_ones_own(
    database_url: str, far: Store, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They travel together: the second time, the input is behind the head that came with it."""
    run = far.database.run
    sent: list[bool] = []

    async def unheard(work: Any, *, pipeline: bool = False) -> Any:
        sent.append(pipeline)
        await run(work, pipeline=pipeline)
        return await run(work, pipeline=pipeline)

    async with Runtime(asking(), database_url=database_url) as runtime:
        await runtime.asubmit({}, thread_id="t")
        lease = await claim(far.database, "t", seconds=60)
        monkeypatch.setattr(far.database, "run", unheard)
        saver = LeasedSaver(far.database, far.sealer, lease)
        await asking().compile(checkpointer=saver).ainvoke({}, {"configurable": {"thread_id": "t"}})
        await saver.aflush()
    assert True in sent
    assert [("input",), ("loop",)] == query("select metadata->>'source' from checkpoints order by checkpoint_id")


@pytest.mark.guarantee("G1")
async def test_a_step_whose_commit_was_not_heard_of_is_one_step(
    database_url: str, network: Proxy, query: Query, eventually: Eventually
) -> None:
    async with Runtime(asking(), database_url=network.url) as runtime:
        for number in range(8):
            cut = asyncio.create_task(network.cut_commit("before" if number % 2 else "after", PATIENCE))
            await asyncio.sleep(0)
            result = await runtime.ainvoke({}, thread_id=f"t-{number}")
            assert await cut
            assert "waiting" == result.status
            ended = await runtime.aresume(f"t-{number}", "yes")
            assert ("succeeded", "yes") == (str(ended.status), ended.values["answer"])
    assert [(8, 8)] == query("select count(*), count(distinct thread_id) from runs")


class Done(TypedDict, total=False):
    done: Annotated[list[int], operator.add]


def in_step(steps: int) -> StateGraph[Done]:
    """A graph whose threads are at the same step when they are begun at the same moment."""

    def step(number: int) -> Callable[[Done], Any]:
        async def run(state: Done) -> Done:
            await asyncio.sleep(0.05)
            return {"done": [number]}

        return run

    graph = StateGraph(Done)
    for number in range(steps):
        graph.add_node(str(number), step(number))
        graph.add_edge(START if number == 0 else str(number - 1), str(number))
    return graph


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("moment", ["after", "before"])
async def test_threads_whose_common_commit_was_not_heard_of_end_each_once(
    network: Proxy, query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, moment: Moment
) -> None:
    """Whenever a group is sent, the next commit of the process is cut: mostly that one, whose units go alone then."""
    caplog.set_level(logging.DEBUG, "standfast.group_commit")
    cuts: list[asyncio.Task[bool]] = []

    def cut(point: str) -> None:
        if point == "group.fenced":
            cuts.append(asyncio.create_task(network.cut_commit(moment, PATIENCE)))

    threads, steps = [f"t-{number}" for number in range(8)], 4
    async with Runtime(in_step(steps), database_url=network.url) as runtime:
        monkeypatch.setattr(crashpoints, "hook", cut)
        results = await asyncio.gather(*(runtime.ainvoke({"done": []}, thread_id=thread) for thread in threads))
        monkeypatch.setattr(crashpoints, "hook", None)
        for one in cuts:
            one.cancel()
        assert "standfast.group_commit" in {record.name for record in caplog.records}, "no group was cut"

        assert [("succeeded", list(range(steps)))] * 8 == [(str(one.status), one.values["done"]) for one in results]
        for thread in threads:
            events = [event async for event in runtime.astream(thread)]
            assert list(range(1, len(events) + 1)) == [event.seq for event in events]
            assert 1 == [event.kind for event in events].count("run_end")
    assert [("succeeded", 1, 0)] * 8 == query(
        "select r.state, t.epoch::int, t.crashes from runs r join threads t on t.id = r.thread_id"
    )
    assert [(steps + 2,)] * 8 == query("select count(*) from checkpoints group by thread_id")


@pytest.mark.guarantee("G1")
async def test_an_end_that_is_sent_again_does_not_undo_a_retry_that_came_in_between(
    database_url: str, far: Store, query: Query
) -> None:
    async with Runtime(asking(), database_url=database_url) as runtime:
        await runtime.asubmit({}, thread_id="t")
        lease = await claim(far.database, "t", seconds=60)
        run = (await far.threads.get("t")).run_id
        await far.threads.end(lease, run, "needs_attention", reason="why")
        assert "reopened" == await far.threads.retry("t")

        await far.threads.end(lease, run, "needs_attention", reason="why")

    assert [("open", True)] == query("select r.state, t.due_at is not null from runs r, threads t")
