"""Pruning: what has ended goes with all its rows but its audit, what is open stays, a cut history reads the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph

from standfast.checkpoint import errors
from standfast.checkpoint.lease import claim, release
from standfast.checkpoint.saver import LeasedSaver
from standfast.graph import (
    FunctionChannel,
    Principal,
    Runtime,
    join,
    notify,
    spawn,
)
from standfast.graph.cli.app import run_app
from tests.conftest import Clock
from tests.crash.support.scripted_model import call, script

Query = Callable[..., list[tuple[Any, ...]]]
ANN = Principal.vouched("ann@example.com")
DAY = timedelta(days=1)
MONTH = timedelta(days=30)


@pytest.fixture
async def agent(opened: Callable[..., AbstractAsyncContextManager[Runtime]]) -> AsyncIterator[Runtime]:
    async with opened() as runtime:
        yield runtime


def rows_of(query: Query, thread: str) -> dict[str, int]:
    """How many rows each table has that tells of a thread."""
    tables = query(
        """select c.table_name, c.column_name from information_schema.columns c
             join information_schema.tables t on (t.table_schema, t.table_name) = (c.table_schema, c.table_name)
            where c.table_schema = 'standfast' and t.table_type = 'BASE TABLE'
              and (c.column_name = 'thread_id' or (c.table_name, c.column_name) = ('threads', 'id'))"""
    )
    counts = {
        str(table): int(query(f"select count(*) from {table} where {column} = %s", thread)[0][0])
        for table, column in tables
    }
    return {table: count for table, count in counts.items() if count}


async def done(agent: Runtime, thread: str) -> None:
    """A thread that has asked a person, and ended."""
    waiting = await agent.ainvoke(script([call("note", text="hello")]), thread_id=thread, as_=ANN)
    await agent.aresume(thread, approve=waiting.approvals[0].id, as_=ANN)
    assert "succeeded" == (await agent.store.threads.get(thread)).status


@pytest.mark.guarantee("G13")
async def test_an_ended_thread_goes_with_every_row_but_its_audit(agent: Runtime, query: Query, clock: Clock) -> None:
    await done(agent, "old")
    assert {"threads", "runs", "operations", "attempts", "approvals", "checkpoints", "run_events"} < (
        rows_of(query, "old").keys()
    )
    told = [one.facts for one in await agent.aaudit("old")]
    clock.move(MONTH)

    pruned = await agent.aprune(older_than=DAY)

    assert {("agent", "succeeded"): 1} == pruned.threads
    assert {"audit", "audit_heads"} == rows_of(query, "old").keys()
    assert told == [one.facts for one in await agent.aaudit("old")]
    assert () == (await agent.averify_audit()).findings
    with pytest.raises(errors.UnknownThread):
        await agent.astate("old")


@pytest.mark.guarantee("G13")
async def test_nothing_that_is_young_open_or_driven_goes(agent: Runtime, query: Query, clock: Clock) -> None:
    ask = script([call("note", text="hello")])
    for thread in ("held", "again", "gone"):
        await done(agent, thread)
    await agent.ainvoke(ask, thread_id="waiting", as_=ANN)
    await agent.asubmit(ask, thread_id="queued", as_=ANN)
    await agent.ainvoke(ask, thread_id="aside", as_=ANN)
    await agent.apark("aside", "to be looked at")
    clock.move(MONTH)
    await done(agent, "young")
    await agent.asubmit(ask, thread_id="again", as_=ANN)
    lease = await claim(agent.store.database, "held", seconds=60)
    query("update threads set updated_at = updated_at - interval '40 days'")  # none is too young but by its lease
    query("update threads set updated_at = %s where id = 'young'", clock.now())

    pruned = await agent.aprune(older_than=DAY)

    assert {("agent", "succeeded"): 1} == pruned.threads
    assert {"in_use": 1} == pruned.kept
    await release(agent.store.database, lease)
    left = {str(thread) for (thread,) in query("select id from threads")}
    assert {"waiting", "queued", "aside", "again", "held", "young"} == left
    assert "succeeded" == (await agent.aresume("waiting")).status, "its approval has expired, and it goes on"


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize(
    "meanwhile",
    [
        "update threads set updated_at = standfast.now()",
        "update threads set due_at = standfast.now()",
        "update runs set state = 'queued' where number = 1",
        "update waits set state = 'open'",
        "update approvals set state = 'open'",
    ],
)
async def test_what_has_come_since_a_thread_was_chosen_keeps_it(
    agent: Runtime, query: Query, clock: Clock, meanwhile: str
) -> None:
    for _ in range(2):
        await done(agent, "t")
    clock.move(MONTH)
    selection = await agent._selection(DAY, None, None, "default", None)
    [chosen] = await agent.store.retention.page(selection, None, most=10)
    assert [None] == await agent.store.retention.would_keep([chosen.id], selection)
    query(meanwhile)
    assert ["in_use"] == await agent.store.retention.delete([chosen.id], selection)
    assert [("t",)] == query("select id from threads")


async def test_what_is_pruned_is_narrowed_by_status_graph_and_tenant(
    agent: Runtime, query: Query, clock: Clock
) -> None:
    for thread in ("a", "b", "c", "d"):
        await done(agent, thread)
    query("update runs set state = 'failed' where thread_id = 'b'")
    query("update threads set graph = 'other' where id = 'c'")
    query("update threads set tenant = 'acme' where id = 'd'")
    clock.move(MONTH)
    for options, goes in (
        ({"states": ["failed"]}, "b"),
        ({"graph": "other"}, "c"),
        ({"tenant": "acme"}, "d"),
        ({}, "a"),
    ):
        before = {thread for (thread,) in query("select id from threads")}
        await agent.aprune(older_than=DAY, **options)  # type: ignore[arg-type]
        assert {goes} == before - {thread for (thread,) in query("select id from threads")}


async def test_a_dry_run_says_the_same_and_changes_nothing(agent: Runtime, query: Query, clock: Clock) -> None:
    for thread in ("a", "b"):
        await done(agent, thread)
    await agent.ainvoke(script([call("note", text="hello")]), thread_id="waiting", as_=ANN)
    clock.move(MONTH)
    before = rows_of(query, "a")
    looked = await agent.aprune(older_than=DAY, dry_run=True)
    assert before == rows_of(query, "a")
    pruned = await agent.aprune(older_than=DAY)
    assert (True, False) == (looked.dry_run, pruned.dry_run)
    assert (looked.threads, looked.kept) == (pruned.threads, pruned.kept)
    assert {("agent", "succeeded"): 2} == pruned.threads


async def test_whoever_holds_a_thread_is_not_waited_for(
    agent: Runtime, database_url: str, query: Query, clock: Clock
) -> None:
    for thread in ("locked", "copied", "free"):
        await done(agent, thread)
    clock.move(MONTH)
    async with await psycopg.AsyncConnection.connect(database_url, options="-c search_path=standfast") as other:
        await other.execute("select from threads where id = 'locked' for key share")
        await other.execute("select keep_thread_1('copied')")
        async with asyncio.timeout(10):
            pruned = await agent.aprune(older_than=DAY)
    assert {"in_use": 2} == pruned.kept
    assert {"locked", "copied"} == {thread for (thread,) in query("select id from threads")}
    assert {("agent", "succeeded"): 2} == (await agent.aprune(older_than=DAY)).threads


async def test_a_run_that_comes_while_its_thread_is_deleted_begins_on_a_new_one(
    agent: Runtime, database_url: str, query: Query, clock: Clock
) -> None:
    await done(agent, "t")
    clock.move(MONTH)
    async with await psycopg.AsyncConnection.connect(database_url, options="-c search_path=standfast") as other:
        await other.execute("select take_unused_1('t')")
        coming = asyncio.create_task(agent.ainvoke(script("hello"), thread_id="t", as_=ANN))
        while not query("select 1 from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"):
            await asyncio.sleep(0.01)
        await other.execute("select * from delete_threads_1('{t}', %s, '{succeeded}')", [clock.now()])
        await other.commit()
        result = await coming
    assert "succeeded" == result.status
    assert [(1,)] == query("select number from runs where thread_id = 't'")


@pytest.mark.guarantee("G13")
async def test_a_thread_that_is_being_copied_is_not_pruned_and_its_copy_is_whole(
    agent: Runtime, database_url: str, query: Query, clock: Clock, add_thread: Callable[[str], str]
) -> None:
    await done(agent, "t")
    clock.move(MONTH)
    lease = await claim(agent.store.database, add_thread("copy"), seconds=60)
    saver = LeasedSaver(agent.store.database, agent.store.sealer, lease)
    async with await psycopg.AsyncConnection.connect(database_url, options="-c search_path=standfast") as other:
        await other.execute(  # in the way of the copy's first rows
            """insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, checkpoint)
               select 'copy', checkpoint_ns, checkpoint_id, '{}' from checkpoints where thread_id = 't'"""
        )
        copying = asyncio.create_task(saver.acopy_thread("t", "copy"))
        while not query("select 1 from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"):
            assert not copying.done()
            await asyncio.sleep(0.01)
        pruned = await agent.aprune(older_than=DAY)
        await other.rollback()
        await copying
    await release(agent.store.database, lease)
    assert ({}, {"in_use": 1}) == (pruned.threads, pruned.kept)
    of, copy = rows_of(query, "t"), rows_of(query, "copy")
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        assert 0 < of[table] == copy[table]
    assert {("agent", "succeeded"): 1} == (await agent.aprune(older_than=DAY)).threads


# -- what threads hold on to


async def test_bytes_and_documents_that_nothing_refers_to_go_too(
    agent: Runtime, query: Query, clock: Clock, tmp_path: Path
) -> None:
    shared, own = tmp_path / "shared.txt", tmp_path / "own.txt"
    shared.write_text("What both have read.")
    own.write_text("What one has read.")
    artifact = await agent.aput_artifact(b"x" * 1000, name="scan")
    for thread, files in (("old", [shared, own]), ("kept", [shared])):
        await agent.ainvoke(script("hello"), thread_id=thread, documents=files, as_=ANN)
    await agent.store.artifacts.refer_now("old", {artifact.sha256: artifact})
    query("update threads set tenant = 'acme' where id = 'kept'")
    clock.move(MONTH)

    pruned = await agent.aprune(older_than=DAY)

    assert (1, 1) == (pruned.artifacts, pruned.documents)
    assert [] == query("select sha256 from artifact_chunks")
    assert ["shared.txt"] == [
        one.name
        for one in await agent.store.documents.members((await agent.store.threads.latest("kept"))[0].collection_id)
    ]
    assert [(1,)] == query("select count(*) from documents")


async def test_documents_that_were_put_again_today_stay(
    agent: Runtime, query: Query, clock: Clock, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("Read again.")
    await agent.ainvoke(script("hello"), thread_id="t", documents=[tmp_path], as_=ANN)
    clock.move(MONTH)
    members = await agent.store.documents.members((await agent.store.threads.latest("t"))[0].collection_id)
    await agent.ainvoke(script("hello"), thread_id="again", documents=[tmp_path], as_=ANN)
    query("delete from threads where id = 'again'")
    assert 0 == (await agent.aprune(older_than=DAY)).documents
    assert [(one.sha256,) for one in members] == query("select sha256 from documents")


async def test_a_thread_stays_as_long_as_a_message_of_it_is_not_delivered(
    database_url: str, query: Query, clock: Clock
) -> None:
    down = True

    async def take(message: Any) -> None:
        if down:
            raise OSError("down")

    async def tell(state: Told) -> Told:
        notify("news", {"n": 1})
        return {"n": 1}

    graph = StateGraph(Told)
    graph.add_node("tell", tell)
    graph.add_edge(START, "tell")
    graph.add_edge("tell", END)
    async with Runtime(graph, database_url=database_url, channels=[FunctionChannel("here", take)]) as runtime:
        await runtime.ainvoke({"n": 0}, thread_id="t")
        clock.move(MONTH)
        assert {"undelivered": 1} == (await runtime.aprune(older_than=DAY)).kept
        down = False
        await runtime.adispatch()
        while query("select from deliveries where state = 'pending'"):
            clock.move(timedelta(hours=1))
            await runtime.adispatch()
        assert {} == (await runtime.aprune(older_than=0)).kept
    assert [] == query("select from threads")


class Told(TypedDict, total=False):
    n: int
    child: Any
    got: Any


async def test_a_child_stays_as_long_as_its_parent_may_join_it(database_url: str, query: Query, clock: Clock) -> None:
    ready = False

    async def begin(state: Told) -> Told:
        return {"child": await spawn({"n": 2}, graph="small")}

    async def gather(state: Told) -> Told:
        if not ready:
            raise OSError("not now")
        return {"got": await join(state["child"])}

    async def double(state: Told) -> Told:
        return {"n": state["n"] * 2}

    parent = StateGraph(Told)
    parent.add_node("begin", begin)
    parent.add_node("gather", gather)
    parent.add_edge(START, "begin")
    parent.add_edge("begin", "gather")
    small = StateGraph(Told)
    small.add_node("double", double)
    small.add_edge(START, "double")
    async with (
        Runtime(parent, database_url=database_url, name="parent") as above,
        Runtime(small, database_url=database_url, name="small") as below,
    ):
        await above.ainvoke({"n": 0}, thread_id="p")
        [(child,)] = query("select id from threads where graph = 'small'")
        await below.aresume(child)
        clock.move(MONTH)
        pruned = await below.aprune(older_than=DAY)
        assert ({}, {"family": 1}) == (pruned.threads, pruned.kept)
        ready = True
        assert {"n": 4} == (await above.aresume("p")).values["got"].output
        clock.move(MONTH)
        assert {("parent", "succeeded"): 1, ("small", "succeeded"): 1} == (await below.aprune(older_than=DAY)).threads


# -- long histories


@pytest.mark.guarantee("G13")
async def test_a_cut_history_reads_the_same_and_goes_on(agent: Runtime, query: Query, clock: Clock) -> None:
    for _ in range(3):
        await done(agent, "t")
    before = await agent.astate("t")
    clock.move(DAY)

    pruned = await agent.aprune(older_than=0, keep_checkpoints=3)

    assert {("agent", "succeeded"): 1} == pruned.threads
    history = await agent.ahistory("t")
    assert 3 == len(history)
    assert pruned.checkpoints > 10
    assert before.values == (await agent.astate("t")).values
    for one in history:
        assert (await agent.astate("t", at=one.checkpoint_id)).values["messages"]
    fork = await agent.afork("t", at=history[-1].checkpoint_id, as_=ANN)
    assert "succeeded" == (await agent.aresume(fork.thread_id)).status
    await done(agent, "t")
    after = (await agent.astate("t")).values["messages"]
    assert before.values["messages"] == after[: len(before.values["messages"])]
    clock.move(DAY)
    await agent.aprune(older_than=0, keep_checkpoints=1)
    assert 1 == len(await agent.ahistory("t"))
    assert after == (await agent.astate("t")).values["messages"]
    checkpoints = "select thread_id, checkpoint_ns, checkpoint_id from checkpoints"
    assert [] == query(f"select thread_id, checkpoint_ns, checkpoint_id from checkpoint_writes except {checkpoints}")


async def test_what_was_read_before_another_cut_is_not_written(
    agent: Runtime, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await done(agent, "t")
    before = (await agent.astate("t")).values["messages"]
    clock.move(DAY)
    read = agent._full

    async def cut_meanwhile(one: Any, selection: Any) -> Any:
        full = await read(one, selection)
        monkeypatch.setattr(agent, "_full", read)
        assert 0 < (await agent.aprune(older_than=0, keep_checkpoints=5)).checkpoints
        return full

    monkeypatch.setattr(agent, "_full", cut_meanwhile)
    assert {"in_use": 1} == (await agent.aprune(older_than=0, keep_checkpoints=3)).kept
    assert 5 == len(await agent.ahistory("t"))
    await agent.aprune(older_than=0, keep_checkpoints=3)
    assert 3 == len(await agent.ahistory("t"))
    assert before == (await agent.astate("t")).values["messages"]


async def test_a_cut_whose_commit_was_not_heard_of_is_counted_as_ones_own(
    agent: Runtime, query: Query, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await done(agent, "t")
    clock.move(DAY)
    run = agent.store.database.run

    async def unheard(work: Any, **options: Any) -> Any:
        await run(work, **options)
        return await run(work, **options)

    [(before,)] = query("select count(*) from checkpoints")
    with monkeypatch.context() as network:
        network.setattr(agent.store.database, "run", unheard)
        pruned = await agent.aprune(older_than=0, keep_checkpoints=3)
    [(after,)] = query("select count(*) from checkpoints")
    assert ({("agent", "succeeded"): 1}, {}, before - after) == (pruned.threads, pruned.kept, pruned.checkpoints)
    assert 0 < pruned.checkpoints


async def test_a_thread_that_is_deleted_while_it_is_cut_is_passed_over(agent: Runtime, clock: Clock) -> None:
    await done(agent, "t")
    clock.move(DAY)
    selection = await agent._selection(0, None, None, "default", 3)
    (candidate,) = await agent.store.retention.page(selection, None, most=10)
    full = await agent._full(candidate, selection)
    await agent.aprune(older_than=0)
    assert await agent.store.retention.cut("t", selection, full) is None


async def test_a_thread_that_waits_can_be_cut_and_answered(agent: Runtime, query: Query, clock: Clock) -> None:
    await done(agent, "t")
    waiting = await agent.ainvoke(script([call("note", text="again")]), thread_id="t", as_=ANN)
    clock.move(DAY)
    pruned = await agent.aprune(older_than=0, keep_checkpoints=1)
    assert {("agent", "open"): 1} == pruned.threads
    assert 1 == len(await agent.ahistory("t"))
    result = await agent.aresume("t", approve=waiting.approvals[0].id, as_=ANN)
    assert "succeeded" == result.status
    assert 2 == sum(one.name == "note" for one in await agent.store.operations.list("t"))


async def test_a_history_of_a_graph_that_is_not_loaded_keeps_what_it_is_read_from(
    agent: Runtime, database_url: str, query: Query, clock: Clock
) -> None:
    await done(agent, "t")
    before = await agent.astate("t")
    clock.move(DAY)
    small = StateGraph(Told)
    small.add_node("nothing", lambda state: {})
    small.add_edge(START, "nothing")
    async with Runtime(small, database_url=database_url, name="another") as other:
        await other.aprune(older_than=0, keep_checkpoints=1)
    assert before.values == (await agent.astate("t")).values


async def test_keep_latest_of_a_saver_leaves_messages_readable(agent: Runtime, clock: Clock) -> None:
    await done(agent, "t")
    before = await agent.astate("t")
    lease = await claim(agent.store.database, "t", seconds=60)
    await LeasedSaver(agent.store.database, agent.store.sealer, lease).aprune(["t"])
    await release(agent.store.database, lease)
    assert before.values == (await agent.astate("t")).values


@pytest.mark.parametrize(
    "wrong",
    [
        {"older_than": -1},
        {"older_than": "30d"},
        {"older_than": DAY, "states": ["waiting"]},
        {"older_than": DAY, "states": ["running", "succeeded"]},
        {"older_than": DAY, "keep_checkpoints": 0},
    ],
)
async def test_what_makes_no_sense_is_refused_in_one_sentence(agent: Runtime, wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        await agent.aprune(**wrong)
    assert "\n" not in refused.value.message


# -- the command line


async def test_the_command_says_what_went_and_what_stays(
    agent: Runtime, database_url: str, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    for thread in ("a", "b"):
        await done(agent, thread)
    lease = await claim(agent.store.database, "b", seconds=60)
    clock.move(MONTH)
    command = ["--database", database_url, "prune", "--older-than", "1d"]

    assert 0 == await asyncio.to_thread(run_app, [*command, "--dry-run"])
    told = capfd.readouterr()
    assert "1 thread would be deleted. Nothing was changed." in told.out
    assert "Kept: 1 thread in use, due or waiting." in told.err

    await release(agent.store.database, lease)
    clock.move(MONTH)
    assert 0 == await asyncio.to_thread(run_app, [*command, "--json"])
    said = json.loads(capfd.readouterr().out)
    assert [{"graph": "agent", "state": "succeeded", "threads": 1}] == said["threads"]
    assert 2 == await asyncio.to_thread(run_app, [*command[:-1], "soon"])
    assert "a time is a number with s, m, h or d" in capfd.readouterr().err
