"""Who decides, about exactly what, until when, once: and every way in which it does not count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from standfast.checkpoint import errors
from standfast.checkpoint.settings import Settings
from standfast.graph import (
    ApprovalPolicy,
    Condition,
    Effect,
    OperationContext,
    Policy,
    Principal,
    Result,
    Rule,
    Runtime,
    Said,
    build_agent,
    operation,
)
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, call, script

pytestmark = pytest.mark.guarantee("G6")

ANN, BOB, CYD, EVE = (Principal.vouched(name) for name in ("ann", "bob", "cyd", "eve"))
REQUESTER = Principal.vouched("rob")
FINANCE = {"finance": ["ann", "bob", "cyd", "rob"]}
Query = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def paid() -> list[tuple[str, int]]:
    """What was really paid, by operation id."""
    return []


@pytest.fixture
def paying(database_url: str, paid: list[tuple[str, int]]) -> Any:
    """`async with paying(rules, groups) as runtime:` an agent that can `pay` under these rules."""

    @operation(policy=Policy(effect=Effect.IDEMPOTENT, approval=True))
    async def pay(amount: int, to: str, context: OperationContext) -> str:
        """Pay an amount to somebody."""
        paid.append((to, amount))
        return f"paid {amount} to {to}"

    @asynccontextmanager
    async def opening(
        *rules: Rule, groups: Any = FINANCE, version: str = "1", policy: Any = None, **options: Any
    ) -> AsyncIterator[Runtime]:
        graph = build_agent(model=ScriptedModel(), operations=[replace(pay, version=version)])
        options["policy"] = policy or ApprovalPolicy({"pay": rules} if rules else {}, groups)
        async with Runtime(graph, database_url=database_url, settings=Settings(), **options) as runtime:
            yield runtime

    return opening


async def asked(runtime: Runtime, thread: str = "t", *calls: tuple[int, str]) -> Result:
    """A run that waits for people to decide about payments, by default of 900 to Acme."""
    turn = [call("pay", amount=amount, to=to) for amount, to in calls or ((900, "Acme"),)]
    result = await runtime.ainvoke(script(turn), thread_id=thread, as_=REQUESTER)
    assert "waiting" == result.status
    return result


def texts(result: Result) -> list[str]:
    """The tool messages; AssertionError unless each call has exactly one."""
    calls = [one["id"] for message in result.messages if isinstance(message, AIMessage) for one in message.tool_calls]
    found = [one for one in result.messages if isinstance(one, ToolMessage)]
    assert sorted(map(str, calls)) == sorted(one.tool_call_id for one in found)
    return [str(one.text) for one in found]


TWO = Rule(approvers="finance", required=2, requester_may_decide=False)
ONE = Rule(approvers="finance", requester_may_decide=False)


# -- who decides


async def test_a_quorum_needs_as_many_people_as_its_rule_says(paying: Any, paid: list[Any]) -> None:
    async with paying(TWO) as runtime:
        [approval] = (await asked(runtime)).approvals
        one = await runtime.aresume("t", approve=approval.id, as_=ANN)
        assert ("waiting", ("ann",), []) == (one.status, one.approvals[0].votes, paid)
        two = await runtime.aresume("t", approve=approval.id, as_=BOB)
    assert ("succeeded", [("Acme", 900)]) == (two.status, paid)


async def test_one_person_who_votes_twice_is_one_vote(paying: Any, paid: list[Any]) -> None:
    """However he proves who he is: with another token, by another authenticator, on his word."""
    async with paying(TWO) as runtime:
        [approval] = (await asked(runtime)).approvals
        await runtime.aresume("t", approve=approval.id, as_=ANN)
        for again in (ANN, Principal.verified("ann", by="a token"), Principal.verified("ann", by="another token")):
            with pytest.raises(errors.AlreadyVoted):
                await runtime.aresume("t", approve=approval.id, as_=again)
        assert ("waiting", []) == ((await runtime.aresume("t")).status, paid)


async def test_all_is_every_member_of_the_group(paying: Any, paid: list[Any]) -> None:
    async with paying(Rule(approvers="finance", required="all", requester_may_decide=True)) as runtime:
        [approval] = (await asked(runtime)).approvals
        for who in (ANN, BOB, CYD):
            assert "waiting" == (await runtime.aresume("t", approve=approval.id, as_=who)).status
        assert "succeeded" == (await runtime.aresume("t", approve=approval.id, as_=REQUESTER)).status


async def test_whoever_is_not_in_the_group_decides_nothing(paying: Any, paid: list[Any]) -> None:
    claimed = Principal.vouched("eve", groups=["finance"])  # the group is a list: what somebody claims is beside it
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
        for who in (EVE, claimed):
            for verb in ("approve", "reject", "respond"):
                with pytest.raises(errors.NotPermitted) as refused:
                    await runtime.adecide(approval.id, Said(verb, response="x"), as_=who)
                assert "not_a_member" == refused.value.why
        assert ("waiting", []) == ((await runtime.aresume("t")).status, paid)


async def test_nobody_approves_his_own_request_where_the_rule_says_so(paying: Any, paid: list[Any]) -> None:
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
        for said in (Said("approve"), Said("edit", changes={"amount": 1}), Said("respond", response="done")):
            with pytest.raises(errors.NotPermitted) as refused:
                await runtime.adecide(approval.id, said, as_=REQUESTER)
            assert "requester" == refused.value.why
        assert ("waiting", []) == ((await runtime.aresume("t")).status, paid)


async def test_the_requester_decides_by_default_only_where_there_is_no_authenticator(paying: Any) -> None:
    async def anybody(credential: str) -> Principal:
        return Principal.verified(credential, by="test")

    async with paying(Rule()) as runtime:
        [approval] = (await asked(runtime, "without")).approvals
        decided = await runtime.adecide(approval.id, Said("approve"), as_=REQUESTER)
        assert ("approved", True) == (decided.state, decided.self_approved)
    async with paying(Rule(), authenticator=anybody) as runtime:
        await runtime.ainvoke(script([call("pay", amount=1, to="x")]), thread_id="with", token="rob")
        [approval] = await runtime.aapprovals(thread_id="with")
        with pytest.raises(errors.NotPermitted):
            await runtime.adecide(approval.id, Said("approve"), token="rob")
        assert "approved" == (await runtime.adecide(approval.id, Said("approve"), token="ann")).state


async def test_another_tenants_person_does_not_even_see_it(paying: Any, paid: list[Any]) -> None:
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
        with pytest.raises(errors.OtherTenant):
            await runtime.adecide(approval.id, Said("approve"), as_=Principal.vouched("ann", tenant="other"))
        assert [] == paid


async def test_a_reason_is_given_where_one_is_required(paying: Any) -> None:
    async with paying(Rule(reason_required=True)) as runtime:
        [approval] = (await asked(runtime)).approvals
        with pytest.raises(errors.InvalidRequest, match="reason"):
            await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        assert "approved" == (await runtime.adecide(approval.id, Said("approve", "checked"), as_=ANN)).state


async def test_a_decision_that_the_rule_does_not_know_is_refused(paying: Any) -> None:
    async with paying(Rule(decisions=("approve", "reject"))) as runtime:
        [approval] = (await asked(runtime)).approvals
        for said in (Said("edit", changes={"amount": 1}), Said("respond", response="x")):
            with pytest.raises(errors.NotPermitted, match="only by approve, reject"):
                await runtime.adecide(approval.id, said, as_=ANN)


async def test_a_rule_looks_at_the_arguments(paying: Any, paid: list[Any]) -> None:
    high = Rule(when=Condition(argument="amount", over=500), approvers="finance")
    async with paying(high, Rule(approvers="nobody")) as runtime:
        result = await asked(runtime, "t", (500, "a"), (501, "b"))
        assert ([("a", 500)], [501]) == (paid, [one.arguments["amount"] for one in result.approvals])


# -- about exactly what


async def test_a_decision_replayed_changes_nothing(paying: Any, paid: list[Any]) -> None:
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
        await runtime.aresume("t", approve=approval.id, as_=ANN)
        for verb in ("approve", "reject", "edit", "withdraw"):
            with pytest.raises(errors.AlreadyDecided) as refused:
                await runtime.adecide(approval.id, Said(verb, changes={"amount": 1}), as_=BOB)
            assert ("approve", "ann") == (refused.value.decision, refused.value.by)
        await runtime.aresume("t")
        assert [("Acme", 900)] == paid


async def test_a_decision_that_saw_other_arguments_another_thread_or_nothing_is_refused_with_the_difference(
    paying: Any, paid: list[Any]
) -> None:
    async with paying(ONE) as runtime:
        result = await asked(runtime, "t", (900, "Acme"), (7, "Acme"))
        high, low = sorted(result.approvals, key=lambda one: -one.arguments["amount"])
        [elsewhere] = (await asked(runtime, "other")).approvals
        with pytest.raises(errors.DigestMismatch, match=r"arguments\.amount: 7 -> 900") as refused:
            await runtime.adecide(high.id, Said("approve"), as_=ANN, seen_digest=low.digest)
        assert ["arguments.amount"] == [one.path for one in refused.value.difference if one.path != "expires_at"]
        for digest in (elsewhere.digest, "0" * 64):
            with pytest.raises(errors.DigestMismatch):
                await runtime.adecide(high.id, Said("approve"), as_=ANN, seen_digest=digest)
        with pytest.raises(errors.UnknownApproval):
            await runtime.aresume("other", approve=high.id, as_=ANN)
        assert [] == paid


GRANTED = "update approvals set {} where state = 'approved'"


@pytest.mark.parametrize(
    "forged",
    [
        "update threads set tenant = 'other'",
        "update approvals set digest = repeat('0', 64)",
        "update approvals set operation_digest = repeat('0', 64)",
        "update approvals set operation_id = 'op-another'",
        "update approvals set policy_version = '2'",
        "update approvals set expires_at = standfast.now()",
        "update approvals set state = 'rejected'",
        "update decisions set granted = null",
        "update decisions set granted = repeat('0', 64)",
        "update decisions set principal = 'eve'",
        "update decisions set principal = 'rob'",
        "delete from decisions",
    ],
)
async def test_a_grant_that_was_moved_to_something_else_is_void(
    paying: Any, paid: list[Any], query: Query, forged: str
) -> None:
    """Whatever part of the binding is not as it was decided, the executor finds no grant."""
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
        await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        query(forged)
        await runtime.aresume("t")
    assert [] == paid


async def test_a_grant_for_another_version_of_the_tool_is_void(paying: Any, paid: list[Any]) -> None:
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
        await runtime.adecide(approval.id, Said("approve"), as_=ANN)
    async with paying(ONE, version="2") as runtime:
        again = await runtime.aresume("t")
        assert ("waiting", []) == (again.status, paid)
        assert approval.id != again.approvals[0].id


async def test_a_policy_that_changed_after_the_request_asks_again_under_the_new_one(
    paying: Any, paid: list[Any]
) -> None:
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
    async with paying(TWO) as runtime:
        again = await runtime.aresume("t", approve=approval.id, as_=ANN)
        assert ("waiting", []) == (again.status, paid)
        [new] = again.approvals
        assert (2, True) == (new.required, new.policy_version != approval.policy_version)
        with pytest.raises(errors.AlreadyDecided) as refused:
            await runtime.aresume("t", approve=approval.id, as_=BOB)
        assert new.id == refused.value.successor


async def test_whoever_left_the_group_after_deciding_has_no_vote_at_the_call(paying: Any, paid: list[Any]) -> None:
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
        await runtime.adecide(approval.id, Said("approve"), as_=ANN)
    async with paying(ONE, groups={"finance": ["bob", "cyd"]}) as runtime:
        again = await runtime.aresume("t")
        assert ("waiting", []) == (again.status, paid)
        assert "succeeded" == (await runtime.aresume("t", approve=again.approvals[0].id, as_=BOB)).status
    assert [("Acme", 900)] == paid


async def test_a_member_in_the_table_who_is_taken_out_before_the_call_has_no_vote(
    paying: Any, paid: list[Any], query: Query
) -> None:
    query("insert into group_members (tenant, name, principal, added_by) values ('default', 'finance', 'ann', 'x')")
    async with paying(ONE, groups={"finance": "table"}) as runtime:
        [approval] = (await asked(runtime)).approvals
        with pytest.raises(errors.NotPermitted):
            await runtime.adecide(approval.id, Said("approve"), as_=BOB)
        await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        query("update group_members set principal = 'bob'")
        again = await runtime.aresume("t")
        assert ("waiting", []) == (again.status, paid)
        assert "succeeded" == (await runtime.aresume("t", approve=again.approvals[0].id, as_=BOB)).status


async def test_a_group_that_the_table_does_not_fill_stops_the_start(paying: Any) -> None:
    with pytest.raises(errors.InvalidPolicy, match="0 people"):
        async with paying(ONE, groups={"finance": "table"}):
            pass


# -- until when


async def test_a_grant_that_expires_between_decision_and_call_is_void(
    paying: Any, paid: list[Any], clock: Clock
) -> None:
    async with paying(Rule(valid_for=timedelta(hours=1))) as runtime:
        [approval] = (await asked(runtime)).approvals
        await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        clock.move(timedelta(hours=1))
        assert ("waiting", []) == ((await runtime.aresume("t")).status, paid)


async def test_a_vote_after_the_expiry_is_refused_and_the_request_counts_as_rejected(
    paying: Any, paid: list[Any], clock: Clock
) -> None:
    async with paying(replace_rule(TWO, valid_for=timedelta(hours=1))) as runtime:
        [approval] = (await asked(runtime)).approvals
        await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        clock.move(timedelta(hours=1))
        with pytest.raises(errors.ApprovalExpired):
            await runtime.adecide(approval.id, Said("approve"), as_=BOB)
        result = await runtime.aresume("t")
    assert "succeeded" == result.status
    assert texts(result)[0].startswith("Not done: nobody decided")
    assert [] == paid


def replace_rule(rule: Rule, **changes: Any) -> Rule:
    return Rule(**{**rule.model_dump(exclude_unset=True), **changes})


async def test_people_are_reminded_as_often_as_the_rule_says_until_somebody_decides(
    paying: Any, clock: Clock, query: Query
) -> None:
    def reminders() -> int:
        return int(query("select count(*) from outbox where topic = 'approval.reminder'")[0][0])

    async with paying(Rule(remind_after=timedelta(hours=1), valid_for=timedelta(hours=3))) as runtime:
        [approval] = (await asked(runtime)).approvals
        assert 0 == await runtime.store.approvals.remind()
        for expected in (1, 2):
            clock.move(timedelta(hours=1))
            assert [1, 0] == [await runtime.store.approvals.remind() for _ in range(2)]
            assert expected == reminders()
        await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        clock.move(timedelta(hours=1))
        assert (0, 2) == (await runtime.store.approvals.remind(), reminders())


# -- edits


async def test_an_edit_that_needs_another_person_is_asked_as_it_is_now(paying: Any, paid: list[Any]) -> None:
    async with paying(replace_rule(ONE, edit_needs_another=True)) as runtime:
        [approval] = (await asked(runtime)).approvals
        edited = await runtime.aresume("t", edit=approval.id, changes={"amount": 90}, as_=ANN)
        assert ("waiting", []) == (edited.status, paid)
        [new] = edited.approvals
        assert (90, "ann", ["amount: 900 -> 90"]) == (
            new.arguments["amount"],
            new.editor,
            [str(one) for one in new.difference],
        )
        with pytest.raises(errors.NotPermitted) as refused:
            await runtime.adecide(new.id, Said("approve"), as_=ANN)
        assert "editor" == refused.value.why
        with pytest.raises(errors.AlreadyDecided):  # the one that others may have seen before the edit
            await runtime.adecide(approval.id, Said("approve"), as_=BOB)
        result = await runtime.aresume("t", approve=new.id, as_=BOB)
    assert ("succeeded", [("Acme", 90)]) == (result.status, paid)


async def test_an_edit_under_a_quorum_takes_the_votes_for_what_was_there_before(paying: Any, paid: list[Any]) -> None:
    async with paying(TWO) as runtime:
        [approval] = (await asked(runtime)).approvals
        await runtime.aresume("t", approve=approval.id, as_=ANN)
        [new] = (await runtime.aresume("t", edit=approval.id, changes={"amount": 90}, as_=BOB)).approvals
        assert () == new.votes
        await runtime.aresume("t", approve=new.id, as_=CYD)
        assert [] == paid
        await runtime.aresume("t", approve=new.id, as_=BOB)
    assert [("Acme", 90)] == paid


async def test_an_edit_that_brings_a_call_under_a_milder_rule_still_needs_another_person(
    paying: Any, paid: list[Any]
) -> None:
    high = replace_rule(ONE, when=Condition(argument="amount", over=500), edit_needs_another=True)
    async with paying(high, Rule()) as runtime:
        [approval] = (await asked(runtime)).approvals
        [new] = (await runtime.aresume("t", edit=approval.id, changes={"amount": 90}, as_=ANN)).approvals
        assert (None, "ann", True) == (new.group, new.editor, new.edit_needs_another)
        with pytest.raises(errors.NotPermitted) as refused:
            await runtime.adecide(new.id, Said("approve"), as_=ANN)
        assert ("editor", []) == (refused.value.why, paid)
        assert "succeeded" == (await runtime.aresume("t", approve=new.id, as_=EVE)).status
    assert [("Acme", 90)] == paid


async def test_an_edit_cannot_lift_a_call_over_a_limit_that_a_stricter_rule_guards(
    paying: Any, paid: list[Any]
) -> None:
    high = replace_rule(TWO, when=Condition(argument="amount", over=1000))
    async with paying(high, Rule(approvers="finance")) as runtime:
        [approval] = (await asked(runtime)).approvals
        again = await runtime.aresume("t", edit=approval.id, changes={"amount": 5000}, as_=ANN)
        assert ("waiting", []) == (again.status, paid)
        [new] = again.approvals
        assert (2, 5000) == (new.required, new.arguments["amount"])
        await runtime.aresume("t", approve=new.id, as_=ANN)
        assert [] == paid
        await runtime.aresume("t", approve=new.id, as_=BOB)
    assert [("Acme", 5000)] == paid


async def test_whatever_was_executed_is_what_was_approved_last(paying: Any, paid: list[Any], query: Query) -> None:
    """The arguments that an edit replaced are nowhere executed, and both are kept."""
    async with paying(Rule()) as runtime:
        [approval] = (await asked(runtime)).approvals
        await runtime.aresume("t", edit=approval.id, changes={"amount": 90}, as_=ANN)
        [after] = await runtime.aapprovals(thread_id="t", state=None)
    assert [("Acme", 90)] == paid
    assert (900, 90) == (after.proposed["amount"], after.arguments["amount"])


# -- other ends


async def test_a_response_stands_in_the_tools_place(paying: Any, paid: list[Any]) -> None:
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
        result = await runtime.aresume("t", respond=approval.id, response="It was paid by hand.", as_=ANN)
    assert ("succeeded", ["It was paid by hand."], []) == (result.status, texts(result), paid)
    assert "success" == next(one for one in result.messages if isinstance(one, ToolMessage)).status


async def test_a_request_is_withdrawn_by_whoever_made_it(paying: Any, paid: list[Any]) -> None:
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
        with pytest.raises(errors.NotPermitted):
            await runtime.adecide(approval.id, Said("withdraw"), as_=EVE)
        result = await runtime.aresume("t", withdraw=approval.id, reason="a mistake", as_=REQUESTER)
    assert ("succeeded", ["Not done: withdrawn by rob: a mistake"], []) == (result.status, texts(result), paid)


async def test_a_grant_is_withdrawn_before_it_is_used(paying: Any, paid: list[Any]) -> None:
    async with paying(ONE) as runtime:
        [approval] = (await asked(runtime)).approvals
        await runtime.adecide(approval.id, Said("approve"), as_=ANN)
        await runtime.adecide(approval.id, Said("withdraw"), as_=ANN)
        result = await runtime.aresume("t")
    assert ("succeeded", ["Not done: withdrawn by ann."], []) == (result.status, texts(result), paid)


async def test_calls_of_one_turn_go_on_each_by_itself_and_the_model_sees_all(paying: Any, paid: list[Any]) -> None:
    people = Rule(when=Condition(argument="amount", over=10), approvers="finance")
    calls = [(10, "free"), (20, "approved"), (30, "rejected"), (40, "answered"), (50, "edited"), (60, "late")]
    async with paying(people, Rule(approvers="nobody")) as runtime:
        result = await asked(runtime, "t", *calls)
        assert [("free", 10)] == paid
        ids = {one.arguments["to"]: one.id for one in result.approvals}
        assert "waiting" == (await runtime.aresume("t", approve=ids["approved"], as_=ANN)).status
        assert [("free", 10), ("approved", 20)] == paid
        await runtime.aresume("t", reject=ids["rejected"], reason="no", as_=ANN)
        await runtime.aresume("t", respond=ids["answered"], response="by hand", as_=BOB)
        waiting = await runtime.aresume("t", edit=ids["edited"], changes={"amount": 51}, as_=ANN)
        assert [("free", 10), ("approved", 20), ("edited", 51)] == paid
        assert [ids["late"]] == [one.id for one in waiting.approvals]
        end = await runtime.aresume("t", approve=ids["late"], as_=CYD)
    assert "succeeded" == end.status
    assert [
        "paid 10 to free",
        "paid 20 to approved",
        "Rejected by ann: no",
        "by hand",
        "ann edited the call before approving it.\npaid 51 to edited",
        "paid 60 to late",
    ] == texts(end)


async def test_of_many_who_decide_at_once_one_wins_and_the_others_hear_what_and_who(
    paying: Any, paid: list[Any]
) -> None:
    async with paying(Rule()) as runtime:
        [approval] = (await asked(runtime)).approvals
        people = [Principal.vouched(f"person-{number}") for number in range(12)]
        verbs = ["approve", "reject", "respond"] * 4
        ends = await asyncio.gather(
            *(runtime.adecide(approval.id, Said(v, response="x"), as_=p) for v, p in zip(verbs, people, strict=True)),
            return_exceptions=True,
        )
        [won] = [one for one in ends if not isinstance(one, BaseException)]
        lost = [one for one in ends if isinstance(one, errors.AlreadyDecided)]
        assert 11 == len(lost)
        assert {(won.decision, won.decided_by)} == {(one.decision, one.by) for one in lost}
        await runtime.aresume("t")
    assert (won.state == "approved") is bool(paid)
