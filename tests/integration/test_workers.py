"""Workers in this process, and what is handed to them: keys, queues, what nobody serves, and what cannot be driven."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.graph import Runtime
from standfast.graph.worker import Worker

Query = Callable[..., list[tuple[Any, ...]]]
Working = Callable[..., contextlib.AbstractAsyncContextManager[None]]
LEASE = 2.0


class Note(TypedDict, total=False):
    text: str
    answer: str


seen: Counter[str] = Counter()


async def write(state: Note) -> Note:
    seen[state["text"]] += 1
    if state["text"] == "bad":
        raise ValueError("it cannot be written")
    if state["text"] == "slow":
        await asyncio.sleep(30)
    return {"answer": f"wrote {state['text']}"}


async def ask(state: Note) -> Note:
    return {"answer": interrupt("Shall I?")}


def one(node: Callable[[Note], Awaitable[Note]]) -> StateGraph[Note]:
    graph = StateGraph(Note)
    graph.add_node("only", node)
    graph.add_edge(START, "only")
    return graph


def asks_then_writes() -> StateGraph[Note]:
    graph = StateGraph(Note)
    graph.add_node("ask", ask)
    graph.add_node("write", write)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "write")
    return graph


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@pytest.fixture
async def runtime(database_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(one(write), database_url=database_url, name="notes", lease_seconds=LEASE) as runtime:
        yield runtime


@pytest.fixture
def working() -> Working:
    """Within it a runtime works in the background; it is drained at the end."""

    @contextlib.asynccontextmanager
    async def work(runtime: Runtime, **options: Any) -> AsyncIterator[None]:
        stop = asyncio.Event()
        task = asyncio.create_task(runtime.awork(stop=stop, grace=1.0, **options))
        try:
            yield
        finally:
            stop.set()
            await task

    return work


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


# -- in this process


async def test_a_runtime_works_in_its_own_process_and_says_goodbye(runtime: Runtime, working: Working) -> None:
    async with working(runtime, name="here"):
        await runtime.asubmit({"text": "a"}, thread_id="t")
        end = await runtime.aresult("t", timeout=15)
        assert [("here", ["notes@1"])] == [(one.name, list(one.graphs)) for one in await runtime.aworkers()]

    assert ("succeeded", "wrote a") == (end.status, end.values["answer"])
    assert [] == await runtime.aworkers()


def test_the_blocking_twin_works_until_it_is_told_to_stop(database_url: str) -> None:
    with Runtime(one(write), database_url=database_url) as runtime:
        stop = threading.Event()
        thread = threading.Thread(target=lambda: runtime.work(stop=stop))
        thread.start()
        runtime.submit({"text": "a"}, thread_id="t")
        assert "succeeded" == runtime.result("t", timeout=15).status
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


async def test_stopping_a_worker_leaves_what_the_same_runtime_drives_for_its_caller(
    runtime: Runtime, working: Working
) -> None:
    async with working(runtime):
        invoked = asyncio.create_task(runtime.ainvoke({"text": "slow"}, thread_id="mine"))
        await until(lambda: _true(seen["slow"] == 1))

    assert not invoked.done()
    invoked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await invoked


async def test_several_versions_are_served_by_one_worker(database_url: str) -> None:
    async with Runtime(one(write), database_url=database_url, name="notes", version="1") as first:
        second = Runtime(one(ask), database_url=database_url, name="notes", version="2")
        second.join(first)
        stop = asyncio.Event()
        work = asyncio.create_task(Worker([first, second], stop=stop).run())
        await first.asubmit({"text": "a"}, thread_id="one")
        await second.asubmit({"text": "a"}, thread_id="two")
        ends = [(await first.aresult(thread, timeout=15)).status for thread in ("one", "two")]
        stop.set()

        assert await work
    assert ["succeeded", "waiting"] == ends


# -- what nobody serves (X13)


async def test_runs_of_a_version_without_workers_are_listed_and_block_nobody(
    runtime: Runtime, working: Working, database_url: str, query: Query
) -> None:
    old = Runtime(one(write), database_url=database_url, name="notes", version="0")
    old.join(runtime)
    for number in range(3):
        await old.asubmit({"text": "old"}, thread_id=f"old-{number}")
    query("update threads set due_at = due_at - interval '2 hours' where id = 'old-1'")
    # One whose worker has died in the middle of it.
    query(
        "update threads set lease_holder = 'x', lease_expires_at = now() - interval '1 minute', due_at = null"
        " where id = 'old-2'"
    )
    async with working(runtime):
        await runtime.asubmit({"text": "new"}, thread_id="new")
        assert "succeeded" == (await runtime.aresult("new", timeout=15)).status
        [lack] = await runtime.aunserved()

        assert ("notes", "0", 3) == (lack.graph, lack.version, lack.runs)
        assert 7200 <= lack.oldest_seconds < 7300
        assert seen["old"] == 0
        async with working(old):
            for number in range(3):
                assert "succeeded" == (await runtime.aresult(f"old-{number}", timeout=15)).status
        assert [] == await runtime.aunserved()


# -- client keys and busy threads (C50, C70)


@pytest.mark.guarantee("G1")
async def test_a_request_that_is_delivered_twice_at_once_is_one_run_and_another_one_is_refused(
    runtime: Runtime, database_url: str, query: Query
) -> None:
    keys = [f"delivery-{number}" for number in range(20)]
    async with Runtime(one(write), database_url=database_url, name="notes") as other:
        twice = [each.asubmit({"text": "a"}, client_key=key) for key in keys for each in (runtime, other)]
        accepted = [(one.thread_id, one.run_id) for one in await asyncio.gather(*twice)]

    assert accepted[::2] == accepted[1::2]
    assert [(20,)] == query("select count(*) from runs")
    thread, run = accepted[0]
    with pytest.raises(errors.ClientKeyConflict) as refused:
        await runtime.asubmit({"text": "b"}, client_key=keys[0])
    assert (thread, run) == (refused.value.thread_id, refused.value.run_id)
    assert "succeeded" == (await runtime.aresume(thread)).status
    again = await runtime.ainvoke({"text": "a"}, client_key=keys[0])
    assert ("succeeded", run, 1) == (again.status, again.run_id, seen["a"])
    assert [(20,)] == query("select count(*) from runs")


async def test_new_input_on_a_waiting_thread_is_refused_queued_or_interrupts(
    database_url: str, working: Working
) -> None:
    async with Runtime(asks_then_writes(), database_url=database_url, lease_seconds=LEASE) as runtime, working(runtime):
        await runtime.asubmit({"text": "first"}, thread_id="t")
        asked = await runtime.aresult("t", timeout=15)
        with pytest.raises(errors.ThreadBusy):
            await runtime.asubmit({"text": "refused"}, thread_id="t")
        queued = await runtime.asubmit({"text": "second"}, thread_id="t", on_busy="queue")
        assert "queued" == queued.status
        assert "waiting" == (await runtime.aresult("t", timeout=15)).status
        assert [asked.questions[0].id] == [one.id for one in (await runtime.aresult("t", timeout=15)).questions]

        await runtime.aanswer("t", "yes")
        second = await runtime.aresult("t", run_id=queued.run_id, timeout=15)
        assert ("waiting", 1) == (second.status, seen["first"])

        third = await runtime.asubmit({"text": "third"}, thread_id="t", on_busy="interrupt")
        last = await runtime.aresult("t", run_id=third.run_id, timeout=15)
        assert "waiting" == last.status
        assert seen["second"] == 0
        with pytest.raises(errors.AlreadyDecided):
            await runtime.store.waits.answer("t", second.questions[0].id, "yes", "late")
        await runtime.aanswer("t", "yes")
        assert "succeeded" == (await runtime.aresult("t", run_id=third.run_id, timeout=15)).status
    runs = [(one.number, one.state) for one in sorted(await _runs(database_url), key=lambda one: one.number)]
    assert [(1, "succeeded"), (2, "cancelled"), (3, "succeeded")] == runs
    assert Counter(first=1, third=1) == seen


async def _runs(url: str) -> Any:
    async with Runtime(one(write), database_url=url) as runtime:
        return await runtime.store.threads.runs("t")


async def test_cancelling_twice_or_something_finished_says_so(runtime: Runtime) -> None:
    await runtime.asubmit({"text": "a"}, thread_id="t")
    assert "cancelled" == (await runtime.acancel("t")).status
    with pytest.raises(errors.AlreadyFinished, match="cancelled"):
        await runtime.acancel("t")
    await runtime.ainvoke({"text": "a"}, thread_id="t")
    with pytest.raises(errors.AlreadyFinished, match="succeeded"):
        await runtime.acancel("t")
    assert 1 == seen["a"]


# -- what cannot be driven (X04, X05)


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        ("update runs set input = '\\x00'", "needs_attention"),
        ("update runs set settings = '\\x'", "needs_attention"),
        ("update threads set run_id = null", "queued"),
        ("update threads set run_id = gen_random_uuid()", "queued"),
    ],
)
async def test_a_thread_whose_rows_cannot_be_read_is_tried_once_and_hides_no_other(
    runtime: Runtime, working: Working, query: Query, caplog: pytest.LogCaptureFixture, damage: str, left: str
) -> None:
    await runtime.asubmit({"text": "a"}, thread_id="damaged")
    query(damage)
    async with working(runtime):
        await runtime.asubmit({"text": "b"}, thread_id="whole")
        assert "succeeded" == (await runtime.aresult("whole", timeout=15)).status
        await until(lambda: _is(query, "select lease_holder, due_at from threads where id = 'damaged'", (None, None)))
        [epoch] = query("select epoch from threads where id = 'damaged'")
        await asyncio.sleep(1.2)  # two more sweeps find nothing
        assert [epoch] == query("select epoch from threads where id = 'damaged'")

    assert seen["a"] == 0
    assert {"damaged": left, "whole": "succeeded"} == {one.id: one.status for one in await runtime.athreads()}
    assert 1 == sum("put aside" in record.getMessage() for record in caplog.records)


async def test_a_run_whose_node_raises_is_parked_once_and_goes_on_when_it_is_retried(
    runtime: Runtime, working: Working
) -> None:
    async with working(runtime):
        await runtime.asubmit({"text": "bad"}, thread_id="t")
        parked = await runtime.aresult("t", timeout=15)
        assert "needs_attention" == parked.status
        assert re.fullmatch(
            r"ValueError: it cannot be written \(node 'only', test_workers.py:\d+\)", parked.reason or ""
        )
        assert 1 == seen["bad"]
        await runtime.aretry("t")
        await until(lambda: _true(seen["bad"] == 2))
        assert "needs_attention" == (await runtime.aresult("t", timeout=15)).status
        assert "cancelled" == (await runtime.acancel("t")).status
        with pytest.raises(errors.AlreadyFinished):
            await runtime.aretry("t")


# -- operators


async def test_a_parked_run_is_left_alone_until_it_is_retried(database_url: str, working: Working) -> None:
    async with Runtime(one(ask), database_url=database_url, lease_seconds=LEASE) as runtime, working(runtime):
        await runtime.asubmit({"text": "a"}, thread_id="t")
        await runtime.aresult("t", timeout=15)
        await runtime.apark("t", "the customer is on holiday")
        await runtime.aanswer("t", "yes")
        await until(lambda: _nothing_due(runtime))
        parked = await runtime.aresult("t", timeout=15)
        assert ("needs_attention", "the customer is on holiday") == (parked.status, parked.reason)

        await runtime.aretry("t")
        await until(lambda: _has(runtime, "succeeded"))


async def test_a_broken_lease_lets_another_go_on_and_its_holder_writes_nothing_more(
    runtime: Runtime, working: Working, database_url: str, query: Query
) -> None:
    lost = asyncio.create_task(runtime.ainvoke({"text": "slow"}, thread_id="t"))
    await until(lambda: _true(seen["slow"] == 1))
    with pytest.raises(errors.LeaseHeld):
        await runtime.apark("t", "no")
    holder = await runtime.arelease("t")

    with pytest.raises(errors.LeaseLost):
        await lost
    assert holder
    assert [(1,)] == query("select crashes from threads")
    with pytest.raises(errors.InvalidRequest, match="nobody holds"):
        await runtime.arelease("t")
    async with working(runtime):
        await until(lambda: _true(seen["slow"] == 2))


async def test_lists_read_no_state_at_all(runtime: Runtime, database_url: str, query: Query) -> None:
    asking = Runtime(one(ask), database_url=database_url, name="asking")
    asking.join(runtime)
    await asking.ainvoke({"text": "a"}, thread_id="waits")
    await runtime.ainvoke({"text": "a"}, thread_id="ends")
    await runtime.asubmit({"text": "a"}, thread_id="queued")
    query("drop table checkpoint_writes, checkpoint_blobs, checkpoints, run_events, operations, attempts cascade")
    for table, column in (("runs", "input"), ("runs", "settings"), ("runs", "outcome"), ("waits", "request")):
        query(f"alter table {table} drop column {column} cascade")

    everything = {"waits": "waiting", "ends": "succeeded", "queued": "queued"}
    assert everything == {one.id: one.status for one in await runtime.athreads()}
    assert everything == {one.thread_id: one.status for one in await runtime.aruns()}
    assert ["waits"] == [one.id for one in await runtime.athreads(state="waiting")]
    assert ["queued", "ends"] == [one.id for one in await runtime.athreads(graph="notes")]
    assert ["ends"] == [one.thread_id for one in await runtime.aruns(graph="notes", state="succeeded")]
    assert [("waits", "question", "only")] == [(w.thread_id, w.kind, w.node) for w in await runtime.aopen_waits()]
    assert [] == await runtime.aopen_waits(kind="timer")
    assert ["queued"] == [one.id for one in await runtime.athreads(limit=1)]
    with pytest.raises(errors.InvalidRequest, match="no state 'lost'"):
        await runtime.athreads(state="lost")


async def _true(value: bool) -> bool:
    return value


async def _is(query: Query, sql: str, row: tuple[Any, ...]) -> bool:
    return [row] == query(sql)


async def _has(runtime: Runtime, status: str) -> bool:
    return [status] == [str(one.status) for one in await runtime.athreads()]


async def _nothing_due(runtime: Runtime) -> bool:
    rows = await runtime.store.database.fetch(
        b"select 1 from threads where due_at is not null or lease_holder is not null"
    )
    return not rows
