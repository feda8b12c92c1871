"""Looking back, and forks: the past is never written, what was done is not done again, no old grant is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.codec import Codec
from standfast.graph import Principal, Result, Runtime, Said, durable_step, notify, uuid
from tests.crash.support import own_graphs
from tests.crash.support.scripted_model import call, script
from tests.servers.reports import ReportsServer

Open = Callable[..., Any]
ANN = Principal.vouched("ann@example.com")


def sent(server: ReportsServer) -> Counter[tuple[str, str]]:
    """(thread, text) of every effect that arrived."""
    return Counter((one["report"]["body"]["thread"], one["report"]["body"]["text"]) for one in server.effects())


def everything(query: Callable[..., list[tuple[Any, ...]]], thread: str) -> list[Any]:
    """All rows of a thread, as text."""
    tables = ("threads", "runs", "operations", "attempts", "approvals", "decisions", "waits", "run_events")
    columns = {"threads": "id"}
    tables += ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    return [
        query(f"select t::text from {table} t where {columns.get(table, 'thread_id')} = %s order by 1", thread)
        for table in tables
    ]


def results(result: Result) -> list[str]:
    return [str(one.text) for one in result.messages if isinstance(one, ToolMessage)]


async def before(runtime: Runtime, thread: str, node: str) -> str:
    """The checkpoint after which this node ran first."""
    return next(one.checkpoint_id for one in reversed(await runtime.ahistory(thread)) if node in one.next)


@pytest.fixture
def posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The threads that have posted a notice, one for each effect."""
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("STANDFAST_TEST_LOG", str(log))
    return lambda: [line.split()[0] for line in log.read_text().splitlines()]


@pytest.fixture
def noticing(database_url: str) -> Open:
    """A runtime over a graph whose approval is a node of the root graph."""
    return lambda: Runtime(own_graphs.noticing(), database_url=database_url)


async def approved(runtime: Runtime, thread: str, request: str) -> Result:
    waiting = await runtime.ainvoke(request, thread_id=thread, as_=ANN)
    return await runtime.aresume(thread, approve=waiting.approvals[0].id, as_=ANN)


class Pages(TypedDict, total=False):
    text: str
    done: int


def fan(state: Pages) -> list[Send]:
    return [Send("read", {"done": number}) for number in range(3)]


def write(state: Pages) -> Pages:
    return {"text": "x" * 100_000}


# -- history


async def test_a_history_tells_what_came_next_and_what_each_step_wrote(opened: Open) -> None:
    async with opened() as runtime:
        await approved(runtime, "t", script([call("note", text="a"), call("jot", text="b")], "Done."))
        history = await runtime.ahistory("t")
        page = await runtime.ahistory("t", limit=2)
        rest = await runtime.ahistory("t", before=page[-1].checkpoint_id[:30])
    assert [{}, {"record": 1}, {"analysis": 1}, {"operation": 2}, {"analysis": 1}] == [
        dict(one.next) for one in history[:5]
    ]
    assert ("messages",) == history[2].changed
    assert "outcome" in history[0].changed
    assert history == [*page, *rest]
    assert [one.parent_id for one in history[:-1]] == [one.checkpoint_id for one in history[1:]]


async def test_a_history_opens_no_large_value(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = StateGraph(Pages)
    graph.add_node("write", write)
    graph.add_node("read", lambda state: None)
    graph.add_edge(START, "write")
    graph.add_conditional_edges("write", fan, ["read"])
    async with Runtime(graph, database_url=database_url) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        opened_bytes: list[int] = []
        decode = Codec.decode

        def counting(self: Codec, data: bytes, **options: Any) -> Any:
            opened_bytes.append(len(data))
            return decode(self, data, **options)

        monkeypatch.setattr(Codec, "decode", counting)
        history = await runtime.ahistory("t")
    assert {"read": 3} == dict(history[1].next)
    assert 2000 > sum(opened_bytes)


async def test_a_state_is_that_of_its_checkpoint(opened: Open) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(script([call("jot", text="a")], "Done."), thread_id="t")
        history = await runtime.ahistory("t")
        lengths = [len((await runtime.astate("t", at=one.checkpoint_id)).values.get("messages", ())) for one in history]
        with pytest.raises(errors.UnknownCheckpoint, match="standfast history t"):
            await runtime.astate("t", at="0123abcd")
        with pytest.raises(errors.UnknownCheckpoint, match="several"):
            await runtime.astate("t", at=history[0].checkpoint_id[:4])
    assert [4, 4, 3, 2, 1, 0] == lengths


async def test_a_difference_names_fields_and_messages(opened: Open) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(script([call("jot", text="a")], "Done."), thread_id="t")
        end, _, before, *_ = await runtime.ahistory("t")
        diff = await runtime.adiff(("t", before.checkpoint_id), "t")
        same = await runtime.adiff(("t", end.checkpoint_id), "t")
    added = [one for one in diff.changes if one.path.startswith("messages.answer-")]
    assert ["Done."] == [one.after["content"] for one in added]
    assert ["messages", "outcome", "turn"] == sorted({one.path.split(".")[0] for one in diff.changes})
    assert () == tuple(same.changes)


# -- forks


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("at", range(6))
async def test_a_fork_repeats_no_effect_and_leaves_its_source_as_it_was(
    opened: Open, reports_server: ReportsServer, query: Callable[..., list[tuple[Any, ...]]], at: int
) -> None:
    request = script([call("note", text="asked"), call("jot", text="free")], [call("shout", text="once")], "Done.")
    async with opened() as runtime:
        source = await approved(runtime, "source", request)
        before = everything(query, "source")
        history = await runtime.ahistory("source")
        fork = await runtime.afork("source", at=history[at].checkpoint_id, to="fork", allow_effects=at % 2 == 0)
        assert "queued" == fork.status
        done = await runtime.aresume("fork", as_=ANN)
        inherited = query("select count(*) from operations where thread_id = 'fork' and inherited_from = 'source'")
        started = query("select count(*) from attempts where thread_id = 'fork'")
    assert "succeeded" == done.status
    assert results(source) == results(done)
    assert source.outcome["answer"] == done.outcome["answer"]
    assert {("source", "asked"): 1, ("source", "free"): 1, ("source", "once"): 1} == sent(reports_server)
    assert before == everything(query, "source")
    assert [(6,)] == inherited
    assert [(0,)] == started


@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G6")
async def test_a_new_effect_of_a_fork_needs_a_word_a_new_id_and_a_new_approval(
    opened: Open, reports_server: ReportsServer, query: Callable[..., list[tuple[Any, ...]]]
) -> None:
    async with opened() as runtime:
        await approved(runtime, "source", script([call("note", text="first")], "Done."))
        *_, at_request, _ = await runtime.ahistory("source")
        message = (await runtime.astate("source", at=at_request.checkpoint_id)).values["messages"][0]
        other = message.model_copy(update={"content": script([call("note", text="other")], "Done.")})
        options: dict[str, Any] = {
            "at": at_request.checkpoint_id,
            "values": {"messages": [other]},
            "as_node": "__start__",
        }
        reading = await runtime.afork("source", to="reading", **options)
        refused = await runtime.aresume(reading.thread_id)
        assert {("source", "first"): 1} == sent(reports_server)
        assert [] == query("select id from approvals where thread_id = 'reading'")

        await runtime.afork("source", to="acting", allow_effects=True, **options)
        waiting = await runtime.aresume("acting")
        (asked,) = waiting.approvals
        assert {("source", "first"): 1} == sent(reports_server)
        done = await runtime.aresume("acting", approve=asked.id, as_=ANN)
        known = query("select id from operations where thread_id = 'source'")
        new = query("select id from operations where thread_id = 'acting' and kind = 'tool' and inherited_from is null")
    (told,) = results(refused)
    assert "not carried out" in told
    assert "fork of source" in told
    assert "succeeded" == done.status
    assert {("source", "first"): 1, ("acting", "other"): 1} == sent(reports_server)
    assert 1 == len(new)
    assert not set(new) & set(known)


@pytest.mark.guarantee("G6")
async def test_a_fork_uses_no_grant_of_its_source(opened: Open, reports_server: ReportsServer) -> None:
    """The yes was given and not yet used when the fork was made."""
    async with opened() as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="asked")], "Done."), thread_id="source", as_=ANN)
        fork = await runtime.afork("source", to="fork", allow_effects=True)
        await runtime.adecide(waiting.approvals[0].id, Said("approve"), as_=ANN)
        again = await runtime.aresume(fork.thread_id)
        (asked,) = again.approvals
        late = await runtime.afork("source", to="late", allow_effects=True)
        also = await runtime.aresume(late.thread_id)
        assert Counter() == sent(reports_server)
        assert 3 == len({asked.id, also.approvals[0].id, waiting.approvals[0].id})
        await runtime.aresume("source")
        rejected = await runtime.aresume("fork", reject=asked.id, reason="no", as_=ANN)
    assert {("source", "asked"): 1} == sent(reports_server)
    assert "Rejected" in results(rejected)[0]


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("node", ["draft", "validation", "approval", "operate"])
@pytest.mark.parametrize("effects", [False, True])
async def test_nobody_is_asked_in_a_fork_about_what_its_source_has_done(
    noticing: Open, posted: Callable[[], list[str]], node: str, effects: bool
) -> None:
    async with noticing() as runtime:
        waiting = await runtime.ainvoke({"text": "once", "messages": []}, thread_id="source")
        source = await runtime.aresume("source", approve=waiting.approvals[0].id, as_=ANN)
        await runtime.afork("source", at=await before(runtime, "source", node), to="fork", allow_effects=effects)
        done = await runtime.aresume("fork")
        asked = await runtime.aapprovals(thread_id="fork", state=None)
    assert ("succeeded", source.values["reply"]) == (done.status, done.values["reply"])
    assert [] == list(asked)
    assert ["source"] == posted()


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("node", ["draft", "validation", "approval"])
async def test_nobody_is_asked_in_a_fork_that_may_only_read_about_what_its_source_has_not_done(
    noticing: Open, posted: Callable[[], list[str]], node: str
) -> None:
    async with noticing() as runtime:
        waiting = await runtime.ainvoke({"text": "once", "messages": []}, thread_id="source")
        await runtime.afork("source", at=await before(runtime, "source", node), to="fork")
        done = await runtime.aresume("fork")
        asked = await runtime.aapprovals(thread_id="fork", state=None)
        await runtime.aresume("source", approve=waiting.approvals[0].id, as_=ANN)
        late = await runtime.aresume("fork")
    assert "post was not carried out: thread fork is a fork of source" in done.values["reply"]
    assert done.values == late.values
    assert [] == list(asked)
    assert ["source"] == posted()


@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("node", ["approval", "operate"])
async def test_a_fork_between_two_nodes_has_its_new_effect_under_an_id_of_its_own(
    noticing: Open, posted: Callable[[], list[str]], query: Callable[..., list[tuple[Any, ...]]], node: str
) -> None:
    """The state that it begins with holds its source's id, and perhaps that its source was granted it."""
    async with noticing() as runtime:
        waiting = await runtime.ainvoke({"text": "each", "messages": []}, thread_id="source")
        at = await before(runtime, "source", "approval")
        values = {"granted": True} if node == "operate" else None
        options: dict[str, Any] = {"values": values, "as_node": "approval"} if values else {}
        await runtime.afork("source", at=at, to="fork", allow_effects=True, **options)
        await runtime.aresume("source", approve=waiting.approvals[0].id, as_=ANN)
        again = await runtime.aresume("fork")
        assert ["source"] == posted()
        done = await runtime.aresume("fork", approve=again.approvals[0].id, as_=ANN)
    assert "succeeded" == done.status
    assert ["source", "fork"] == posted()
    assert 2 == len(query("select distinct id from operations where kind = 'tool'"))


@pytest.mark.guarantee("G4")
async def test_a_fork_of_a_fork_still_answers_from_the_ledger(opened: Open, reports_server: ReportsServer) -> None:
    request = script([call("jot", text="one")], [call("jot", text="two")], "Done.")
    async with opened() as runtime:
        await runtime.ainvoke(request, thread_id="a")
        for source, target in (("a", "b"), ("b", "c"), ("c", "d")):
            history = await runtime.ahistory(source)
            await runtime.afork(source, at=history[3].checkpoint_id, to=target, allow_effects=True)
            done = await runtime.aresume(target)
            assert "succeeded" == done.status
            assert 3 == sum(isinstance(one, AIMessage) for one in done.messages)
    assert {("a", "one"): 1, ("a", "two"): 1} == sent(reports_server)


async def test_a_fork_that_cannot_be_written_is_not_there(
    opened: Open, query: Callable[..., list[tuple[Any, ...]]]
) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(script("Done."), thread_id="source")
        with pytest.raises(errors.InvalidRequest, match="no field 'colour'"):
            await runtime.afork("source", values={"colour": "red"}, to="fork")
        with pytest.raises(errors.InvalidRequest, match="nothing was made"):
            await runtime.afork("source", values={"messages": []}, as_node="nowhere", to="fork")
        with pytest.raises(errors.UnknownCheckpoint):
            await runtime.afork("source", at="0000aaaa", to="fork")
        with pytest.raises(errors.UnknownThread):
            await runtime.afork("nobody", to="fork")
        with pytest.raises(errors.InvalidRequest, match="'source' already"):
            await runtime.afork("source", to="source")
    assert [] == query("select id from threads where id = 'fork'")
    assert [] == query("select checkpoint_id from checkpoints where thread_id = 'fork'")


class State(TypedDict, total=False):
    amount: int
    key: str
    answer: str


async def test_a_graph_of_one_s_own_is_forked_at_its_question_with_other_values(
    database_url: str, tmp_path: Path
) -> None:
    counted = tmp_path / "counted"

    @durable_step
    def price(amount: int) -> int:
        with counted.open("a") as file:
            file.write("x")
        return amount * 2

    async def ask(state: State) -> State:
        cost = await price(state["amount"])
        return {"answer": f"{cost} {interrupt('really?')}", "key": str(await uuid())}

    graph = StateGraph(State)
    graph.add_node("begin", lambda state: None)
    graph.add_node("ask", ask)
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "ask")
    graph.add_edge("ask", END)
    async with Runtime(graph, database_url=database_url) as runtime:
        await runtime.ainvoke({"amount": 2}, thread_id="source")
        plain = await runtime.afork("source")
        changed = await runtime.afork("source", values={"amount": 5}, as_node="begin")
        assert "waiting" == (await runtime.aresume(plain.thread_id)).status
        same = await runtime.aresume(plain.thread_id, "yes")
        assert 1 == len(counted.read_text())  # the fork found the step's result
        await runtime.aresume(changed.thread_id)
        other = await runtime.aresume(changed.thread_id, "no")
        original = await runtime.aresume("source", "maybe")
    assert ["4 yes", "10 no", "4 maybe"] == [one.values["answer"] for one in (same, other, original)]
    assert 2 == len(counted.read_text())


async def test_messages_of_a_fork_that_may_only_read_are_not_sent(
    database_url: str, query: Callable[..., list[tuple[Any, ...]]]
) -> None:
    async def tell(state: State) -> State:
        notify("told", {"amount": state["amount"]})
        return {}

    graph = StateGraph(State)
    graph.add_node("tell", tell)
    graph.add_edge(START, "tell")
    async with Runtime(graph, database_url=database_url) as runtime:
        await runtime.ainvoke({"amount": 2}, thread_id="source")
        first = (await runtime.ahistory("source"))[1].checkpoint_id
        for target, allowed in (("reading", False), ("acting", True)):
            await runtime.afork("source", at=first, to=target, allow_effects=allowed)
            await runtime.aresume(target)
    told = query("select distinct thread_id from outbox where topic = 'told' order by 1")
    assert [("acting",), ("source",)] == told
