"""Two versions of one graph beside each other: whose thread it is, and who is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.fleet import Fleet
from standfast.checkpoint.lease import claim
from standfast.graph import Runtime
from standfast.graph.worker import Worker

Query = Callable[..., list[tuple[Any, ...]]]


class Note(TypedDict, total=False):
    text: str
    by: str


async def ask(state: Note) -> Note:
    return {"text": interrupt("Shall I?")}


def made(version: str, *, nodes: tuple[str, ...] = ("sign",)) -> StateGraph[Note]:
    """Asks, then goes through the nodes, each of which says which version it is of."""

    async def sign(state: Note) -> Note:
        return {"by": version}

    graph = StateGraph(Note)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    for before, name in zip(("ask", *nodes), nodes, strict=False):
        graph.add_node(name, sign)
        graph.add_edge(before, name)
    return graph


@pytest.fixture
async def first(database_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(made("1"), database_url=database_url, version="1", lease_seconds=2.0) as runtime:
        yield runtime


def second(first: Runtime, graph: StateGraph[Note] | None = None, **options: Any) -> Runtime:
    """Version 2 beside the first one: by default of the same shape."""
    runtime = Runtime(graph or made("2"), version="2", lease_seconds=2.0, **options)
    runtime.join(first)
    return runtime


def changed() -> StateGraph[Note]:
    return made("2", nodes=("sign", "file"))


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_a_bell_rings_for_the_version_that_a_run_was_accepted_for(
    first: Runtime, bells: Callable[[], list[str]]
) -> None:
    await first.asubmit({}, thread_id="t")  # no worker serves version 1
    await first.acancel("t")
    assert {"agent@1"} == set(bells())
    await second(first).asubmit({}, thread_id="t")
    assert ["agent@2"] == bells()


async def waiting(runtime: Runtime) -> None:
    """A thread t of this runtime's version whose question is answered, and which nobody has driven since."""
    question = (await runtime.ainvoke({}, thread_id="t")).questions[0]
    await runtime.store.waits.answer("t", question.id, "yes", "somebody")


@pytest.mark.guarantee("G10")
async def test_another_version_of_the_same_shape_drives_a_thread(first: Runtime) -> None:
    await waiting(first)
    assert "2" == (await second(first).aresume("t")).values["by"]


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("follow", [True, False])
async def test_another_version_of_another_shape_is_refused_and_both_are_named(
    first: Runtime, query: Query, follow: bool
) -> None:
    await waiting(first)
    deployed = second(first, changed())
    kept = query("select * from threads")
    with pytest.raises(errors.GraphChanged, match=r"version '1' of graph 'agent', and version '2'"):
        await deployed.acarry_on("t", follow=follow)
    assert kept == query("select * from threads")
    assert "1" == (await first.aresume("t")).values["by"]


async def test_a_thread_of_another_graph_is_waited_for_only_if_a_worker_serves_that_one(first: Runtime) -> None:
    await waiting(first)
    misnamed = Runtime(made("1"), version="1", name="agnet")
    misnamed.join(first)
    with pytest.raises(errors.GraphNotServed, match="name='agent'"):
        await misnamed.aresume("t")
    assert "queued" == (await misnamed.acarry_on("t", follow=False)).status

    stop = asyncio.Event()
    work = asyncio.create_task(Worker([first], stop=stop).run())
    await until(lambda: Fleet(first.store.database).serves("agent", "1"))
    assert "succeeded" == (await misnamed.aresume("t")).status
    stop.set()
    assert await work


@pytest.mark.guarantee("G10")
async def test_a_version_that_declares_it_takes_another_over_drives_its_threads(first: Runtime) -> None:
    await waiting(first)
    assert "2" == (await second(first, changed(), takes_over={"1"}).aresume("t")).values["by"]


@pytest.mark.guarantee("G10")
async def test_a_claim_that_came_after_the_version_had_changed_drives_nothing(first: Runtime, query: Query) -> None:
    await waiting(first)
    deployed = second(first, changed())
    lease = await claim(first.store.database, "t", seconds=60)
    with pytest.raises(errors.GraphChanged):
        await deployed.adrive(lease)
    assert [(None, True)] == query("select lease_holder, due_at is not null from threads")


@pytest.mark.parametrize("takes_over", [(), ("1",)])
async def test_workers_come_for_their_own_version_and_for_what_they_take_over(
    first: Runtime, takes_over: tuple[str, ...]
) -> None:
    await waiting(first)
    deployed = second(first, changed(), takes_over=takes_over)
    stop = asyncio.Event()
    work = asyncio.create_task(Worker([deployed], stop=stop).run())
    own = await deployed.asubmit({}, thread_id="own")
    await deployed.aresult("own", run_id=own.run_id, timeout=15)
    if takes_over:
        assert "2" == (await deployed.aresult("t", timeout=15)).values["by"]
    stop.set()
    assert await work
    assert ("succeeded" if takes_over else "queued") == (await first.store.threads.get("t")).status


async def test_who_queues_under_another_version_is_driven_by_it_when_the_turn_comes(first: Runtime) -> None:
    await first.ainvoke({}, thread_id="t")
    deployed = second(first, changed())
    following = asyncio.create_task(deployed.ainvoke({}, thread_id="t", on_busy="queue"))
    await until(lambda: _queued(first))
    await first.aresume("t", "yes")
    async with asyncio.timeout(15):
        assert "waiting" == (await following).status
    assert ("2", "waiting") == (
        (await first.store.threads.get("t")).version,
        (await first.store.threads.get("t")).status,
    )


async def _queued(runtime: Runtime) -> bool:
    return ["queued", "open"] == sorted((one.state for one in await runtime.store.threads.runs("t")), reverse=True)


# -- without workers


async def test_a_run_that_interrupts_one_that_needs_attention_has_its_turn_without_any_worker(first: Runtime) -> None:
    await first.asubmit({}, thread_id="t")
    await first.apark("t", "wait for Monday")
    async with asyncio.timeout(15):
        assert "waiting" == (await first.ainvoke({}, thread_id="t", on_busy="interrupt")).status
    assert ["cancelled", "open"] == [one.state for one in await first.store.threads.runs("t")]


async def test_a_run_of_a_graph_that_is_not_loaded_is_cancelled_and_its_readers_are_told(first: Runtime) -> None:
    await waiting(first)
    other = Runtime(made("x", nodes=("quite", "different")), name="other")
    other.join(first)
    cancelled = await other.acancel("t")
    assert ("cancelled", "cancelled on request") == (cancelled.status, cancelled.reason)
    assert "run_end" == [one.kind async for one in first.astream("t")][-1]
    with pytest.raises(errors.AlreadyFinished):
        await other.acancel("t")


async def test_a_second_cancellation_says_that_the_driver_has_not_stopped_yet_and_ends_the_run_when_it_is_dead(
    first: Runtime, clock: Any
) -> None:
    await first.asubmit({}, thread_id="t")
    await claim(first.store.database, "t", seconds=60)  # a driver that does not look
    once = asyncio.create_task(first.acancel("t"))
    await until(lambda: _cancelling(first))
    with pytest.raises(errors.CancelPending, match="standfast release t"):
        await first.acancel("t")
    assert not once.done()
    once.cancel()  # else it may be the one that ends the run
    await asyncio.wait([once])
    clock.move(timedelta(seconds=61))
    assert "cancelled" == (await first.acancel("t")).status


async def test_a_cancellation_that_waits_for_a_driver_ends_the_run_when_it_is_dead(first: Runtime, clock: Any) -> None:
    await first.asubmit({}, thread_id="t")
    await claim(first.store.database, "t", seconds=60)  # a driver that does not look
    once = asyncio.create_task(first.acancel("t"))
    await until(lambda: _cancelling(first))
    clock.move(timedelta(seconds=61))
    async with asyncio.timeout(15):
        assert "cancelled" == (await once).status


async def _cancelling(runtime: Runtime) -> bool:
    rows = await runtime.store.database.fetch(b"select 1 from threads where cancel_requested_at is not null")
    return bool(rows)


async def test_a_run_whose_values_this_process_cannot_read_is_cancelled_all_the_same(
    first: Runtime, query: Query
) -> None:
    await waiting(first)
    query("update runs set input = '', settings = ''")
    query("update checkpoints set sealed = ''")
    assert "cancelled" == (await first.acancel("t")).status
