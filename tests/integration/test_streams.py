"""A run's events can be read from any number, by any process, by any number of readers, and change nothing."""

from __future__ import annotations

import asyncio
import operator
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import MemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import Command, interrupt

from standfast.checkpoint import errors
from standfast.graph import (
    Effect,
    OperationContext,
    Policy,
    Principal,
    Runtime,
    StreamEvent,
    build_agent,
    fold_text,
    operation,
    recorder,
    sleep,
    wait_for_event,
)
from tests.crash.support.scripted_model import call, script
from tests.servers.openai import OpenAIServer, Reply

Query = Callable[..., list[tuple[Any, ...]]]
pytestmark = pytest.mark.guarantee("G9")
WORDS = "".join(f"word{number} " for number in range(300))


class State(TypedDict, total=False):
    n: Annotated[int, operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


def counting(steps: int, pause: float = 0.0) -> StateGraph[Any, Any, Any, Any]:
    """A graph of so many steps, each of which writes to the stream."""

    async def node(state: State) -> dict[str, Any]:
        get_stream_writer()({"step": state.get("n", 0)})
        await asyncio.sleep(pause)
        return {"n": 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: "node" if state["n"] < steps else "__end__")
    return graph


@pytest.fixture
def running(database_url: str) -> Callable[..., Any]:
    """`async with running(graph) as runtime:`"""

    @asynccontextmanager
    async def opening(graph: Any, **options: Any) -> AsyncIterator[Runtime]:
        async with Runtime(graph, database_url=database_url, **options) as runtime:
            yield runtime

    return opening


@pytest.fixture
def speaking(
    running: Callable[..., Any], openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """`async with speaking(*replies) as runtime:` the built-in agent over a model that says these."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", openai_server.base_url)

    def opening(*replies: Reply, **options: Any) -> Any:
        openai_server.script(*replies)
        return running(build_agent(), model="openai:test-model", **options)

    return opening


async def read(runtime: Runtime, thread: str, **options: Any) -> list[StreamEvent]:
    return [one async for one in runtime.astream(thread, **options)]


async def begun(runtime: Runtime, thread: str) -> None:
    """Return when the thread's run is accepted."""
    while True:
        try:
            await runtime.store.threads.get(thread)
        except errors.UnknownThread:
            await asyncio.sleep(0.01)
        else:
            return


async def all_stored(runtime: Runtime, thread: str) -> list[StreamEvent]:
    run_id = (await runtime.store.threads.get(thread)).run_id
    assert run_id is not None
    return await runtime.store.run_events.read(thread, run_id, after=0, limit=100_000)


def answers(messages: Sequence[BaseMessage]) -> dict[str, str]:
    """The stored texts of the model's answers, by their ids."""
    return {str(one.id): str(one.text) for one in messages if isinstance(one, AIMessage)}


# -- numbers and cursors


async def test_a_runs_events_are_numbered_without_gaps_over_all_its_drives(opened: Any) -> None:
    @operation(policy=Policy(effect=Effect.IDEMPOTENT, approval=True))
    async def pay(amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    async with opened(pay) as runtime:
        result = await runtime.ainvoke(script([call("pay", amount=5)]), thread_id="t")
        waiting = await read(runtime, "t")
        assert "run_wait" == waiting[-1].kind
        await runtime.aresume("t", approve=result.approvals[0].id, as_=Principal.vouched("a@example.com"))
        events = await read(runtime, "t")
        assert waiting == events[: len(waiting)]
        assert list(range(1, len(events) + 1)) == [one.seq for one in events]
        kinds = [one.kind for one in events]
        for kind in ("run_begin", "step_begin", "approval_open", "run_resume", "approval_decided", "operation_begin"):
            assert kind in kinds
        assert ("run_begin", "run_end") == (kinds[0], kinds[-1])
        begin = kinds.index("operation_begin")
        assert kinds.index("approval_decided") < begin < kinds.index("operation_end")
        assert ("operation", "operate") == events[begin].path


async def test_a_negative_cursor_gives_the_last_events(running: Any) -> None:
    async with running(counting(5)) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        events = await read(runtime, "t")
        assert events[-3:] == await read(runtime, "t", after=-3)
        assert events == await read(runtime, "t", after=-1000)
        assert events[7:] == await read(runtime, "t", after=7)
        assert [] == await read(runtime, "t", after=1000)


async def test_an_earlier_run_can_be_read_too(running: Any) -> None:
    async with running(counting(3)) as runtime:
        first = await runtime.ainvoke({}, thread_id="t")
        events = await read(runtime, "t")
        await runtime.ainvoke({}, thread_id="t")
        assert events == await read(runtime, "t", run_id=first.run_id)
        with pytest.raises(errors.UnknownThread):
            await read(runtime, "t", run_id="00000000-0000-0000-0000-000000000000")
        with pytest.raises(errors.UnknownThread):
            await read(runtime, "nobody")


async def test_a_page_of_many_events_is_read_to_its_end(running: Any) -> None:
    async with running(counting(450)) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        events = await read(runtime, "t")
        assert 1000 < len(events)
        assert list(range(1, len(events) + 1)) == [one.seq for one in events]


async def test_the_blocking_stream_is_the_same(database_url: str) -> None:
    with Runtime(counting(3), database_url=database_url) as runtime:
        runtime.invoke({}, thread_id="t")
        events = list(runtime.stream("t"))
        assert list(range(1, len(events) + 1)) == [one.seq for one in events]
        updates = list(runtime.stream_parts({}, thread_id="u", stream_mode=["updates"]))
        assert [("updates", {"node": {"n": 1}})] * 3 == updates


# -- readers


async def test_a_reader_that_is_cut_at_random_sees_every_event_once_and_in_order(running: Any) -> None:
    dice = random.Random(50)
    async with running(counting(150, 0.005)) as driver, running(counting(150)) as reader:
        drive = asyncio.create_task(driver.ainvoke({}, thread_id="t"))
        await begun(reader, "t")
        got: list[StreamEvent] = []
        cuts = 0
        while not got or got[-1].kind != "run_end":
            after, budget = (got[-1].seq if got else 0), dice.randint(0, 3)
            async with aclosing(reader.astream("t", after=after)) as events:
                async for one in events:
                    got.append(one)
                    if budget == 0 and cuts < 50:
                        cuts += 1
                        break
                    budget -= 1
        assert 50 == cuts
        assert "succeeded" == (await drive).status
        assert await all_stored(reader, "t") == got


async def test_a_reader_follows_a_run_that_another_process_drives_to_its_end(running: Any) -> None:
    async with running(counting(20, 0.01)) as worker, running(counting(20)) as reader:
        await reader.asubmit({}, thread_id="t")
        stop = asyncio.Event()
        work = asyncio.create_task(worker.awork(stop=stop))
        events = await read(reader, "t")
        assert ("run_end", "succeeded") == (events[-1].kind, events[-1].data["status"])
        assert list(range(1, len(events) + 1)) == [one.seq for one in events]
        stop.set()
        await work


async def test_a_stream_ends_when_the_run_waits(running: Any) -> None:
    async def node(state: State) -> dict[str, Any]:
        await wait_for_event("a")
        return {"n": 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    async with running(graph) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        events = await read(runtime, "t")
        assert ("run_wait", "a") == (events[-1].kind, events[-1].data[0]["name"])
        await runtime.aemit("a", id="1")
        later = asyncio.create_task(read(runtime, "t", after=events[-1].seq))
        await runtime.aresume("t")
        assert "run_end" == (await later)[-1].kind


async def test_a_reader_ends_though_every_notification_is_lost(running: Any, query: Query) -> None:
    query("create or replace function tell_1(thread text) returns void language sql as 'select null'")
    async with running(counting(10, 0.02)) as driver, running(counting(10)) as reader:
        await driver.asubmit({}, thread_id="t")
        reading = asyncio.create_task(read(reader, "t"))
        await driver.aresume("t")
        async with asyncio.timeout(5):
            assert "run_end" == (await reading)[-1].kind


async def test_a_reader_outlives_its_listening_connection(running: Any, query: Query) -> None:
    async with running(counting(30, 0.05)) as driver, running(counting(30)) as reader:
        await driver.asubmit({}, thread_id="t")
        reading = asyncio.create_task(read(reader, "t"))
        driving = asyncio.create_task(driver.aresume("t"))
        for _ in range(3):
            await asyncio.sleep(0.3)
            query(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and query like 'listen standfast%%'"
            )
        assert "succeeded" == (await driving).status
        assert await all_stored(driver, "t") == await reading


async def test_five_hundred_readers_share_one_listening_connection(
    running: Any, database_url: str, query: Query
) -> None:
    connections = """select count(*), count(*) filter (where query like 'listen standfast%%')
                       from pg_stat_activity where application_name = 'readers'"""
    counts: list[tuple[int, int]] = []

    async def watch() -> None:
        while True:
            ((count, listening),) = await asyncio.to_thread(query, connections)
            counts.append((count, listening))
            await asyncio.sleep(0.02)

    mark = "&" if "?" in database_url else "?"
    readers = Runtime(counting(20), database_url=f"{database_url}{mark}application_name=readers")
    async with running(counting(20, 0.05)) as driver, readers as reader:
        await driver.asubmit({}, thread_id="t")
        ((before, _),) = query(connections)
        watching = asyncio.create_task(watch())
        driving = asyncio.create_task(driver.aresume("t"))
        got = await asyncio.gather(*(read(reader, "t") for _ in range(500)))
        watching.cancel()
        await driving
        stored = await all_stored(driver, "t")
        assert all(stored == one for one in got)
    assert max(count for count, _ in counts) <= before + 1, counts
    assert max(listening for _, listening in counts) <= 1, counts


# -- nothing depends on a reader


async def test_what_is_stored_does_not_depend_on_who_listens(
    running: Any, openai_server: OpenAIServer, query: Query
) -> None:
    stored = []

    def graph() -> Any:
        model = GenericFakeChatModel(messages=iter([AIMessage("one two three", id="said") for _ in range(1)]))

        async def node(state: State) -> dict[str, Any]:
            get_stream_writer()("half")
            return {"messages": [await model.ainvoke("say")], "n": 1}

        built = StateGraph(State)
        built.add_node("node", node)
        built.add_node("again", counting(3).compile())
        built.add_edge(START, "node")
        built.add_edge("node", "again")
        return built

    async def nobody(runtime: Runtime) -> None:
        await runtime.ainvoke({}, thread_id="t")

    async def ten_readers(runtime: Runtime) -> None:
        await runtime.asubmit({}, thread_id="t")
        readers = [asyncio.create_task(read(runtime, "t")) for _ in range(10)]
        readers[3].cancel()
        await runtime.aresume("t")
        await asyncio.wait(readers)

    async def a_listener(runtime: Runtime) -> None:
        await runtime.ainvoke({}, thread_id="t", on_event=lambda _: None)

    async def parts(runtime: Runtime) -> None:
        modes = ["values", "updates", "messages", "custom"]
        async for _ in runtime.astream_parts({}, thread_id="t", stream_mode=modes, subgraphs=True):
            pass

    async def parts_left(runtime: Runtime) -> None:
        async with aclosing(runtime.astream_parts({}, thread_id="t", stream_mode="messages")) as some:
            async for _ in some:
                break
        await runtime.aresult("t", timeout=20)

    for listening in (nobody, ten_readers, a_listener, parts, parts_left):
        async with running(graph(), stream_models=True) as runtime:
            await listening(runtime)
            state = (await runtime.astate("t")).values
            encoded = runtime.store.sealer.codec.encode(state, where="state").hex()
            encoded = re.sub(b"lc_run--[0-9a-f-]{36}".hex(), "", encoded)
            told = [(one.kind, one.path) for one in await all_stored(runtime, "t") if one.kind != "token"]
            stored.append((encoded, len(state["messages"]), query("select count(*) from checkpoints"), told))
        query("truncate threads, checkpoints, checkpoint_blobs, checkpoint_writes cascade")
    assert 1 == stored[0][1]
    assert [stored[0]] * len(stored) == stored


async def test_losing_the_iterator_over_parts_does_not_end_the_drive(running: Any) -> None:
    async with running(counting(20, 0.01)) as runtime:
        async with aclosing(runtime.astream_parts({}, thread_id="t", stream_mode="updates")) as parts:
            async for part in parts:
                assert {"node": {"n": 1}} == part
                break
        assert "succeeded" == (await runtime.aresult("t", timeout=20)).status


# -- tokens


async def test_tokens_are_put_together_and_fold_to_the_stored_message(speaking: Any, query: Query) -> None:
    async with speaking(Reply(text=WORDS, pace=0.004)) as runtime:
        began = time.monotonic()
        result = await runtime.ainvoke("say it", thread_id="t")
        seconds = time.monotonic() - began
        events = await read(runtime, "t")
        tokens = [one for one in events if one.kind == "token"]
        assert 3 <= len(tokens) <= seconds / 0.1 + 3, f"{len(tokens)} events in {seconds:.1f} s"
        assert answers(result.messages) == fold_text(events)
        assert WORDS.strip() == next(iter(fold_text(events).values())).strip()


async def test_a_token_event_is_bounded_in_size(speaking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_TOKEN_SECONDS", 60.0)  # a machine that is busy must not make them smaller
    text = WORDS * 20
    async with speaking(Reply(text=text)) as runtime:
        result = await runtime.ainvoke("say it", thread_id="t")
        events = await read(runtime, "t")
        sizes = [len(one.data["text"]) for one in events if one.kind == "token"]
        assert 2000 >= max(sizes)
        assert len(text) / 1000 > len(sizes)
        assert answers(result.messages) == fold_text(events)


async def test_tokens_are_shown_while_the_model_speaks(speaking: Any) -> None:
    async with speaking(Reply(text=WORDS, pace=0.004)) as runtime:
        drive = asyncio.create_task(runtime.ainvoke("say it", thread_id="t"))
        await begun(runtime, "t")
        async with aclosing(runtime.astream("t")) as events:
            async for one in events:
                if one.kind == "token":
                    break
        assert not drive.done(), drive.result().reason
        assert "succeeded" == (await drive).status


async def test_what_a_failed_attempt_had_streamed_is_superseded(speaking: Any) -> None:
    cut, whole = Reply(text="wrong " * 40, pace=0.01, fail="cut", after=30), Reply(text=WORDS, pace=0.001)
    async with speaking(cut, whole) as runtime:
        result = await runtime.ainvoke("say it", thread_id="t")
        events = await read(runtime, "t")
        kinds = [one.kind for one in events]
        assert "wrong" in "".join(
            one.data["text"] for one in events[: kinds.index("superseded")] if one.kind == "token"
        )
        assert answers(result.messages) == fold_text(events)
        assert {1, 2} == {one.data["attempt"] for one in events if one.kind == "token"}


async def test_models_that_a_users_node_calls_are_told_of_too(running: Any, openai_server: OpenAIServer) -> None:
    openai_server.script(Reply(text=WORDS, pace=0.002))
    model = ChatOpenAI(model="test-model", base_url=openai_server.base_url, api_key="none", max_retries=0)  # type: ignore[arg-type]

    async def speak(state: State) -> dict[str, Any]:
        return {"messages": [await model.ainvoke("say it")]}

    inner = StateGraph(State)
    inner.add_node("speak", speak)
    inner.add_edge(START, "speak")
    graph = StateGraph(State)
    graph.add_node("sub", inner.compile())
    graph.add_edge(START, "sub")
    async with running(graph, stream_models=True) as runtime:
        result = await runtime.ainvoke({}, thread_id="t")
        events = await read(runtime, "t")
        assert {("sub", "speak")} == {one.path for one in events if one.kind == "token"}
        assert answers(result.messages) == fold_text(events)
        assert WORDS.strip() == next(iter(fold_text(events).values())).strip()


async def test_an_answer_is_told_once_where_the_agent_tells_it_itself(speaking: Any) -> None:
    async with speaking(Reply(text=WORDS), stream_models=True) as runtime:
        await runtime.ainvoke("say it", thread_id="t")
        events = await read(runtime, "t")
        assert [WORDS.strip()] == [text.strip() for text in fold_text(events).values()]
        assert 1 == sum(one.kind == "answer" for one in events)


# -- what else is told


async def test_a_subgraphs_events_carry_their_path_also_for_a_reader_that_comes_back(running: Any) -> None:
    graph = StateGraph(State)
    graph.add_node("sub", counting(5, 0.02).compile())
    graph.add_edge(START, "sub")
    async with running(graph) as runtime:
        drive = asyncio.create_task(runtime.ainvoke({}, thread_id="t"))
        await begun(runtime, "t")
        first: list[StreamEvent] = []
        async with aclosing(runtime.astream("t")) as events:
            async for one in events:
                first.append(one)
                if one.kind == "custom":
                    break
        events = first + await read(runtime, "t", after=first[-1].seq)
        await drive
        assert await all_stored(runtime, "t") == events
        assert [{"step": n} for n in range(5)] == [one.data for one in events if one.kind == "custom"]
        assert {("sub",)} == {one.path for one in events if one.kind == "custom"}
        assert 5 == sum(one.path == ("sub", "node") and one.kind == "step_end" for one in events)


async def test_an_event_that_cannot_be_stored_is_told_of_and_fails_nothing(running: Any) -> None:
    async def node(state: State) -> dict[str, Any]:
        write = get_stream_writer()
        write(object())
        write({"fine": 1})
        return {"n": 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    async with running(graph) as runtime:
        assert "succeeded" == (await runtime.ainvoke({}, thread_id="t")).status
        bad, good = [one.data for one in await all_stored(runtime, "t") if one.kind == "custom"]
        assert ["unstorable"] == list(bad)
        assert {"fine": 1} == good


async def test_an_event_is_as_it_was_when_it_was_told(opened: Any) -> None:
    @operation(policy=Policy(effect=Effect.READ))
    async def copy(context: OperationContext) -> str:
        """Copy files."""
        told = {"files": 1}
        context.progress(told)
        told["files"] = 2
        return "copied"

    async with opened(copy) as runtime:
        await runtime.ainvoke(script([call("copy")]), thread_id="t")
        assert [{"files": 1}] == [
            one.data["progress"] for one in await all_stored(runtime, "t") if one.kind == "progress"
        ]


async def test_progress_of_blocking_operations_comes_in_order_from_their_threads(opened: Any) -> None:
    @operation(policy=Policy(effect=Effect.READ))
    def copy(count: int, context: OperationContext) -> str:
        """Copy files."""
        for number in range(count):
            context.progress(number)
        return "copied"

    async with opened(copy) as runtime:
        request = script([call("copy", count=200), call("copy", count=200)])
        assert "succeeded" == (await runtime.ainvoke(request, thread_id="t")).status
        events = await read(runtime, "t")
        assert list(range(1, len(events) + 1)) == [one.seq for one in events]
        told: dict[str, list[int]] = {}
        for one in events:
            if one.kind == "progress":
                told.setdefault(one.data["operation_id"], []).append(one.data["progress"])
        assert [list(range(200))] * 2 == list(told.values())
        ended = {one.data["operation_id"]: one.seq for one in events if one.kind == "operation_end"}
        assert all(one.seq < ended[one.data["operation_id"]] for one in events if one.kind == "progress")


async def test_a_node_may_have_a_stroke_in_its_name(running: Any) -> None:
    async def node(state: State) -> dict[str, Any]:
        return {"n": 1}

    graph = StateGraph(State)
    graph.add_node("read/write", node)
    graph.add_edge(START, "read/write")
    async with running(graph) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        assert {("read/write",)} == {one.path for one in await all_stored(runtime, "t") if one.kind == "step_begin"}


# -- LangGraph's shapes


def shapes(*, nested: bool) -> StateGraph[Any, Any, Any, Any]:
    """A graph whose parts are of every kind: custom, spoken (nested or not), and interrupted."""

    async def speak(state: State) -> dict[str, Any]:
        get_stream_writer()("in the subgraph")
        model = GenericFakeChatModel(messages=iter([AIMessage("one two", id="said")]))
        return {"messages": [await model.ainvoke("say")], "n": 1}

    async def ask(state: State) -> dict[str, Any]:
        get_stream_writer()("at the root")
        return {"n": interrupt("how many?")}

    inner = StateGraph(State)
    inner.add_node("speak", speak)
    inner.add_edge(START, "speak")
    graph = StateGraph(State)
    graph.add_node("sub", inner.compile() if nested else speak)
    graph.add_node("ask", ask)
    graph.add_edge(START, "sub")
    graph.add_edge("sub", "ask")
    return graph


def plain(part: Any) -> Any:
    """A part without what differs from run to run."""
    if isinstance(part, dict):
        return {key: plain(value) for key, value in part.items() if key not in ("id", "checkpoint_ns")}
    if isinstance(part, BaseMessage):
        return type(part).__name__, part.content
    if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], BaseMessage):
        return plain(part[0]), part[1]["langgraph_node"]
    if isinstance(part, tuple | list):
        return type(part)(plain(one) for one in part)
    if isinstance(part, str):
        return part.split(":", 1)[0]
    return getattr(part, "value", part)


@pytest.mark.one_drive("each begins by telling the values that it finds")
@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize(
    "mode", ["values", "updates", "messages", "custom", ["updates"], ["values", "updates", "messages", "custom"]]
)
async def test_langgraphs_modes_come_in_langgraphs_shapes(running: Any, mode: Any, subgraphs: bool) -> None:
    nested = subgraphs or "messages" not in mode
    graph = shapes(nested=nested).compile(checkpointer=MemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    expected: list[list[Any]] = []
    for given in ({"n": 0}, Command(resume=5)):
        parts = graph.astream(given, config, stream_mode=mode, subgraphs=subgraphs, durability="sync")
        expected.append([plain(part) async for part in parts])
    async with running(shapes(nested=nested), stream_models=True) as runtime:
        got: list[list[Any]] = []
        for given in ({"n": 0}, Command(resume=5)):
            stream = runtime.astream_parts(given, thread_id="t", stream_mode=mode, subgraphs=subgraphs)
            got.append([plain(part) async for part in stream])
        assert "succeeded" == (await runtime.aresult("t")).status
    assert expected == got


async def test_a_mode_that_would_change_what_is_stored_is_refused(running: Any) -> None:
    async with running(counting(1)) as runtime:
        for mode in ("messages", ["values", "messages"], "nothing", []):
            with pytest.raises(errors.InvalidRequest):
                async for _ in runtime.astream_parts({}, thread_id="t", stream_mode=mode):
                    pass
        assert [] == await runtime.athreads()


async def test_parts_raise_what_the_drive_raises(running: Any) -> None:
    async def node(state: State) -> dict[str, Any]:
        await sleep(for_=timedelta(days=1))
        return {"n": 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    async with running(graph) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        with pytest.raises(errors.ThreadBusy):
            async for _ in runtime.astream_parts({}, thread_id="t"):
                pass
