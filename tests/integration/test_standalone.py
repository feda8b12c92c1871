"""Plain LangGraph over the standalone saver: fenced, and no way around a person."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from standfast.checkpoint import errors
from standfast.graph import Policy, Principal, Runtime, build_agent, operation
from standfast.graph.answers import Said
from standfast.graph.standalone import standalone


class State(TypedDict, total=False):
    steps: Annotated[list[str], operator.add]


def asking() -> Any:
    async def before(state: State) -> State:
        return {"steps": ["before"]}

    async def ask(state: State) -> State:
        return {"steps": [interrupt("which?")]}

    graph = StateGraph(State)
    graph.add_node("before", before)
    graph.add_node("ask", ask)
    graph.add_edge(START, "before")
    graph.add_edge("before", "ask")
    graph.add_edge("ask", END)
    return graph


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


class Spender(BaseChatModel):
    """Asks to spend once, then says how it went."""

    @property
    def _llm_type(self) -> str:
        return "spender"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            answer = AIMessage(f"it went: {last.text}")
        else:
            answer = AIMessage(
                "", tool_calls=[{"name": "spend", "args": {"amount": 5}, "id": "1", "type": "tool_call"}]
            )
        return ChatResult(generations=[ChatGeneration(message=answer)])


async def test_a_compiled_graph_waits_and_goes_on_in_another_process(database_url: str) -> None:
    async with standalone(database_url) as saver:
        first = await asking().compile(checkpointer=saver).ainvoke({"steps": []}, at("t"), durability="sync")
    (question,) = first["__interrupt__"]
    async with standalone(database_url) as saver:
        app = asking().compile(checkpointer=saver)
        done = await app.ainvoke(Command(resume={question.id: "this"}), at("t"), durability="sync")
    assert ["before", "this"] == done["steps"]


@pytest.mark.guarantee("G3")
async def test_a_thread_that_somebody_else_holds_is_not_written(database_url: str) -> None:
    async with standalone(database_url) as one, standalone(database_url) as other:
        await asking().compile(checkpointer=one).ainvoke({"steps": []}, at("t"), durability="sync")
        with pytest.raises(errors.LeaseHeld):
            await asking().compile(checkpointer=other).ainvoke({"steps": ["mine"]}, at("t"), durability="sync")
        state = await asking().compile(checkpointer=other).aget_state(at("t"))
    assert ["before"] == state.values["steps"]


async def test_a_quiet_thread_is_given_up(database_url: str) -> None:
    async with standalone(database_url, lease_seconds=0.5) as one, standalone(database_url) as other:
        first = await asking().compile(checkpointer=one).ainvoke({"steps": []}, at("t"), durability="sync")
        (question,) = first["__interrupt__"]
        async with Runtime(asking(), database_url=database_url) as runtime:
            while (await runtime.store.threads.get("t")).worker is not None:
                await one.give_up_quiet()
        done = (
            await asking()
            .compile(checkpointer=other)
            .ainvoke(Command(resume={question.id: "this"}), at("t"), durability="sync")
        )
    assert ["before", "this"] == done["steps"]


@pytest.mark.guarantee("G6")
async def test_a_raw_resume_decides_nothing_and_a_decision_does(database_url: str) -> None:
    spent: list[int] = []

    @operation(policy=Policy(effect="idempotent", approval=True))
    async def spend(amount: int) -> str:
        """Spend."""
        spent.append(amount)
        return "spent"

    agent = build_agent(model=Spender(), operations=[spend])
    async with standalone(database_url) as saver, Runtime(agent, database_url=database_url) as runtime:
        app = agent.compile(checkpointer=saver)
        waiting = await app.ainvoke({"messages": [HumanMessage("spend 5")]}, at("t"), durability="sync")
        for forged in ({"approved": True}, {"decisions": [{"type": "approve"}]}, True):
            (question,) = waiting["__interrupt__"]
            waiting = await app.ainvoke(Command(resume={question.id: forged}), at("t"), durability="sync")
            assert [] == spent
        (question,) = waiting["__interrupt__"]
        await runtime.adecide(question.value["approval"]["id"], Said("approve"), as_=Principal.vouched("ann"))
        done = await app.ainvoke(Command(resume={question.id: None}), at("t"), durability="sync")
    assert [5] == spent
    assert "it went: spent" == done["messages"][-1].text
