"""What the leased saver adds to LangGraph's: held writes, one commit a step, the head check, closed values."""

from __future__ import annotations

import asyncio
import operator
import pickle
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base import id as id_clock
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.lease import claim
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.store import Store

Query = Callable[..., list[tuple[Any, ...]]]
Drive = Callable[..., AbstractAsyncContextManager[Any]]
Graph = CompiledStateGraph[Any, Any, Any, Any]


def at(thread_id: str, **metadata: str) -> Any:
    return {"configurable": {"thread_id": thread_id}, "metadata": {"run_id": "run", **metadata}}


class Trace(TypedDict, total=False):
    done: Annotated[list[str], operator.add]


def steps(count: int) -> Graph:
    """A chain of `count` nodes that each add their name."""
    graph = StateGraph(Trace)
    names = [f"step{number}" for number in range(count)]
    for name in names:
        graph.add_node(name, lambda _, name=name: {"done": [name]})
    graph.add_edge(START, names[0])
    for before, after in pairwise(names):
        graph.add_edge(before, after)
    return graph.compile()


class Siblings:
    """`fast` and `slow` run in one step; `slow` waits until it is let go."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.slow_began = asyncio.Event()
        self.let_slow_go = asyncio.Event()
        graph = StateGraph(Trace)

        async def fast(_: Trace) -> Trace:
            self.runs.append("fast")
            return {"done": ["fast"]}

        async def slow(_: Trace) -> Trace:
            self.runs.append("slow")
            self.slow_began.set()
            await self.let_slow_go.wait()
            return {"done": ["slow"]}

        for name, node in (("fast", fast), ("slow", slow)):
            graph.add_node(name, node)
            graph.add_edge(START, name)
            graph.add_edge(name, END)
        self.graph: Graph = graph.compile()


async def until(condition: Callable[[], bool], *, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def written(query: Query, node: str) -> list[str]:
    """The channels that a node's task has written, as another process sees them."""
    rows = query("select channel from checkpoint_writes where strpos(task_path, %s) > 0 order by idx", node)
    return [channel for (channel,) in rows if not channel.startswith("branch:")]


@pytest.fixture
def commits(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each unit of work that reached the database."""
    counted: list[str] = []
    run = store.database.run

    async def counting(work: Any, *, pipeline: bool = False) -> Any:
        result = await run(work, pipeline=pipeline)
        if pipeline:
            counted.append("step")
        return result

    fetch_none = store.database.fetch_none

    async def counting_alone(statement: bytes, params: Any = ()) -> None:
        await fetch_none(statement, params)
        if b"insert into checkpoints" in statement:
            counted.append("step")

    monkeypatch.setattr(store.database, "run", counting)
    monkeypatch.setattr(store.database, "fetch_none", counting_alone)
    return counted


# -- held writes


@pytest.mark.guarantee("G2")
async def test_a_finished_sibling_is_on_disk_while_the_slow_one_runs(store: Store, drive: Drive, query: Query) -> None:
    siblings = Siblings()
    async with drive("t") as driven:
        run = asyncio.create_task(driven.graph(siblings.graph).ainvoke({"done": []}, at("t"), durability="sync"))
        await siblings.slow_began.wait()
        await until(lambda: written(query, "fast") == ["done"])
        assert not run.done()
        siblings.let_slow_go.set()
        assert {"done": ["fast", "slow"]} == await run


@pytest.mark.guarantee("G2")
async def test_a_cancelled_drive_keeps_the_finished_sibling(drive: Drive, query: Query) -> None:
    siblings = Siblings()
    async with drive("t") as driven:
        run = asyncio.create_task(driven.graph(siblings.graph).ainvoke({"done": []}, at("t"), durability="sync"))
        await siblings.slow_began.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    siblings.let_slow_go.set()
    async with drive("t") as driven:
        assert {"done": ["fast", "slow"]} == await driven.graph(siblings.graph).ainvoke(None, at("t"))
    assert ["fast", "slow", "slow"] == siblings.runs


@pytest.mark.guarantee("G13")
async def test_a_step_is_one_commit(drive: Drive, commits: list[str], query: Query) -> None:
    async with drive("t") as driven:
        await driven.graph(steps(10)).ainvoke({"done": []}, at("t"), durability="sync")
    checkpoints = query("select count(*) from checkpoints where thread_id = 't'")[0][0]
    assert (12, 11) == (checkpoints, len(commits))  # the input's rides with the next one


@pytest.mark.guarantee("G2")
async def test_the_checkpoint_of_an_input_is_on_disk_before_a_node_begins(drive: Drive, query: Query) -> None:
    seen: list[str] = []

    async def look(_: Trace) -> dict[str, Any]:
        seen.extend(row[0] for row in query("select metadata ->> 'source' from checkpoints order by checkpoint_id"))
        return {"done": ["look"]}

    builder = StateGraph(Trace)
    builder.add_node("look", look)
    builder.add_edge(START, "look")
    async with drive("t") as driven:
        await driven.graph(builder.compile()).ainvoke({"done": []}, at("t"), durability="sync")
    assert ["input", "loop"] == seen


async def test_the_checkpoint_of_an_input_that_nothing_follows_is_flushed(drive: Drive, query: Query) -> None:
    builder = StateGraph(Trace)
    builder.add_node("look", lambda _: {})
    builder.add_edge(START, "look")
    async with drive("t") as driven:
        config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        saved = await driven.saver.aput(config, empty_checkpoint(), {"source": "input", "step": -1}, {})
        assert [] == query("select checkpoint_id from checkpoints")
        found = await driven.saver.aget_tuple(saved)
        assert found is not None
        assert [(found.checkpoint["id"],)] == query("select checkpoint_id from checkpoints")


@pytest.mark.guarantee("G13")
async def test_the_steps_of_fifty_threads_at_a_time_are_few_commits(drive: Drive, commits: list[str]) -> None:
    graph = steps(5)

    async def one(thread_id: str) -> None:
        async with drive(thread_id) as driven:
            await driven.graph(graph).ainvoke({"done": []}, at(thread_id), durability="sync")

    await asyncio.gather(*(one(f"t{number}") for number in range(50)))
    assert 6 <= len(commits) < 50 * 6 / 4


async def test_a_failed_background_flush_loses_nothing(drive: Drive, query: Query) -> None:
    query("create sequence refusals")  # a sequence counts on when its transaction is rolled back
    query(
        """create function refuse() returns trigger language plpgsql as
           $$ begin perform nextval('refusals'); raise 'no space left' using errcode = 'disk_full'; end $$"""
    )
    query(
        """create trigger refuse before insert on checkpoint_writes for each row
           when (strpos(new.task_path, 'fast') > 0) execute function refuse()"""
    )
    siblings = Siblings()
    async with drive("t") as driven:
        run = asyncio.create_task(driven.graph(siblings.graph).ainvoke({"done": []}, at("t"), durability="sync"))
        await siblings.slow_began.wait()
        await until(lambda: query("select is_called from refusals") == [(True,)])
        assert not run.done()
        query("drop trigger refuse on checkpoint_writes")
        siblings.let_slow_go.set()
        assert {"done": ["fast", "slow"]} == await run
    assert (["done"], ["done"]) == (written(query, "fast"), written(query, "slow"))


# -- interrupts


class Asking(TypedDict, total=False):
    answers: Annotated[list[str], operator.add]


def asking() -> Graph:
    """Two questions at once, one of them in a subgraph."""
    inner = StateGraph(Asking)
    inner.add_node("ask", lambda _: {"answers": [interrupt("inner?")]})
    inner.add_edge(START, "ask")
    graph = StateGraph(Asking)
    graph.add_node("nested", inner.compile())
    graph.add_node("plain", lambda _: {"answers": [interrupt("outer?")]})
    graph.add_edge(START, "nested")
    graph.add_edge(START, "plain")
    return graph.compile()


async def questions(store: Store, graph: Graph, thread_id: str) -> dict[str, str]:
    """The open questions, as another process with a connection of its own would read them."""
    reading = graph.copy()
    reading.checkpointer = LeasedSaver(store.database, store.sealer)
    state = await reading.aget_state({"configurable": {"thread_id": thread_id}})
    return {one.value: one.id for one in state.interrupts}


@pytest.mark.guarantee("G1")
async def test_two_questions_are_on_disk_after_the_flush(store: Store, drive: Drive) -> None:
    graph = asking()
    async with drive("t") as driven:
        await driven.graph(graph).ainvoke({"answers": []}, at("t"), durability="sync")
        await driven.saver.aflush()
        assert {"inner?", "outer?"} == (await questions(store, graph, "t")).keys()


async def test_a_copy_can_be_answered_and_its_original_stays_as_it_was(store: Store, drive: Drive) -> None:
    graph = asking()
    async with drive("original") as driven:
        await driven.graph(graph).ainvoke({"answers": []}, at("original"), durability="sync")
    before = await questions(store, graph, "original")
    async with drive("copy") as driven:
        await driven.saver.acopy_thread("original", "copy")
        assert before == await questions(store, graph, "copy")
        answers = {before["inner?"]: "i", before["outer?"]: "o"}
        ended = await driven.graph(graph).ainvoke(Command(resume=answers), at("copy"), durability="sync")
    assert {"answers": ["i", "o"]} == ended
    assert before == await questions(store, graph, "original")


@pytest.mark.guarantee("G2")
async def test_the_error_marker_is_on_disk_before_the_handler_runs(drive: Drive, query: Query) -> None:
    seen: list[list[str]] = []
    graph = StateGraph(Trace)

    async def failing(_: Trace) -> Trace:
        raise ValueError("no")

    async def handler(_: Trace) -> Trace:
        seen.append(written(query, "failing"))
        return {"done": ["handled"]}

    graph.add_node("failing", failing, error_handler=handler)
    graph.add_edge(START, "failing")
    async with drive("t") as driven:
        assert {"done": ["handled"]} == await driven.graph(graph.compile()).ainvoke(
            {"done": []}, at("t"), durability="sync"
        )
    assert [["__error__", "__error_source_node__"]] == seen


# -- the head and the fence


@pytest.mark.guarantee("G3")
async def test_a_second_drive_under_one_lease_is_refused(store: Store, drive: Drive, query: Query) -> None:
    graph = steps(3)
    async with drive("t") as driven:
        await driven.graph(graph).ainvoke({"done": []}, at("t"), interrupt_after=["step0"], durability="sync")
        old = (await driven.graph(graph).aget_state(at("t"))).config
        await driven.graph(graph).ainvoke(None, at("t"), durability="sync")
        count = query("select count(*) from checkpoints")
        stale: Any = {**at("t"), "configurable": old["configurable"]}
        with pytest.raises(errors.HeadMoved, match="head of thread"):
            await driven.graph(graph).ainvoke(None, stale, durability="sync")
        driven.saver._held.clear()  # what the refused drive had computed
    assert count == query("select count(*) from checkpoints")


@pytest.mark.guarantee("G3")
async def test_a_fork_is_let_through_at_its_first_checkpoint_only(store: Store, drive: Drive) -> None:
    graph = steps(3)
    async with drive("t") as driven:
        await driven.graph(graph).ainvoke({"done": []}, at("t"), interrupt_after=["step0"], durability="sync")
        old = (await driven.graph(graph).aget_state(at("t"))).config
        await driven.graph(graph).ainvoke(None, at("t"), durability="sync")
    async with drive("t", forked=True) as driven:
        forked = driven.graph(graph)
        stale: Any = {**at("t"), "configurable": old["configurable"]}
        assert {"done": ["step0", "step1", "step2"]} == await forked.ainvoke(None, stale, durability="sync")
        with pytest.raises(errors.HeadMoved):
            await forked.ainvoke(None, stale, durability="sync")
        driven.saver._held.clear()


@pytest.mark.guarantee("G3")
async def test_after_another_claim_every_write_is_refused(
    store: Store, drive: Drive, query: Query, add_thread: Callable[[str], str]
) -> None:
    lease = await claim(store.database, add_thread("t"), seconds=60)
    saver = LeasedSaver(store.database, store.sealer, lease)
    config = await saver.aput(config_of("t"), checkpoint_of({"x": "one"}), {"step": 0}, {"x": "1"})
    query("update threads set lease_expires_at = now() - interval '1 second'")
    taken = await claim(store.database, "t", seconds=60)
    assert lease.epoch + 1 == taken.epoch

    with pytest.raises(errors.LeaseLost):
        await saver.aput(config, checkpoint_of({"x": "two"}), {"step": 1}, {"x": "2"})
    assert lease.lost is not None
    for write in (
        lambda: saver.aput(config, checkpoint_of({"x": "three"}), {"step": 1}, {"x": "3"}),
        lambda: saver.aput_writes(config, [("x", "four")], "task"),
        lambda: saver.adelete_thread("t"),
        lambda: saver.adelete_for_runs(["run"]),
        lambda: saver.acopy_thread("other", "t"),
        lambda: saver.aprune(["t"]),
    ):
        with pytest.raises(errors.LeaseLost):
            await write()
    assert [(1, 0)] == query("select (select count(*) from checkpoints), (select count(*) from checkpoint_writes)")


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    "operation", ["aput", "aflush", "adelete_thread", "adelete_for_runs", "acopy_thread", "aprune"]
)
async def test_every_kind_of_write_checks_the_epoch_itself(
    store: Store, query: Query, add_thread: Callable[[str], str], operation: str
) -> None:
    lease = await claim(store.database, add_thread("t"), seconds=60)
    saver = LeasedSaver(store.database, store.sealer, lease)
    config = await saver.aput(config_of("t"), checkpoint_of({"x": "one"}), {"step": 0, "run_id": "run"}, {"x": "1"})
    await saver.aput(config, checkpoint_of({"x": "two"}), {"step": 1, "run_id": "run"}, {"x": "2"})
    before = query("select * from checkpoints order by checkpoint_id")
    query("update threads set epoch = epoch + 1")
    arguments: dict[str, tuple[Any, ...]] = {
        "aput": (config, checkpoint_of({"x": "three"}), {"step": 1}, {"x": "3"}),
        "aflush": (),
        "adelete_thread": ("t",),
        "adelete_for_runs": (["run"],),
        "acopy_thread": ("other", "t"),
        "aprune": (["t"],),
    }
    if operation == "aflush":
        await saver.aput_writes(config, [("x", "held")], "task")
    with pytest.raises(errors.LeaseLost):
        await getattr(saver, operation)(*arguments[operation])
    assert before == query("select * from checkpoints order by checkpoint_id")
    assert [(0,)] == query("select count(*) from checkpoint_writes")


async def test_without_a_lease_the_saver_only_reads(store: Store, drive: Drive) -> None:
    graph = steps(1)
    async with drive("t") as driven:
        await driven.graph(graph).ainvoke({"done": []}, at("t"), durability="sync")
    reader = LeasedSaver(store.database, store.sealer)
    found = await reader.aget_tuple(config_of("t"))
    assert found is not None
    assert ["step0"] == found.checkpoint["channel_values"]["done"]
    with pytest.raises(errors.UsageError, match="no lease"):
        await reader.aput(config_of("t"), checkpoint_of({}), {}, {})
    with pytest.raises(errors.UsageError, match="no lease"):
        await reader.aput_writes(found.config, [("done", ["x"])], "task")


async def test_a_saver_writes_for_no_other_thread_but_reads_it(store: Store, drive: Drive) -> None:
    async with drive("known") as driven:
        await driven.graph(steps(1)).ainvoke({"done": []}, at("known"), durability="sync")
    async with drive("mine") as driven:
        with pytest.raises(errors.UsageError, match="not of 'known'"):
            await driven.saver.aput(config_of("known"), checkpoint_of({}), {}, {})
        found = await driven.saver.aget_tuple(config_of("known"))
        assert found is not None
        assert ["step0"] == found.checkpoint["channel_values"]["done"]


@pytest.mark.parametrize(
    "call",
    [
        lambda saver: saver.put(config_of("t"), checkpoint_of({}), {}, {}),
        lambda saver: saver.put_writes(config_of("t"), [("x", 1)], "task"),
        lambda saver: saver.get_tuple(config_of("t")),
        lambda saver: next(saver.list(config_of("t"))),
        lambda saver: saver.delete_thread("t"),
        lambda saver: saver.prune(["t"]),
        lambda saver: saver.get_delta_channel_history(config=config_of("t"), channels=["x"]),
    ],
)
async def test_a_blocking_call_inside_the_loop_is_refused_at_once(
    store: Store, drive: Drive, call: Callable[[LeasedSaver], object]
) -> None:
    async with drive("t") as driven:
        with pytest.raises(errors.WrongLoop, match="async twin"):
            call(driven.saver)


# -- clocks


@pytest.mark.guarantee("G3")
async def test_a_process_with_a_clock_behind_continues_at_the_head(
    store: Store, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = steps(3)
    async with drive("t") as driven:
        await driven.graph(graph).ainvoke({"done": []}, at("t"), interrupt_after=["step0"], durability="sync")
    behind(monkeypatch, seconds=60)
    async with drive("t") as driven:
        assert {"done": ["step0", "step1", "step2"]} == await driven.graph(graph).ainvoke(
            None, at("t"), durability="sync"
        )
        state = await driven.graph(graph).aget_state(at("t"))
    assert ((), ["step0", "step1", "step2"]) == (state.next, state.values["done"])


@pytest.mark.guarantee("G3")
async def test_a_head_from_a_clock_one_hour_ahead_is_followed(
    store: Store, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = steps(3)
    with monkeypatch.context() as ahead:
        behind(ahead, seconds=-3600)
        async with drive("t") as driven:
            await driven.graph(graph).ainvoke({"done": []}, at("t"), interrupt_after=["step0"], durability="sync")
    monkeypatch.setattr(id_clock, "_last_v6_timestamp", None)  # another process
    async with drive("t") as driven:
        assert {"done": ["step0", "step1", "step2"]} == await driven.graph(graph).ainvoke(
            None, at("t"), durability="sync"
        )


def behind(monkeypatch: pytest.MonkeyPatch, *, seconds: int) -> None:
    """Let the clock of checkpoint ids be that of another process, `seconds` behind this one's."""
    real = id_clock.time.time_ns
    monkeypatch.setattr(id_clock, "_last_v6_timestamp", None)

    class Time:
        time_ns = staticmethod(lambda: real() - seconds * 1_000_000_000)

    monkeypatch.setattr(id_clock, "time", Time)


# -- what is stored


class Spoken(TypedDict, total=False):
    word: str
    number: int
    messages: Annotated[list[Any], operator.add]


@pytest.mark.guarantee("G12")
async def test_no_value_of_the_state_and_no_credential_is_in_clear(store: Store, drive: Drive, query: Query) -> None:
    graph = StateGraph(Spoken)
    graph.add_node("speak", lambda _: {"word": "marmalade", "number": 987654321, "messages": [AIMessage("treacle")]})
    graph.add_edge(START, "speak")
    secret: Any = {
        "configurable": {"thread_id": "t", "api_key": "sk-hush", "user": "someone"},
        "metadata": {"run_id": "run", "token": "tk-hush"},
    }
    async with drive("t") as driven:
        await driven.graph(graph.compile()).ainvoke({"word": "quince"}, secret, durability="sync")
    in_clear = repr(query("select thread_id, checkpoint_ns, checkpoint::text, metadata::text from checkpoints"))
    everything = (
        in_clear + repr(query("select * from checkpoint_writes")) + repr(query("select * from checkpoint_blobs"))
    )
    assert [] == [word for word in ("marmalade", "quince", "treacle", "987654321") if word in in_clear]
    assert [] == [word for word in ("sk-hush", "tk-hush", "someone") if word in everything]
    assert '"run_id": "run"' in in_clear


class Planted:
    """What a hostile row would like to run."""

    ran = False

    def __init__(self, *_: object) -> None:
        type(self).ran = True

    def __reduce__(self) -> Any:
        return (Planted, ("x",))


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("kind", ["msgpack", "pickle", "json", "standfast"])
@pytest.mark.parametrize("table", ["checkpoint_blobs", "checkpoint_writes"])
async def test_a_row_that_somebody_else_wrote_is_refused_and_runs_nothing(
    store: Store, drive: Drive, query: Query, kind: str, table: str
) -> None:
    siblings = Siblings()
    async with drive("t") as driven:
        run = asyncio.create_task(driven.graph(siblings.graph).ainvoke({"done": ["x"]}, at("t"), durability="sync"))
        await siblings.slow_began.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    hostile = {
        # EXT_CONSTRUCTOR_SINGLE_ARG of langgraph's msgpack: (module, name, argument)
        "msgpack": ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb([__name__, "Planted", "x"]))),
        "pickle": pickle.dumps(Planted()),
        "json": b'{"lc": 2, "type": "constructor", "id": ["subprocess", "run"]}',
        "standfast": ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb([__name__, "Planted", "x"]))),
    }[kind]
    Planted.ran = False
    query(f"update {table} set type = %s, blob = %s where channel = 'done'", kind, hostile)
    reader = LeasedSaver(store.database, store.sealer)
    wanted = errors.CorruptValue if kind == "standfast" else errors.UnknownStoredType
    with pytest.raises(wanted, match=r"'t'.*done"):
        await reader.aget_tuple(config_of("t"))
    with pytest.raises(wanted):
        [found async for found in reader.alist(config_of("t"))]
    assert not Planted.ran


@pytest.mark.guarantee("G11")
async def test_a_checkpoint_with_plain_values_of_another_saver_is_refused(
    store: Store, drive: Drive, query: Query
) -> None:
    async with drive("t") as driven:
        await driven.graph(steps(1)).ainvoke({"done": []}, at("t"), durability="sync")
    query("""update checkpoints set checkpoint = jsonb_set(checkpoint, '{channel_values,word}', '"plain"')""")
    with pytest.raises(errors.UnknownStoredType, match="word"):
        await LeasedSaver(store.database, store.sealer).aget_tuple(config_of("t"))


# -- DeltaChannel


class Delta(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer, snapshot_frequency=4)]
    count: int


@pytest.mark.guarantee("G2")
async def test_a_delta_channel_has_equal_values_after_a_break_and_new_input(store: Store, drive: Drive) -> None:
    broken = True

    async def speak(state: Delta) -> Any:
        if broken and state["count"] == 5:
            raise ConnectionResetError("away")
        number = state["count"]
        return {"messages": [AIMessage(f"m{number}", id=f"{number}")], "count": number + 1}

    graph = StateGraph(Delta)
    graph.add_node("speak", speak)
    graph.add_edge(START, "speak")
    graph.add_conditional_edges("speak", lambda state: END if state["count"] % 10 == 0 else "speak")
    compiled: Graph = graph.compile()
    async with drive("t") as driven:
        with pytest.raises(ConnectionResetError):
            await driven.graph(compiled).ainvoke(
                {"messages": [HumanMessage("go", id="h1")], "count": 0}, at("t"), durability="sync"
            )
    broken = False
    async with drive("t") as driven:
        await driven.graph(compiled).ainvoke(None, at("t"), durability="sync")
    async with drive("t") as driven:
        await driven.graph(compiled).ainvoke(
            {"messages": [HumanMessage("more", id="h2")], "count": 11},
            at("t", run_id="second"),
            durability="sync",
        )
    compiled.checkpointer = LeasedSaver(store.database, store.sealer)
    values = (await compiled.aget_state(at("t"))).values
    expected = ["go", *(f"m{n}" for n in range(10)), "more", *(f"m{n}" for n in range(11, 20))]
    assert expected == [message.content for message in values["messages"]]


def config_of(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


def checkpoint_of(values: dict[str, Any]) -> Any:
    return {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, "1")}
