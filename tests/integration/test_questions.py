"""Questions to people that are not approvals, and what else comes while a thread waits for people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, TypedDict

import pytest
from langchain_core.messages import ToolMessage
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, Field

from standfast.checkpoint import errors
from standfast.graph import Effect, Policy, Principal, Result, Runtime, ask, operation
from tests.crash.support.scripted_model import call, script

Open = Callable[..., Any]
Query = Callable[..., list[tuple[Any, ...]]]
WHO = Principal.vouched("ann")


class Address(BaseModel):
    street: str
    number: int = Field(gt=0)


class State(TypedDict, total=False):
    got: list[Any]


@pytest.fixture
def asking(database_url: str) -> Any:
    """`async with asking(node) as runtime:` a graph of one node that asks."""

    @asynccontextmanager
    async def opening(node: Any) -> AsyncIterator[Runtime]:
        graph = StateGraph(State)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        async with Runtime(graph, database_url=database_url) as runtime:
            yield runtime

    return opening


async def where(state: State) -> State:
    address = await ask("Where to?", schema=Address)
    speed = await ask("How fast?", schema=Literal["slow", "fast"])
    return {"got": [type(address).__name__, address.street, address.number, speed]}


@pytest.mark.guarantee("G7")
async def test_answers_come_back_with_the_type_that_was_asked_for(asking: Any) -> None:
    async with asking(where) as runtime:
        first = await runtime.ainvoke({}, thread_id="t")
        assert ("waiting", "Where to?") == (first.status, first.questions[0].request["question"])
        assert {"street", "number"} == set(first.questions[0].request["response_schema"]["properties"])
        second = await runtime.aresume("t", {"street": "Main", "number": "7"}, as_=WHO)
        assert "How fast?" == second.questions[0].request["question"]
        end = await runtime.aresume("t", "fast", as_=WHO)
    assert ("succeeded", ["Address", "Main", 7, "fast"]) == (end.status, end.values["got"])


WRONG = [None, False, "", [], {}, 7, "north", {"street": "Main"}, {"street": "x", "number": 0}]


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_answer_asks_again_with_the_reason_and_the_thread_goes_on(asking: Any, wrong: Any) -> None:
    async with asking(where) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        for _ in range(2):
            again = await runtime.aresume("t", wrong)
            assert ("waiting", "Where to?") == (again.status, again.questions[0].request["question"])
            assert again.questions[0].request["wrong"]
        await runtime.aresume("t", {"street": "Main", "number": 7})
        end = await runtime.aresume("t", "slow")
    assert "succeeded" == end.status


async def test_a_question_is_answered_once_and_the_second_hears_by_whom(asking: Any) -> None:
    async with asking(where) as runtime:
        [question] = (await runtime.ainvoke({}, thread_id="t")).questions
        await runtime.aanswer("t", {"street": "Main", "number": 7}, as_=WHO)
        with pytest.raises(errors.AlreadyDecided) as refused:
            await runtime.store.waits.answer("t", question.id, {}, "bob")
    assert "ann" == refused.value.by


async def test_an_empty_question_and_a_schema_that_is_none_are_refused(asking: Any) -> None:
    async def nothing(state: State) -> State:
        return {"got": [await ask("  ")]}

    async def shapeless(state: State) -> State:
        return {"got": [await ask("What?", schema=Callable[[], int])]}

    for node in (nothing, shapeless):
        async with asking(node) as runtime:
            result = await runtime.ainvoke({}, thread_id=node.__name__)
            assert isinstance(result.error, errors.InvalidRequest)


@operation(policy=Policy(effect=Effect.READ))
async def survey(topic: str) -> str:
    """Ask a person about a topic."""
    return f"{topic}: {await ask(f'What of {topic}?', schema=int)}"


@operation(policy=Policy(effect=Effect.AT_MOST_ONCE))
async def survey_once(topic: str) -> str:
    """Ask a person about a topic, though it may not be called again."""
    return str(await ask("What?"))


def texts(result: Result) -> list[str]:
    return [str(one.text) for one in result.messages if isinstance(one, ToolMessage)]


async def test_an_operation_asks_and_its_siblings_go_on(opened: Open) -> None:
    async with opened(survey) as runtime:
        turn = [call("survey", topic="a"), call("jot", text="x"), call("survey", topic="b")]
        waiting = await runtime.ainvoke(script(turn), thread_id="t")
        ids = {one.request["question"]: one.id for one in waiting.questions}
        assert {"What of a?", "What of b?"} == set(ids)
        half = await runtime.aresume("t", {ids["What of b?"]: "no number"})
        again = {one.request["question"]: one.id for one in half.questions}
        end = await runtime.aresume("t", {again["What of a?"]: 1, again["What of b?"]: "2"})
    assert ("succeeded", ["a: 1", "noted x", "b: 2"]) == (end.status, texts(end))


async def test_an_operation_that_may_not_be_called_twice_does_not_ask(opened: Open) -> None:
    async with opened(survey_once) as runtime:
        result = await runtime.ainvoke(script([call("survey_once", topic="a")]), thread_id="t")
    assert "at_most_once and cannot wait" in texts(result)[0]


# -- a new message while people are asked


@pytest.mark.guarantee("G6")
async def test_a_new_message_is_refused_and_the_question_stays(opened: Open) -> None:
    async with opened() as runtime:
        [approval] = (await runtime.ainvoke(script([call("note", text="a")]), thread_id="t")).approvals
        with pytest.raises(errors.ThreadBusy):
            await runtime.ainvoke(script("hello"), thread_id="t")
        end = await runtime.aresume("t", approve=approval.id)
    assert ("succeeded", ["noted a"]) == (end.status, texts(end))


@pytest.mark.guarantee("G6")
async def test_a_queued_message_waits_for_the_answer(opened: Open) -> None:
    async with opened() as runtime:
        [approval] = (await runtime.ainvoke(script([call("note", text="a")]), thread_id="t")).approvals
        queued = await runtime.asubmit(script("later"), thread_id="t", on_busy="queue")
        assert [approval.id] == [one.id for one in await runtime.aapprovals(thread_id="t")]
        await runtime.aresume("t", approve=approval.id)
        end = await runtime.aresume("t")
    assert (queued.run_id, "succeeded", ["noted a"]) == (end.run_id, end.status, texts(end))


@pytest.mark.guarantee("G6")
async def test_a_message_can_withdraw_what_is_asked_and_the_run_ends_well(opened: Open, reports_server: Any) -> None:
    async with opened() as runtime:
        turn = [call("note", text="a"), call("note", text="b")]
        await runtime.ainvoke(script(turn, "as you wish"), thread_id="t")
        end = await runtime.ainvoke(script("next"), thread_id="t", on_busy="withdraw", as_=WHO)
        [_, first] = await runtime.aruns(thread_id="t")
        states = {one.state for one in await runtime.aapprovals(thread_id="t", state=None)}
    assert ("succeeded", "succeeded", {"withdrawn"}) == (end.status, first.status, states)
    assert ["Not done: withdrawn by ann: a new message came"] * 2 == texts(end)
    assert [] == reports_server.effects()
