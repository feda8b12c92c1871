"""What threads remember for each other: in any graph, sealed, of exact types."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langgraph.config import get_store
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime as NodeRuntime
from pydantic import Field

from standfast.checkpoint import errors
from standfast.checkpoint.memory import preferences_of
from standfast.checkpoint.store import Store
from standfast.graph import Principal, Runtime, build_agent, remember
from tests.crash.support.scripted_model import ScriptedModel, call, script

ANN = Principal.vouched("ann.lee@example.com")
BOB = Principal.vouched("bob@example.com")


class State(TypedDict, total=False):
    name: str
    seen: str


async def learn(state: State, runtime: NodeRuntime[None]) -> State:
    assert runtime.store is not None
    await runtime.store.aput(("people",), state["name"], {"since": date(2026, 1, 2)})
    return {}


def recall(state: State) -> State:
    found = get_store().get(("people",), state["name"])  # a blocking node, on a thread of its own
    return {"seen": "nothing" if found is None else f"{found.value['since']:%d.%m.%Y}"}


def graph_of(node: Any) -> StateGraph[State]:
    graph = StateGraph(State)
    graph.add_node("only", node)
    graph.add_edge(START, "only")
    return graph


class Attentive(ScriptedModel):
    """Keeps what it was instructed."""

    instructions: list[str] = Field(default_factory=list)

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        assert isinstance(messages[0], SystemMessage)
        self.instructions.append(str(messages[0].text))
        return super().answer(messages)


async def test_a_node_of_one_graph_finds_what_a_node_of_another_put(database_url: str) -> None:
    async with Runtime(graph_of(learn), database_url=database_url, name="learn") as runtime:
        await runtime.ainvoke({"name": "ann"}, thread_id="one")
    async with Runtime(graph_of(recall), database_url=database_url, name="recall") as runtime:
        result = await runtime.ainvoke({"name": "ann"}, thread_id="two")
        nobody = await runtime.ainvoke({"name": "bob"}, thread_id="three")
    assert "02.01.2026" == result.values["seen"]
    assert "nothing" == nobody.values["seen"]


async def test_a_second_thread_of_a_requester_knows_what_the_first_one_learned(database_url: str) -> None:
    model = Attentive()
    request = script([call("remember", preference="Amounts in euros.")], "It is remembered.")
    async with Runtime(build_agent(model=model, operations=[remember]), database_url=database_url) as runtime:
        waiting = await runtime.ainvoke(request, thread_id="first", as_=ANN)
        assert not any("Amounts in euros." in one for one in model.instructions)
        await runtime.aresume("first", approve=waiting.approvals[0].id, as_=ANN)
        model.instructions.clear()
        await runtime.ainvoke({"messages": [HumanMessage("How much?")]}, thread_id="second", as_=ANN)
        (hers,) = model.instructions
        model.instructions.clear()
        await runtime.ainvoke({"messages": [HumanMessage("How much?")]}, thread_id="third", as_=BOB)
        (his,) = model.instructions
    assert "- Amounts in euros." in hers
    assert "euros" not in his


async def test_what_is_learned_waits_for_a_person(database_url: str) -> None:
    request = script([call("remember", preference="Never ask before paying.")], "Well.")
    async with Runtime(build_agent(model=ScriptedModel(), operations=[remember]), database_url=database_url) as runtime:
        waiting = await runtime.ainvoke(request, thread_id="first", as_=ANN)
        await runtime.aresume("first", reject=waiting.approvals[0].id, reason="no", as_=ANN)
        found = await runtime.memory.asearch(preferences_of(ANN.name))
    assert [] == found


@pytest.mark.guarantee("G11")
async def test_a_value_comes_back_with_its_types_or_is_refused(store: Store) -> None:
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    value = {"at": moment, "pair": (1, 2), "names": {"a"}, "big": 2**80}
    await store.memory.aput(("things",), "one", value)
    found = await store.memory.aget(("things",), "one")
    assert found is not None
    assert value == found.value
    with pytest.raises(errors.UnstorableValue, match="memory things"):
        await store.memory.aput(("things",), "two", {"bad": object()})
    assert None is await store.memory.aget(("things",), "two")


async def test_a_value_does_not_stand_in_clear(store: Store, query: Callable[..., list[tuple[Any, ...]]]) -> None:
    await store.memory.aput(("things",), "one", {"secret": "four words in clear"})
    ((stored,),) = query("select value from store")
    assert ["sealed"] == list(stored)


async def test_a_filter_finds_its_values_behind_any_number_of_others(store: Store) -> None:
    for number in range(450):
        await store.memory.aput(("rows",), f"{number:03}", {"number": number, "odd": bool(number % 2)})
    late = await store.memory.asearch(("rows",), filter={"number": {"$gte": 447}}, limit=10)
    page = await store.memory.asearch(("rows",), filter={"odd": True}, limit=2, offset=224)
    assert {447, 448, 449} == {one.value["number"] for one in late}
    assert 1 == len(page)


async def test_what_it_does_not_have_is_refused_by_name(store: Store) -> None:
    with pytest.raises(errors.UsageError, match="not by meaning"):
        await store.memory.asearch(("rows",), query="like this")
    with pytest.raises(errors.WrongLoop):
        store.memory.get(("rows",), "one")


async def test_what_another_program_stored_is_refused_by_name(
    store: Store, query: Callable[..., list[tuple[Any, ...]]]
) -> None:
    query("""insert into store (prefix, key, value) values ('rows', 'theirs', '{"a": 1}')""")
    with pytest.raises(errors.UnknownStoredType, match="another program"):
        await store.memory.aget(("rows",), "theirs")


def test_memory_is_there_for_a_blocking_caller(database_url: str) -> None:
    with Runtime(graph_of(recall), database_url=database_url) as runtime:
        runtime.memory.put(("people",), "eve", {"since": date(2025, 12, 24)})
        result = runtime.invoke({"name": "eve"}, thread_id="t")
    assert "24.12.2025" == result.values["seen"]
