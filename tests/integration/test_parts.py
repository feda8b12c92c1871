"""A large text or bytes that a node writes into its state stands beside the checkpoint, and comes back as it was."""

from __future__ import annotations

import copy
import itertools
import operator
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Overwrite, Send, interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.codec import Codec
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.settings import Settings
from standfast.checkpoint.store import Store
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.graph import Artifact, Runtime
from standfast.graph.standalone import standalone
from standfast.nodes.state import AgentState
from tests.conftest import Clock

pytestmark = pytest.mark.guarantee("G13")

Query = Callable[..., list[tuple[Any, ...]]]
Drive = Callable[..., AbstractAsyncContextManager[Any]]
CHECKPOINTS = ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "run_events", "runs")
LARGE = 300_000
DAY = timedelta(days=1)


class Page(TypedDict, total=False):
    value: Any
    count: int
    pages: Annotated[list[Any], operator.add]
    answer: Any


@dataclass
class Scan:
    """A class of the program's own."""

    name: str
    data: bytes


def noise(size: int = LARGE, seed: int = 7) -> bytes:
    return random.Random(seed).randbytes(size)


def registry() -> TypeRegistry:
    known = TypeRegistry()
    known.register(Scan)
    return known


def chain(*nodes: Callable[..., Any], state: Any = Page) -> Any:
    graph = StateGraph(state)
    for at, node in enumerate(nodes):
        graph.add_node(f"node{at}", node)
    for before, after in itertools.pairwise([START, *(f"node{at}" for at in range(len(nodes))), END]):
        graph.add_edge(before, after)
    return graph


def stored_bytes(query: Query, *tables: str) -> int:
    return sum(int(query(f"select coalesce(sum(pg_column_size(x.*)), 0) from {table} x")[0][0]) for table in tables)


# -- what a node writes, the next one reads


@pytest.mark.parametrize("document", [noise(50_000_000), "ä" * 25_000_000], ids=["bytes", "text"])
async def test_fifty_megabytes_of_a_nodes_own_state_pass_through_twenty_steps_with_checkpoints_under_one(
    database_url: str, query: Query, document: Any
) -> None:
    async def take(state: Page) -> Page:
        return {"value": document, "count": 1}

    async def work(state: Page) -> Page:
        assert document == state["value"]
        return {"value": state["value"], "count": state["count"] + 1}

    graph = StateGraph(Page)
    graph.add_node("take", take)
    graph.add_node("work", work)
    graph.add_edge(START, "take")
    graph.add_edge("take", "work")
    graph.add_conditional_edges("work", lambda state: "work" if state["count"] < 20 else END)
    async with Runtime(graph, database_url=database_url) as runtime:
        result = await runtime.ainvoke({}, thread_id="t")
        assert (20, True) == (result.values["count"], document == result.values["value"])
        assert document == (await runtime.astate("t", whole=True)).values["value"]
        [kept] = await runtime.aartifacts(thread_id="t")
        assert ("value", 50_000_000) == (kept.artifact.name, kept.artifact.size)
    assert stored_bytes(query, *CHECKPOINTS) < 1_000_000


def numpy_array() -> Any:
    numpy = pytest.importorskip("numpy")
    return numpy.arange(200_000, dtype="float64").reshape(1000, 200)


VALUES: dict[str, Callable[[], Any]] = {
    "bytes": noise,
    "text": lambda: "long ü " * 50_000,
    "surrogates": lambda: "\ud800" * 200_000,
    "bytearray": lambda: bytearray(noise()),
    "in a list": lambda: [1, noise(), (noise(seed=8), "x")],
    "in a dict": lambda: {"a": {"b": "t" * LARGE}, Decimal("1.0"): noise()},
    "twice": lambda: [noise(), noise(), "é" * LARGE, "é" * LARGE],
    "in a class": lambda: Scan("n", noise()),
    "in a message": lambda: HumanMessage([{"type": "text", "text": "t" * LARGE}], id="1"),
    "in a set": lambda: {noise(), 1},
    "array": numpy_array,
}


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("kind", VALUES)
async def test_a_large_part_comes_back_with_its_type_in_another_process_and_in_the_answer(
    database_url: str, query: Query, kind: str
) -> None:
    value = VALUES[kind]()
    seen: list[Any] = []

    def write(state: Page) -> Page:
        return {"value": value}

    def read(state: Page) -> Page:
        answer = interrupt("?")
        seen.append(state["value"])
        return {"count": answer}

    for answer in (None, 5):
        async with Runtime(chain(write, read), database_url=database_url, registry=registry()) as runtime:
            if answer is None:
                await runtime.ainvoke({}, thread_id="t")
            else:
                result = await runtime.aresume("t", answer)
                again = await runtime.aresume("t")
    codec = Codec(registry())
    for found in (*seen, result.values["value"], again.values["value"]):
        assert type(value) is type(found)
        assert codec.encode(value) == codec.encode(found)
    assert 1 == len(seen)
    assert stored_bytes(query, *CHECKPOINTS) < 100_000


async def test_a_part_that_a_list_gathers_is_stored_once_however_often_the_list_is_written(
    database_url: str, query: Query
) -> None:
    def add(seed: int) -> Callable[[Page], Page]:
        return lambda state: {"pages": [noise(seed=seed)]}

    async with Runtime(chain(*(add(seed) for seed in range(6))), database_url=database_url) as runtime:
        result = await runtime.ainvoke({}, thread_id="t")
    assert [noise(seed=seed) for seed in range(6)] == result.values["pages"]
    assert [(6, 6 * LARGE)] == query("select count(*), sum(size) from artifacts")
    assert stored_bytes(query, *CHECKPOINTS) < 100_000


async def test_a_part_is_sent_to_many_and_stored_once(database_url: str, query: Query) -> None:
    seen: list[Any] = []

    def each(state: Page) -> Page:
        seen.append(state["value"])
        return {"pages": [len(state["value"])]}

    graph = StateGraph(Page)
    graph.add_node("each", each)
    graph.add_conditional_edges(START, lambda state: [Send("each", {"value": noise()}) for _ in range(5)])
    graph.add_edge("each", END)
    async with Runtime(graph, database_url=database_url) as runtime:
        assert [LARGE] * 5 == (await runtime.ainvoke({"count": 1}, thread_id="t")).values["pages"]
        assert 5 == (await runtime.ahistory("t"))[0].number or await runtime.ahistory("t")
    assert [noise()] * 5 == seen
    assert [(1,)] == query("select count(*) from artifacts")


async def test_large_messages_are_read_back_from_what_each_step_added(database_url: str, query: Query) -> None:
    def say(state: AgentState) -> Any:
        return {"messages": [AIMessage("a" * LARGE, id=str(len(state["messages"])))]}

    def count(state: AgentState) -> Any:
        interrupt("?")
        sizes = [len(str(one.content)) for one in state["messages"]]
        return {"messages": [AIMessage(str(sizes), id="sizes")]}

    for answer in (None, 5):
        async with Runtime(chain(say, say, count, state=AgentState), database_url=database_url) as runtime:
            if answer is None:
                await runtime.ainvoke("begin", thread_id="t")
                shown: list[AnyMessage] = (await runtime.astate("t")).values["messages"]
            else:
                result = await runtime.aresume("t", answer)
    assert f"[5, {LARGE}, {LARGE}]" == result.messages[-1].content
    assert shown[1].text.startswith("Artifact 'messages' (text/plain; charset=utf-8, 300,000 bytes), id ")
    assert stored_bytes(query, *CHECKPOINTS) < 100_000


async def test_what_is_not_large_stays_where_it_is(database_url: str, query: Query) -> None:
    def write(state: Page) -> Page:
        return {"value": {"text": "x" * 262_144, "rows": [{"n": n} for n in range(100_000)]}}

    async with Runtime(chain(write), database_url=database_url) as runtime:
        await runtime.ainvoke({}, thread_id="t")
    assert [] == query("select sha256 from artifacts")


async def test_what_is_large_can_be_said(database_url: str, query: Query) -> None:
    def write(state: Page) -> Page:
        return {"value": {"text": "x" * 1000}}

    settings = Settings(artifact_bytes=999)
    async with Runtime(chain(write), database_url=database_url, settings=settings) as runtime:
        assert {"text": "x" * 1000} == (await runtime.ainvoke({}, thread_id="t")).values["value"]
    assert [(1000,)] == query("select size from artifacts")


async def test_a_graph_with_a_saver_of_its_own_sees_its_values(database_url: str, query: Query) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    async with standalone(database_url) as saver:
        graph = chain(lambda state: {"value": noise()}).compile(checkpointer=saver)
        await graph.ainvoke({}, config, durability="sync")
    async with standalone(database_url) as saver:
        graph.checkpointer = saver
        assert noise() == (await graph.aget_state(config)).values["value"]
        assert [noise(), None, None] == [one.values.get("value") async for one in graph.aget_state_history(config)]
    assert stored_bytes(query, *CHECKPOINTS) < 100_000


# -- what is shown


@pytest.mark.parametrize("kind", VALUES)
async def test_what_is_shown_loads_no_part(database_url: str, query: Query, kind: str) -> None:
    value = VALUES[kind]()

    def write(state: Page) -> Page:
        return {"value": value, "count": 1}

    async with Runtime(
        chain(write, lambda state: {"count": 2}), database_url=database_url, registry=registry()
    ) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        query("delete from artifact_chunks")
        state = await runtime.astate("t")
        history = await runtime.ahistory("t")
        diff = await runtime.adiff(("t", history[1].checkpoint_id), "t")
        since = await runtime.adiff(("t", history[2].checkpoint_id), "t")
        assert "name='value'" in repr(state.values["value"]) or "Artifact 'value'" in repr(state.values["value"])
        assert ["count: 1 -> 2"] == [str(one) for one in diff.changes]
        assert "Artifact" in str(since.changes[0])
        with pytest.raises(errors.UnknownArtifact):
            await runtime.astate("t", whole=True)


async def test_a_part_is_known_by_the_artifact_that_is_shown_for_it(database_url: str) -> None:
    async with Runtime(chain(lambda state: {"value": {"scan": noise()}}), database_url=database_url) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        shown = (await runtime.astate("t")).values["value"]["scan"]
        assert Artifact(shown.sha256, "value", "application/octet-stream", LARGE) == shown
        assert noise() == await runtime.aread_artifact(shown)


# -- references


async def references(query: Query, thread: str) -> int:
    return int(query("select count(*) from artifact_references where thread_id = %s", thread)[0][0])


def replaced(state: Page) -> Page:
    return {"value": noise(seed=state.get("count", 0)), "count": state.get("count", 0) + 1}


async def test_a_part_goes_with_the_last_checkpoint_that_holds_it(
    store: Store, drive: Drive, clock: Clock, query: Query
) -> None:
    config = {"configurable": {"thread_id": "t"}}
    async with drive("t") as driven:
        graph = driven.graph(chain(replaced, replaced, replaced).compile(checkpointer=True))
        await graph.ainvoke({}, config, durability="sync")
        assert 3 == await references(query, "t")
        await driven.saver.aprune(["t"])
        assert 1 == await references(query, "t")
        clock.move(2 * DAY)
        assert 2 == await store.artifacts.sweep()
        assert noise(seed=2) == (await graph.aget_state(config)).values["value"]

        await graph.aupdate_state(config, {"value": noise(seed=0)})  # what was swept is put again
        assert noise(seed=0) == (await graph.aget_state(config)).values["value"]
        await driven.saver.adelete_thread("t")
        assert 0 == await references(query, "t")
        clock.move(2 * DAY)
        assert 2 == await store.artifacts.sweep()
    assert [] == query("select sha256 from artifacts")


async def test_a_part_goes_with_the_run_that_wrote_it(drive: Drive, query: Query) -> None:
    async with drive("t") as driven:
        graph = driven.graph(chain(replaced).compile(checkpointer=True))
        for run in ("first", "second"):
            config = {"configurable": {"thread_id": "t"}, "metadata": {"run_id": run}}
            await graph.ainvoke({}, config, durability="sync")
        assert 2 == await references(query, "t")
        await driven.saver.adelete_for_runs(["second"])
        assert 1 == await references(query, "t")
        assert noise(seed=0) == (await graph.aget_state(config)).values["value"]


async def test_what_was_put_by_name_stays_though_it_was_a_part_too(store: Store, drive: Drive, query: Query) -> None:
    config = {"configurable": {"thread_id": "t"}}
    async with drive("t") as driven:
        graph = driven.graph(chain(replaced).compile(checkpointer=True))
        await graph.ainvoke({}, config, durability="sync")
        kept = await store.artifacts.put(noise(seed=0), name="mine", media_type="a/b", thread_id="t")
        await driven.saver.adelete_thread("t")
        assert [(kept.sha256,)] == query("select sha256 from artifact_references where thread_id = 't'")


async def test_a_copy_refers_too_and_reads_when_its_source_is_gone(
    store: Store, drive: Drive, clock: Clock, query: Query
) -> None:
    config = {"configurable": {"thread_id": "source"}}
    compiled = chain(replaced).compile(checkpointer=True)
    async with drive("source") as driven:
        await driven.graph(compiled).ainvoke({}, config, durability="sync")
    async with drive("target") as driven:
        await driven.saver.acopy_thread("source", "target")
    query("delete from threads where id = 'source'")
    clock.move(2 * DAY)
    assert 0 == await store.artifacts.sweep()
    reader = copy.copy(compiled)
    reader.checkpointer = LeasedSaver(store.database, store.sealer)
    assert noise(seed=0) == (await reader.aget_state({"configurable": {"thread_id": "target"}})).values["value"]


def spoken(state: AgentState) -> Any:
    return {"messages": [AIMessage("a" * LARGE, id="spoken")]}


@pytest.mark.parametrize("named_by", ["checkpoint_blobs", "checkpoint_writes"])
async def test_a_copy_holds_on_to_what_its_rows_name_when_others_of_it_go(
    drive: Drive, query: Query, named_by: str
) -> None:
    config = {"configurable": {"thread_id": "source"}}
    blobs = named_by == "checkpoint_blobs"
    graph, given = (chain(replaced), {}) if blobs else (chain(spoken, state=AgentState), {"messages": []})
    async with drive("source") as driven:
        await driven.graph(graph.compile(checkpointer=True)).ainvoke(given, config, durability="sync")
        if blobs:
            await driven.saver.aprune(["source"])  # with the writes that named it too
    assert [(named_by,)] == query(
        """select 'checkpoint_blobs' from checkpoint_blobs where parts <> '{}'
           union select 'checkpoint_writes' from checkpoint_writes where parts <> '{}'"""
    )
    async with drive("target") as driven:
        await driven.saver.acopy_thread("source", "target")
        await driven.saver.adelete_for_runs(["another"])
    assert 1 == await references(query, "target")


async def test_a_fork_of_a_cut_history_refers_to_what_only_its_checkpoint_names(
    database_url: str, clock: Clock, query: Query
) -> None:
    async with Runtime(chain(replaced), database_url=database_url) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        clock.move(DAY)
        await runtime.aprune(older_than=0, keep_checkpoints=1)
        assert [] == query("select parts from checkpoint_writes where parts <> '{}'")
        await runtime.afork("t", to="fork")
        assert 1 == await references(query, "fork")


async def test_a_fork_refers_to_what_only_the_writes_of_its_steps_name(database_url: str, query: Query) -> None:
    async with Runtime(chain(spoken, state=AgentState), database_url=database_url) as runtime:
        await runtime.ainvoke("begin", thread_id="t")
        assert [] == query("select parts from checkpoint_blobs where parts <> '{}'")
        await runtime.afork("t", to="fork")
        assert 1 == await references(query, "fork")


async def test_a_fork_refers_to_the_parts_that_it_took_along_and_to_no_others(
    database_url: str, clock: Clock, query: Query
) -> None:
    async with Runtime(chain(replaced, replaced, replaced), database_url=database_url) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        history = await runtime.ahistory("t")
        after_first = next(one for one in history if one.number == 1)
        await runtime.afork("t", at=after_first.checkpoint_id, to="fork")
        assert (3, 1) == (await references(query, "t"), await references(query, "fork"))
        query("delete from threads where id = 't'")
        clock.move(2 * DAY)
        assert 2 == await runtime.asweep_artifacts()
        result = await runtime.aresume("fork")
        assert ("succeeded", noise(seed=2)) == (result.status, result.values["value"])


async def test_a_history_that_is_cut_keeps_the_parts_of_what_stays_and_no_others(
    database_url: str, clock: Clock, query: Query
) -> None:
    def say(state: AgentState) -> Any:
        return {"messages": [AIMessage("abc"[len(state["messages"]) - 1] * LARGE, id=str(len(state["messages"])))]}

    async with (
        Runtime(chain(say, say, say, state=AgentState), database_url=database_url) as talking,
        Runtime(chain(replaced, replaced, replaced), database_url=database_url, name="pages") as runtime,
    ):
        await talking.ainvoke("begin", thread_id="talk")
        await runtime.ainvoke({}, thread_id="t")
        clock.move(2 * DAY)
        for one in (talking, runtime):
            await one.aprune(older_than=DAY, graph=one.name, keep_checkpoints=1)
        assert (3, 1) == (await references(query, "talk"), await references(query, "t"))
        assert 2 == await runtime.asweep_artifacts()
        messages = (await talking.astate("talk", whole=True)).values["messages"]
        assert ["begin", *(letter * LARGE for letter in "abc")] == [one.content for one in messages]
        assert noise(seed=2) == (await runtime.astate("t", whole=True)).values["value"]
    assert stored_bytes(query, *CHECKPOINTS) < 100_000


async def test_a_state_that_is_updated_by_hand_may_hold_what_was_swept_before(
    database_url: str, clock: Clock, query: Query
) -> None:
    async with Runtime(chain(replaced), database_url=database_url) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        await runtime.afork("t", to="fork", values={"value": noise(seed=9), "pages": Overwrite([noise(seed=0)])})
        assert [noise(seed=0)] == (await runtime.astate("fork", whole=True)).values["pages"]
    assert 2 == await references(query, "fork")
