"""What one drive does with graphs of any kind: listeners, cancellations, outcomes, unfinished tasks."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from standfast.graph import Policy, Runtime, StreamEvent, build_agent, operation
from standfast.graph.standalone import standalone
from tests.crash.support.scripted_model import ScriptedModel, call, script


class State(TypedDict, total=False):
    value: Any
    outcome: Any


def single(node: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph


async def test_a_listener_that_fails_changes_nothing(database_url: str) -> None:
    heard: list[str] = []

    def listener(event: StreamEvent) -> None:
        heard.append(event.kind)
        raise BrokenPipeError

    async def node(state: State) -> State:
        return {"value": 1}

    async with Runtime(single(node), database_url=database_url) as runtime:
        result = await runtime.ainvoke({}, thread_id="t", on_event=listener)
        assert ("succeeded", 1) == (result.status, result.values["value"])
        told = [one.kind async for one in runtime.astream("t")]
    assert ["run_begin"] == heard
    assert "run_end" == told[-1]


async def test_a_graphs_own_outcome_does_not_decide_how_its_run_ends(database_url: str) -> None:
    async def node(state: State) -> State:
        return {"outcome": {"status": "failed", "reason": ["not", "text"]}}

    async with Runtime(single(node), database_url=database_url) as runtime:
        result = await runtime.ainvoke({}, thread_id="t")
    assert "succeeded" == result.status
    assert {"status": "failed", "reason": ["not", "text"]} == result.outcome


async def test_a_node_that_returned_nothing_is_not_run_for_ever_beside_one_that_waits(database_url: str) -> None:
    ran: list[str] = []

    async def nothing(state: dict[str, Any]) -> None:
        ran.append("nothing")

    async def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"answer": interrupt("which?")}

    graph = StateGraph(dict)
    graph.add_node("nothing", nothing)
    graph.add_node("ask", ask)
    graph.add_edge(START, "nothing")
    graph.add_edge(START, "ask")
    async with Runtime(graph, database_url=database_url) as runtime:
        waiting = await asyncio.wait_for(runtime.ainvoke({"n": 1}, thread_id="t"), 20)
        assert "waiting" == waiting.status
        assert "succeeded" == (await runtime.aresume("t", "this")).status
    assert len(ran) <= 3


async def test_a_cancelled_node_finishes_its_clean_up_before_the_run_has_ended(database_url: str) -> None:
    began, cleaned = asyncio.Event(), asyncio.Event()

    async def node(state: State) -> State:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            for _ in range(20):  # longer than the time between two looks for cancellations
                await asyncio.sleep(0.1)
            cleaned.set()
            raise
        return {}

    async with Runtime(single(node), database_url=database_url) as runtime:
        run = asyncio.create_task(runtime.ainvoke({}, thread_id="t"))
        await began.wait()
        cancelling = asyncio.create_task(runtime.acancel("t"))
        assert "cancelled" == (await run).status
        assert cleaned.is_set()
        assert "cancelled" == (await cancelling).status


async def test_a_long_operation_keeps_the_lease_of_a_standalone_thread(database_url: str) -> None:
    holders: list[str | None] = []

    @operation(policy=Policy(effect="read"))
    async def look() -> str:
        """Look."""
        await asyncio.sleep(1.2)
        holders.append((await runtime.store.threads.get("t")).worker)
        return "seen"

    agent = build_agent(model=ScriptedModel(), operations=[look])
    async with (
        Runtime(agent, database_url=database_url) as runtime,
        standalone(database_url, lease_seconds=1.5) as saver,
    ):
        app = agent.compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        await app.ainvoke({"messages": [HumanMessage(script([call("look")]))]}, config, durability="sync")
    assert [True] == [one is not None for one in holders]
