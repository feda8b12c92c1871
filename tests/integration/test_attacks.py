"""Ways round a person: old checkpoints, forks, written states, other rules, times, names and tenants.

None executes; each says why, and what was said about an approval and refused is in the audit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.types import Command, Send

from standfast.checkpoint import errors
from standfast.checkpoint.settings import Settings
from standfast.graph import (
    OIDC,
    ApprovalPolicy,
    OperationContext,
    Policy,
    Principal,
    Rule,
    Runtime,
    Said,
    build_agent,
    operation,
)
from standfast.graph.standalone import standalone
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, call, script
from tests.servers.oidc import AUDIENCE, OIDCServer

pytestmark = pytest.mark.guarantee("G6")

ANN, ROB = Principal.vouched("ann"), Principal.vouched("rob")
OUTSIDER = Principal.vouched("ann", tenant="other")
REQUEST = script([call("pay", amount=900)], "Done.")
ByHand = Callable[[Runtime, str], AbstractAsyncContextManager[tuple[Any, Any]]]


@pytest.fixture
def paid() -> list[int]:
    """What was really paid."""
    return []


@pytest.fixture
def paying(database_url: str, paid: list[int]) -> Any:
    """`async with paying() as runtime:` an agent that can `pay`, if a person approves."""

    @operation(policy=Policy(effect="idempotent", approval=True))
    async def pay(amount: int, context: OperationContext) -> str:
        """Pay an amount."""
        paid.append(amount)
        return f"paid {amount}"

    @asynccontextmanager
    async def opening(**options: Any) -> AsyncIterator[Runtime]:
        graph = build_agent(model=ScriptedModel(), operations=[pay])
        async with Runtime(graph, database_url=database_url, settings=Settings(), **options) as runtime:
            yield runtime

    return opening


async def refusals(runtime: Runtime, thread: str = "t") -> list[tuple[str, str | None]]:
    """What the audit tells that was refused: the error, and to whom."""
    facts = [one.facts for one in await runtime.aaudit(thread)]
    return [(one["error"], one.get("by")) for one in facts if one["kind"] == "refusal"]


# -- ways round, through the graph itself


@dataclass(frozen=True)
class Scene:
    """A graph whose thread waited for a person, as whoever attacks has it: the thread, and what he kept from then."""

    graph: Any
    at: Any  # the configuration of the thread
    waiting: Any  # of the checkpoint at which it waited
    asking: Any  # of the one before, at which the model was about to ask for the payment
    call: dict[str, Any]  # the state of the call that waited

    async def go(self, given: Any, config: Any) -> None:
        await self.graph.ainvoke(given, config, durability="sync")


def _checkpoint(at: Any, checkpoint_id: str) -> Any:
    return {**at, "configurable": {**at["configurable"], "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}


async def _seen(graph: Any, at: Any) -> Scene:
    """To be taken while the thread waits."""
    plain = {"configurable": {"thread_id": at["configurable"]["thread_id"]}}
    now, before, *_ = [one.config["configurable"]["checkpoint_id"] async for one in graph.aget_state_history(plain)]
    [task] = (await graph.aget_state(plain, subgraphs=True)).tasks
    return Scene(graph, at, _checkpoint(at, now), _checkpoint(at, before), dict(task.state.values))


async def raw_resume(scene: Scene) -> None:
    await scene.go(Command(resume={"approved": True}), scene.at)


async def resume_where_it_waited(scene: Scene) -> None:
    await scene.go(Command(resume={"approved": True}), scene.waiting)


async def resume_before_it_asked(scene: Scene) -> None:
    await scene.go(Command(resume={"approved": True}), scene.asking)


async def go_on_before_it_asked(scene: Scene) -> None:
    await scene.go(None, scene.asking)


async def fork_by_writing_an_old_state(scene: Scene) -> None:
    forked = await scene.graph.aupdate_state(scene.asking, {"messages": []}, as_node="analysis")
    await scene.go(None, forked)


async def write_as_the_approval(scene: Scene) -> None:
    plain = {"configurable": {"thread_id": scene.at["configurable"]["thread_id"]}}
    tasks = (await scene.graph.aget_state(plain, subgraphs=True)).tasks
    if not tasks:
        raise errors.AlreadyFinished("nothing waits there any more")
    inner = {"configurable": tasks[0].state.config["configurable"], "metadata": scene.at.get("metadata", {})}
    await scene.graph.aupdate_state(inner, {"granted": True}, as_node="approval")
    await scene.go(None, scene.at)


async def write_as_the_model(scene: Scene) -> None:
    """The same call once more, as if the model had just asked for it."""
    asked = [one for one in (await scene.graph.aget_state(scene.at)).values["messages"] if isinstance(one, AIMessage)]
    await scene.graph.aupdate_state(scene.at, {"messages": [asked[0]]}, as_node="analysis")
    await scene.go(None, scene.at)


async def jump_past_the_approval(scene: Scene) -> None:
    await scene.go(Command(goto=[Send("operation", {**scene.call, "granted": True})]), scene.at)


WAYS = (
    raw_resume,
    resume_where_it_waited,
    resume_before_it_asked,
    go_on_before_it_asked,
    fork_by_writing_an_old_state,
    write_as_the_approval,
    write_as_the_model,
    jump_past_the_approval,
)
DECIDED = {"waiting": None, "rejected": "reject", "expired": "approve", "used": "approve"}


async def _attack(way: Callable[[Scene], Awaitable[None]], scene: Scene) -> str | None:
    try:
        await way(scene)
    except errors.StandfastError as error:
        return str(error)
    return None


async def _why(scene: Scene) -> str:
    """What the thread says now: of what is asked, else of what became of the call."""
    state = await scene.graph.aget_state({"configurable": {"thread_id": "t"}})
    asked = [one.value["description"] for one in state.interrupts]
    return " ".join(asked or [str(one.text) for one in state.values["messages"] if isinstance(one, ToolMessage)])


ASKED_AGAIN = ("no decision of a known person", "no valid grant")
WHY = {
    "waiting": ("asks to run pay",),
    "rejected": ("Rejected by ann", *ASKED_AGAIN),
    "expired": ASKED_AGAIN,
    "used": ("paid 900",),
}


@pytest.mark.parametrize("moment", DECIDED)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("door", ["runtime", "standalone"])
async def test_no_way_through_the_graph_executes_anything(
    paying: Any, paid: list[int], by_hand: ByHand, database_url: str, clock: Clock, door: str, way: Any, moment: str
) -> None:
    async def prepare(runtime: Runtime, scene: Scene) -> list[int]:
        [approval] = await runtime.aapprovals(thread_id="t")
        verb: Any = DECIDED[moment]
        if verb is not None:
            await runtime.adecide(approval.id, Said(verb), as_=ANN)
        if moment == "expired":
            clock.move(timedelta(days=8))
        if moment == "used":
            await scene.go(Command(resume={"approved": True}), scene.at)
            assert [900] == paid
        return list(paid)

    async with paying() as runtime:
        if door == "runtime":
            await runtime.ainvoke(REQUEST, thread_id="t", as_=ROB)
            async with by_hand(runtime, "t") as (graph, config):
                scene = await _seen(graph, config)
                before = await prepare(runtime, scene)
                refused = await _attack(way, scene)
                why = await _why(scene)
        else:
            async with standalone(database_url) as saver:
                graph, at = runtime._graph.builder.compile(checkpointer=saver), {"configurable": {"thread_id": "t"}}
                await graph.ainvoke({"messages": [("user", REQUEST)]}, at, durability="sync")
                scene = await _seen(graph, at)
                before = await prepare(runtime, scene)
                refused = await _attack(way, scene)
                why = await _why(scene)
        told = await refusals(runtime)
        assert before == paid
        assert refused or any(one in why for one in WHY[moment]), why
        if refused is None and "no valid grant" in why:
            assert ("NotGranted", None) in told
        if (door, moment) == ("runtime", "waiting"):  # whatever was tried, people can still decide
            await runtime.aresume("t")
            [approval] = await runtime.aapprovals(thread_id="t")
            assert "succeeded" == (await runtime.aresume("t", approve=approval.id, as_=ANN)).status
            assert [900] == paid


async def test_a_fork_has_no_use_of_its_sources_grant(paying: Any, paid: list[int]) -> None:
    async with paying() as runtime:
        [approval] = (await runtime.ainvoke(REQUEST, thread_id="t", as_=ROB)).approvals
        await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        only_reads = await runtime.aresume((await runtime.afork("t", as_=ANN)).thread_id)
        effects = await runtime.afork("t", allow_effects=True, as_=ANN)
        asks = await runtime.aresume(effects.thread_id)
        assert ("succeeded", "waiting", []) == (only_reads.status, asks.status, paid)
        assert "fork" in str(only_reads.messages[-2].text)
        with pytest.raises(errors.DigestMismatch):
            await runtime.adecide(asks.approvals[0].id, Said("approve"), as_=ANN, seen_digest=approval.digest)
        assert [("DigestMismatch", "ann")] == await refusals(runtime, effects.thread_id)
    assert [] == paid


# -- other rules, another time


RULES = "groups: {{finance: [ann, bob]}}\noperations: {{pay: [{{approvers: finance, required: {required}}}]}}\n"


@pytest.mark.parametrize("decided", ["before", "after"])
async def test_a_policy_file_that_changed_since_the_request_is_said_and_asks_again(
    paying: Any, paid: list[int], tmp_path: Path, decided: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(RULES.format(required=1))
    async with paying(policy=file) as runtime:
        [approval] = (await runtime.ainvoke(REQUEST, thread_id="t", as_=ROB)).approvals
        if decided == "before":
            await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        assert [False] == [one.policy_changed for one in await runtime.aapprovals(state=None)]
    file.write_text(RULES.format(required=2))
    async with paying(policy=file) as runtime:
        assert [True] == [one.policy_changed for one in await runtime.aapprovals(state=None)]
        assert [True] == [one.policy_changed for one in (await runtime.atimeline("t")).approvals]
        if decided == "after":
            await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        again = await runtime.aresume("t")
        assert ("waiting", []) == (again.status, paid)
        [new] = await runtime.aapprovals()
        assert (2, False) == (new.required, new.policy_changed)
        assert "no valid grant" in new.description
        assert [("NotGranted", None)] == await refusals(runtime)


async def test_a_grant_that_ran_out_before_its_use_is_said_and_asks_again(
    paying: Any, paid: list[int], clock: Clock
) -> None:
    async with paying() as runtime:
        [approval] = (await runtime.ainvoke(REQUEST, thread_id="t", as_=ROB)).approvals
        await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        clock.move(timedelta(days=7))
        [new] = (await runtime.aresume("t")).approvals
        assert "no valid grant" in new.description
        assert [("NotGranted", None)] == await refusals(runtime)
        with pytest.raises(errors.AlreadyDecided):
            await runtime.aresume("t", approve=approval.id, as_=ANN)
        assert [("NotGranted", None), ("AlreadyDecided", "ann")] == await refusals(runtime)
    assert [] == paid


# -- other names, another tenant


async def test_one_person_under_two_tokens_is_one_vote(paying: Any, paid: list[int], oidc_server: OIDCServer) -> None:
    two = ApprovalPolicy({"pay": [Rule(approvers="finance", required=2)]}, {"finance": "claims"})
    async with paying(authenticator=OIDC(oidc_server.issuer, AUDIENCE), policy=two) as runtime:
        asked = await runtime.ainvoke(REQUEST, thread_id="t", token=oidc_server.token(sub="lee"))
        approval = asked.approvals[0].id
        first = oidc_server.token(sub="kim", jti="a", email="kim@example.com")
        again = oidc_server.token(sub="kim", jti="b", email="k@example.com", groups=["finance", "board"])
        await runtime.aresume("t", approve=approval, token=first)
        for token in (first, again):
            with pytest.raises(errors.AlreadyVoted):
                await runtime.aresume("t", approve=approval, token=token)
        assert ("waiting", []) == ((await runtime.aresume("t")).status, paid)
        assert [("AlreadyVoted", "kim")] * 2 == await refusals(runtime)
        end = await runtime.aresume("t", approve=approval, token=oidc_server.token(sub="pat"))
    assert ("succeeded", [900]) == (end.status, paid)


async def test_another_tenants_person_does_nothing_on_a_thread_and_is_told(paying: Any, paid: list[int]) -> None:
    """Not by a decision, an answer, a resume, a new run or a fork, whatever the name; and he is told no more than
    that there is no such thread in his tenant."""
    async with paying() as runtime:
        [approval] = (await runtime.ainvoke(REQUEST, thread_id="t", as_=ROB)).approvals
        ways: list[Callable[[], Awaitable[Any]]] = [
            lambda: runtime.adecide(approval.id, Said("approve"), as_=OUTSIDER),
            lambda: runtime.aresume("t", approve=approval.id, as_=OUTSIDER),
            lambda: runtime.aanswer("t", {"type": "approve"}, as_=OUTSIDER),
            lambda: runtime.aresume("t", as_=OUTSIDER),
            lambda: runtime.ainvoke(REQUEST, thread_id="t", as_=OUTSIDER),
            lambda: runtime.asubmit(REQUEST, thread_id="t", on_busy="withdraw", as_=OUTSIDER),
        ]
        for way in ways:
            with pytest.raises(errors.OtherTenant, match="tenant 'other'"):
                await way()
        assert [("OtherTenant", "ann")] * len(ways) == await refusals(runtime)
        with pytest.raises(errors.UnknownThread):
            await runtime.afork("t", as_=OUTSIDER)
        assert [approval.id] == [one.id for one in await runtime.aapprovals()]
    assert [] == paid


async def test_threads_events_and_groups_are_of_the_tenant_of_whoever_made_them(paying: Any, paid: list[int]) -> None:
    group = ApprovalPolicy({"pay": [Rule(approvers="finance")]}, {"finance": "table"})
    async with paying() as runtime:
        await runtime.aset_member("finance", "ann", tenant="default", as_=ROB)
        await runtime.aset_member("finance", "bob", tenant="other", as_=ROB)
    async with paying(policy=group) as runtime:
        [approval] = (await runtime.ainvoke(REQUEST, thread_id="o", as_=OUTSIDER)).approvals
        assert ("other", "other") == (approval.tenant, (await runtime.athreads(tenant="other"))[0].tenant)
        assert [] == list(await runtime.athreads())
        with pytest.raises(errors.OtherTenant):
            await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        with pytest.raises(errors.NotPermitted):
            await runtime.adecide(approval.id, Said("approve"), as_=OUTSIDER)
        await runtime.aresume("o", approve=approval.id, as_=Principal.vouched("bob", tenant="other"))
    assert [900] == paid
