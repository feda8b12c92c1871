"""However a thread gets to the executor, nothing is executed without a grant for exactly that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest
from langgraph.types import Command, Send

from standfast.checkpoint import errors
from standfast.checkpoint.settings import Settings
from standfast.graph import Principal, Runtime, build_agent
from standfast.graph.answers import Said
from tests.crash.support.scripted_model import ScriptedModel, call, note, script
from tests.servers.reports import ReportsServer

pytestmark = pytest.mark.guarantee("G6")

Open = Callable[..., Any]
ByHand = Callable[[Runtime, str], AbstractAsyncContextManager[tuple[Any, Any]]]
WHO = Principal.vouched("approver@example.com")
REQUEST = script([call("note", text="agreed")])


async def _write_into_the_call(graph: Any, config: Any, values: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """`update_state` in the call's subgraph, as if its approval node had let it through."""
    plain = {"configurable": {"thread_id": config["configurable"]["thread_id"]}}
    state = await graph.aget_state(plain, subgraphs=True)
    inner = state.tasks[0].state
    where = {"configurable": inner.config["configurable"], "metadata": config["metadata"]}
    await graph.aupdate_state(where, {"granted": True, **values(inner.values)}, as_node="approval")


async def test_a_plain_resume_of_the_bare_graph_decides_nothing(
    opened: Open, by_hand: ByHand, reports_server: ReportsServer
) -> None:
    async with opened() as runtime:
        waiting = await runtime.ainvoke(REQUEST, thread_id="bare")
        async with by_hand(runtime, "bare") as (graph, config):
            await graph.ainvoke(Command(resume={"approved": True}), config, durability="sync")
        again = await runtime.aresume("bare")

        assert "waiting" == again.status
        [asked] = again.approvals
        assert waiting.approvals[0].id != asked.id
        assert [] == reports_server.effects()
        with pytest.raises(errors.AlreadyDecided):
            await runtime.aresume("bare", approve=waiting.approvals[0].id)

        end = await runtime.aresume("bare", approve=asked.id)

    assert "succeeded" == end.status
    assert 1 == len(reports_server.effects())


async def test_a_state_written_around_the_approval_executes_nothing_and_asks_again(
    opened: Open, by_hand: ByHand, reports_server: ReportsServer
) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(REQUEST, thread_id="around")
        async with by_hand(runtime, "around") as (graph, config):
            await _write_into_the_call(graph, config, lambda _: {})
            await graph.ainvoke(None, config, durability="sync")
        again = await runtime.aresume("around")

    assert "waiting" == again.status
    assert 1 == len(again.approvals)
    assert [] == reports_server.effects()


async def test_a_policy_flag_written_into_the_state_does_not_stand_in_for_a_grant(
    opened: Open, by_hand: ByHand, reports_server: ReportsServer
) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(REQUEST, thread_id="flag")
        async with by_hand(runtime, "flag") as (graph, config):
            await _write_into_the_call(
                graph, config, lambda values: {"planned": {**values["planned"], "needs_person": False}}
            )
            await graph.ainvoke(None, config, durability="sync")
        again = await runtime.aresume("flag")

    assert "waiting" == again.status
    assert [] == reports_server.effects()


async def test_arguments_exchanged_after_the_decision_are_not_executed(
    opened: Open, by_hand: ByHand, reports_server: ReportsServer
) -> None:
    """The grant is for what was shown: the digest is taken from what would be executed, at the moment of the call."""
    async with opened() as runtime:
        waiting = await runtime.ainvoke(REQUEST, thread_id="exchanged")
        await runtime.adecide(waiting.approvals[0].id, Said("approve"), as_=WHO)
        async with by_hand(runtime, "exchanged") as (graph, config):
            await _write_into_the_call(
                graph, config, lambda values: {"planned": {**values["planned"], "arguments": {"text": "forged"}}}
            )
            await graph.ainvoke(None, config, durability="sync")

    assert [] == [one["report"]["body"]["text"] for one in reports_server.effects()]


async def test_a_grant_under_another_version_of_the_policy_is_void(opened: Open, reports_server: ReportsServer) -> None:
    """A deploy that changes the rules between decision and execution asks again."""
    async with opened() as runtime:
        waiting = await runtime.ainvoke(REQUEST, thread_id="policy")
        await runtime.adecide(waiting.approvals[0].id, Said("approve"), as_=WHO)
        stricter = replace(note, policy=replace(note.policy, version="2"))
        settings = Settings(reports_url=f"{reports_server.url}/reports")
        graph = build_agent(model=ScriptedModel(), operations=[stricter])
        async with Runtime(graph, database_url=runtime._url, settings=settings) as deployed:
            again = await deployed.aresume("policy")

    assert "waiting" == again.status
    assert ["2"] == [one.policy_version for one in again.approvals]
    assert [] == reports_server.effects()


async def test_a_jump_past_the_approval_executes_nothing(
    opened: Open, by_hand: ByHand, reports_server: ReportsServer
) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(REQUEST, thread_id="jump")
        async with by_hand(runtime, "jump") as (graph, config):
            state = await graph.aget_state({"configurable": {"thread_id": "jump"}}, subgraphs=True)
            jump = Command(goto=[Send("operation", {**state.tasks[0].state.values, "granted": True})])
            await graph.ainvoke(jump, config, durability="sync")
        again = await runtime.aresume("jump")

    assert "waiting" == again.status
    assert [] == reports_server.effects()
