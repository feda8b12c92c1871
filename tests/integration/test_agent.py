"""The agent in one process, with a model that says what the test wants: every call ends in exactly one message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pydantic import PrivateAttr

from standfast.checkpoint import errors
from standfast.graph import (
    Effect,
    OperationContext,
    Policy,
    Principal,
    Result,
    RetryPolicy,
    Runtime,
    build_agent,
    operation,
)
from standfast.graph.answers import Said
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, Turn, call, script
from tests.servers.reports import ReportsServer
from tests.servers.scripted import Step

READ = Policy(effect=Effect.READ)
WHO = Principal.vouched("approver@example.com")
Open = Callable[..., Any]


def tool_messages(result: Result) -> list[ToolMessage]:
    """The tool messages; AssertionError unless each call has exactly one."""
    calls = [
        one["id"]
        for message in result.messages
        if isinstance(message, AIMessage)
        for one in [*message.tool_calls, *message.invalid_tool_calls]
    ]
    found = [one for one in result.messages if isinstance(one, ToolMessage)]
    assert sorted(map(str, calls)) == sorted(one.tool_call_id for one in found)
    return found


def texts(result: Result) -> list[str]:
    return [str(one.text) for one in tool_messages(result)]


# -- what a model may get wrong


async def test_a_call_that_is_no_json_goes_back_to_the_model(opened: Open) -> None:
    broken = {"name": "jot", "args": '{"text": ', "malformed": "it ends too early"}
    async with opened() as runtime:
        result = await runtime.ainvoke(script([broken], [call("jot", text="mended")]))

    assert ["The call could not be read: it ends too early", "noted mended"] == texts(result)
    assert "succeeded" == result.status


async def test_an_unknown_tool_goes_back_to_the_model_with_the_names_there_are(opened: Open) -> None:
    async with opened() as runtime:
        result = await runtime.ainvoke(script([call("send_money", amount=10)]))

    [text] = texts(result)
    assert "no operation 'send_money'" in text
    assert "publish_report" in text


async def test_arguments_that_do_not_fit_go_back_to_the_model_and_nothing_happens(
    opened: Open, reports_server: ReportsServer
) -> None:
    async with opened() as runtime:
        result = await runtime.ainvoke(script([call("jot", text=7), call("jot"), call("jot", text="a", more="b")]))

    wrong_type, missing, unknown = texts(result)
    assert "text: " in wrong_type
    assert "text: Field required" in missing
    assert "no argument 'more'" in unknown
    assert [] == reports_server.effects()


async def test_an_empty_answer_is_asked_again(opened: Open) -> None:
    async with opened() as runtime:
        result = await runtime.ainvoke(script("", " \n", "Here I am."))

    assert ("succeeded", "Here I am.") == (result.status, result.outcome["answer"])


async def test_empty_answers_end_the_run_as_failed_after_three(opened: Open) -> None:
    async with opened() as runtime:
        result = await runtime.ainvoke(script("", "", "", "too late"))

    assert "failed" == result.status
    assert "3 turns" in result.reason


async def test_one_label_for_two_calls_of_a_turn_identifies_nothing(
    opened: Open, reports_server: ReportsServer
) -> None:
    """Providers repeat ids; what is executed is known by its place."""
    turn = [{**call("jot", text="one"), "id": "same"}, {**call("jot", text="two"), "id": "same"}]
    async with opened() as runtime:
        result = await runtime.ainvoke(script(turn))

    assert "succeeded" == result.status
    assert ["one", "two"] == sorted(one["report"]["body"]["text"] for one in reports_server.effects())
    assert ["noted one", "noted two"] == sorted(texts(result))


# -- checks before an approval

QUOTE = "The lighthouse at Far Point was lit in 1871."


def _report(quote: str) -> dict[str, Any]:
    quotation = {"document": "lighthouse.txt", "passage": 0, "quote": quote}
    return call("publish_report", title="Lighthouse", body=quote, quotations=[quotation], sources=[])


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "lighthouse.txt").write_text(f"{QUOTE}\n")
    return folder


async def test_a_report_that_fails_its_checks_is_mended_twice_and_then_shown_to_a_person(
    opened: Open, documents: Path, reports_server: ReportsServer
) -> None:
    read = call("read_document", document="lighthouse.txt")
    turns = [[read], [_report("It was lit in 1900.")], [_report("It was lit in 1901.")], [_report("It was never lit.")]]
    async with opened() as runtime:
        waiting = await runtime.ainvoke(script(*turns), thread_id="checked", documents=[documents])

        assert "waiting" == waiting.status
        [asked] = waiting.approvals
        assert any("does not stand there word for word" in one for one in asked.failed_checks)
        assert any("quoted but not listed" in one for one in asked.failed_checks)
        assert "It was never lit." == asked.arguments["body"]
        state = await runtime.astate("checked")
        assert asked.failed_checks == tuple(state.interrupts[0].value["approval"]["failed_checks"])
        sent_back = [str(one.text) for one in state.values["messages"] if isinstance(one, ToolMessage)]
        assert [False, True, True] == ["Mend the call" in one for one in sent_back]
        assert [] == reports_server.effects()

        result = await runtime.aresume("checked", approve=asked.id, as_=WHO)

    assert "succeeded" == result.status
    assert 1 == len(reports_server.effects())


# -- decisions


@pytest.mark.guarantee("G6")
async def test_an_edit_makes_a_new_digest_and_its_arguments_are_what_is_executed(
    opened: Open, reports_server: ReportsServer
) -> None:
    async with opened() as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="draft")]), thread_id="edited")
        before = waiting.approvals[0]
        result = await runtime.aresume("edited", edit=before.id, changes={"text": "final"}, as_=WHO)
        [after] = await runtime.aapprovals(thread_id="edited", state=None)
        [done] = [one for one in await runtime.store.operations.list("edited") if one.kind == "tool"]

    assert ("approved", "edit", WHO.name) == (after.state, after.decision, after.decided_by)
    assert before.digest != after.digest
    assert {"text": "final"} == done.arguments
    assert ["final"] == [one["report"]["body"]["text"] for one in reports_server.effects()]
    assert ["approver@example.com edited the call before approving it.\nnoted final"] == texts(result)


@pytest.mark.guarantee("G6")
async def test_an_argument_that_an_edit_leaves_out_is_not_executed(opened: Open) -> None:
    """Clients send all arguments of an edited action; `changes` are changes."""
    written: list[tuple[str, str]] = []

    @operation(policy=Policy(effect=Effect.IDEMPOTENT, approval=True))
    async def write(text: str, copy_to: str = "nobody") -> str:
        """Write to somebody, with a copy."""
        written.append((text, copy_to))
        return "written"

    turn = [call("write", text=text, copy_to="the press") for text in ("whole", "changed")]
    async with opened(write) as runtime:
        waiting = await runtime.ainvoke(script(turn), thread_id="less")
        ids = {one.arguments["text"]: one.id for one in waiting.approvals}
        await runtime.aresume("less", edit=ids["changed"], changes={"text": "mended"})
        edit = {"type": "edit", "edited_action": {"name": "write", "args": {"text": "whole"}}}
        result = await runtime.aresume("less", {"decisions": [edit]})

    assert "succeeded" == result.status
    assert [("mended", "the press"), ("whole", "nobody")] == sorted(written)


async def test_an_edit_that_does_not_fit_is_refused_and_the_request_stays_open(opened: Open) -> None:
    async with opened() as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="draft")]), thread_id="edited")
        with pytest.raises(errors.InvalidRequest, match="text"):
            await runtime.aresume("edited", edit=waiting.approvals[0].id, changes={"text": 7})
        again = await runtime.aresume("edited")

    assert [waiting.approvals[0].id] == [one.id for one in again.approvals]


async def test_a_rejection_reaches_the_model_with_its_reason_and_the_run_ends_well(
    opened: Open, reports_server: ReportsServer
) -> None:
    async with opened() as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="no")], "Understood."), thread_id="rejected")
        result = await runtime.aresume("rejected", reject=waiting.approvals[0].id, reason="not today", as_=WHO)

    assert ["Rejected by approver@example.com: not today"] == texts(result)
    assert ("succeeded", "Understood.") == (result.status, result.outcome["answer"])
    assert [] == reports_server.effects()


@pytest.mark.guarantee("G6")
async def test_a_request_that_nobody_answers_is_rejected_when_its_time_is_over(
    opened: Open, clock: Clock, reports_server: ReportsServer
) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(script([call("note", text="no")]), thread_id="expiring")
        clock.move(timedelta(days=6))
        assert "waiting" == (await runtime.aresume("expiring")).status
        clock.move(timedelta(days=1, seconds=1))
        result = await runtime.aresume("expiring")

    assert "succeeded" == result.status
    assert texts(result)[0].startswith("Not done: nobody decided before ")
    assert [] == reports_server.effects()


async def test_a_decision_made_in_time_counts_however_late_the_thread_goes_on(
    opened: Open, clock: Clock, reports_server: ReportsServer
) -> None:
    """The grant's own time is over by then, so a person is asked again; a rejection stands."""
    async with opened() as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="a"), call("note", text="b")]), thread_id="late")
        ids = {one.arguments["text"]: one.id for one in waiting.approvals}
        await _decide(runtime, ids["a"], "approve")
        await _decide(runtime, ids["b"], "reject")
        clock.move(timedelta(days=8))
        again = await runtime.aresume("late")

        assert "waiting" == again.status
        assert [{"text": "a"}] == [one.arguments for one in again.approvals]
        assert ids["a"] != again.approvals[0].id
        assert [] == reports_server.effects()

        result = await runtime.aresume("late", approve=again.approvals[0].id)

    assert ["noted a", f"Rejected by {WHO.name}."] == texts(result)


async def _decide(runtime: Runtime, approval: str, verb: Any) -> None:
    await runtime.adecide(approval, Said(verb), as_=WHO)


# -- failures


class FailingModel(ScriptedModel):
    """Fails as often as `failures` says, then is the scripted model."""

    failures: int = 0
    _asked: int = PrivateAttr(0)

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        self._asked += 1
        if self._asked <= self.failures:
            raise PermissionError("no entry")
        return super().answer(messages)


@pytest.mark.guarantee("G2")
async def test_a_model_that_fails_parks_the_run_and_a_resume_asks_it_again(
    opened: Open, reports_server: ReportsServer
) -> None:
    async with opened(model=FailingModel(failures=1)) as runtime:
        failed = await runtime.ainvoke(script([call("jot", text="once")]), thread_id="model")

        assert "needs_attention" == failed.status
        assert isinstance(failed.error, errors.ModelFailed)
        assert "no entry" in failed.reason

        result = await runtime.aresume("model")

    assert "succeeded" == result.status
    assert 1 == len(reports_server.effects())


async def test_a_mapping_with_a_message_that_has_no_id_survives_a_failure_of_the_model(opened: Open) -> None:
    async with opened(model=FailingModel(failures=1)) as runtime:
        failed = await runtime.ainvoke({"messages": [HumanMessage(script([call("jot", text="x")]))]}, thread_id="map")
        assert "needs_attention" == failed.status
        result = await runtime.aresume("map")

    assert "succeeded" == result.status
    assert ["noted x"] == texts(result)


@operation(policy=READ)
async def explode(kind: str) -> str:
    """Fail."""
    raise {"permanent": ValueError, "odd": ArithmeticError}[kind]("a bang")


async def test_an_operation_that_raises_is_told_to_the_model_and_cancels_no_sibling(
    opened: Open, reports_server: ReportsServer
) -> None:
    turn = [call("explode", kind=kind) for kind in ("permanent", "odd")]
    async with opened(explode) as runtime:
        result = await runtime.ainvoke(script([*turn, call("jot", text="beside")]))

    permanent, odd, beside = texts(result)
    assert "This call failed (permanent): ValueError: a bang" == permanent
    assert "This call failed (unknown): ArithmeticError: a bang" == odd
    assert "noted beside" == beside
    assert "succeeded" == result.status
    assert 1 == len(reports_server.effects())


async def test_an_operation_that_takes_too_long_is_stopped_and_tried_again_as_often_as_its_policy_says(
    opened: Open,
) -> None:
    attempts: list[int] = []

    @operation(policy=Policy(effect=Effect.READ, timeout=0.05, retry=RetryPolicy(max_attempts=2)))
    async def dawdle(context: OperationContext) -> str:
        """Never end."""
        attempts.append(context.attempt)
        await asyncio.Event().wait()
        return ""

    async with opened(dawdle) as runtime:
        result = await runtime.ainvoke(script([call("dawdle")]), thread_id="slow")
        [known] = [one for one in await runtime.store.operations.list("slow") if one.name == "dawdle"]

    assert [1, 2] == attempts
    assert ["This call failed (timeout): TimeoutError"] == texts(result)
    assert ("failed", 2, "timeout") == (known.state, known.attempts, known.failure_class)


async def test_a_failure_that_time_can_mend_is_tried_again_under_the_same_id(opened: Open) -> None:
    seen: list[str] = []

    @operation(policy=Policy(effect=Effect.IDEMPOTENT, retry=RetryPolicy()))
    async def flaky(context: OperationContext) -> str:
        """Work at the second attempt."""
        seen.append(context.operation_id)
        if len(seen) == 1:
            raise ConnectionError("nobody there")
        return "there"

    async with opened(flaky) as runtime:
        result = await runtime.ainvoke(script([call("flaky")]))

    assert ["there"] == texts(result)
    assert 2 == len(seen)
    assert 1 == len(set(seen))


@pytest.mark.guarantee("G11")
async def test_a_result_that_cannot_be_stored_is_done_and_never_executed_again(opened: Open) -> None:
    happened: list[int] = []

    @operation(policy=Policy(effect=Effect.IDEMPOTENT))
    async def odd(context: OperationContext) -> Any:
        """Return something that no store takes."""
        happened.append(1)
        return object()

    async with opened(odd) as runtime:
        waiting = await runtime.ainvoke(script([call("odd"), call("note", text="wait")]), thread_id="odd")
        [known] = [one for one in await runtime.store.operations.list("odd") if one.name == "odd"]
        result = await runtime.aresume("odd", approve=waiting.approvals[0].id)

    assert ("succeeded", None, "unstorable_result") == (known.state, known.result, known.failure_class)
    assert [1] == happened
    assert texts(result)[0].startswith("This call failed (unstorable_result): ")
    assert "succeeded" == result.status


async def test_what_may_have_happened_at_most_once_is_not_called_again_and_put_before_a_person(
    opened: Open, reports_server: ReportsServer
) -> None:
    """The server did it, and its answer was lost."""
    reports_server.script(Step(fail="cut", performed=True))
    async with opened() as runtime:
        result = await runtime.ainvoke(script([call("shout", text="once")]), thread_id="lost")
        [question] = (await runtime.aresume("lost")).approvals
        end = await runtime.aresume("lost", {"type": "happened", "result": "noted once"})

    assert "waiting" == result.status
    assert "It is not known whether shout took effect in attempt 1 (RemoteProtocolError" in question.description
    assert ("succeeded", ["noted once"]) == (end.status, texts(end))
    assert 1 == len(reports_server.effects())
    assert 1 == len(reports_server.requests())


# -- later runs


async def test_a_second_run_sees_the_messages_of_the_first(opened: Open) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(script("My name is Scripted."), thread_id="two")
        result = await runtime.ainvoke(script("Again."), thread_id="two")

    answers = [str(one.text) for one in result.messages if isinstance(one, AIMessage)]
    assert ["My name is Scripted.", "Again."] == answers
    assert "Again." == result.outcome["answer"]


async def test_each_run_of_a_thread_has_its_own_turns(database_url: str) -> None:
    graph = build_agent(model=ScriptedModel(), operations=[look], max_turns=3)
    thrice = [[call("look", at=str(number))] for number in range(3)]
    async with Runtime(graph, database_url=database_url) as runtime:
        for _ in range(2):
            within = await runtime.ainvoke(script(*thrice[:2], "Seen."), thread_id="turns")
            assert ("succeeded", "Seen.") == (within.status, within.outcome["answer"])
        given = {"messages": [HumanMessage(script(*thrice[:2], "Seen."))]}
        assert "Seen." == (await runtime.ainvoke(given, thread_id="turns")).outcome["answer"]
        beyond = await runtime.ainvoke(script(*thrice, "Too late."), thread_id="turns")
        known = await runtime.store.operations.list("turns", beyond.run_id)

    assert ("failed", "the model gave no answer in 3 turns") == (beyond.status, beyond.reason)
    assert [("model", 1), ("tool", 1), ("model", 2), ("tool", 2), ("model", 3)] == [
        (one.kind, one.turn) for one in known
    ]


@operation(policy=READ)
async def look(at: str) -> str:
    """Look at something."""
    return f"seen {at}"


class ListeningModel(ScriptedModel):
    """Keeps what it was shown."""

    _shown: list[list[BaseMessage]] = PrivateAttr(default_factory=list)

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        self._shown.append(messages)
        return super().answer(messages)


async def test_a_call_that_a_cancelled_run_left_open_is_closed_for_the_next_run(
    opened: Open, reports_server: ReportsServer
) -> None:
    model = ListeningModel()
    async with opened(model=model) as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="never")]), thread_id="closed")
        cancelled = await runtime.acancel("closed")
        result = await runtime.ainvoke(script("Next."), thread_id="closed")
        with pytest.raises(errors.AlreadyDecided):
            await runtime.aresume("closed", approve=waiting.approvals[0].id)

    assert "cancelled" == cancelled.status
    assert ("succeeded", "Next.") == (result.status, result.outcome["answer"])
    shown = model._shown[-1]
    position = next(n for n, one in enumerate(shown) if isinstance(one, AIMessage) and one.tool_calls)
    closing = shown[position + 1]
    assert isinstance(closing, ToolMessage)
    assert "call-0-0" == closing.tool_call_id
    assert "not carried out" in str(closing.text)
    assert [] == reports_server.effects()


async def test_a_request_while_one_waits_is_refused_and_the_question_stays(opened: Open) -> None:
    async with opened() as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="first")]), thread_id="busy")
        with pytest.raises(errors.ThreadBusy):
            await runtime.ainvoke(script("second"), thread_id="busy")
        again = await runtime.aresume("busy")

    assert [waiting.approvals[0].id] == [one.id for one in again.approvals]


async def test_the_oldest_of_many_questions_is_answerable_alone(opened: Open, reports_server: ReportsServer) -> None:
    """A page of a list is no bound on what a thread may wait for."""
    turn: Turn = [call("note", text=str(number)) for number in range(101)]
    async with opened() as runtime:
        waiting = await runtime.ainvoke(script(turn), thread_id="many")
        assert 101 == len(waiting.approvals)
        oldest = min(waiting.approvals, key=lambda one: (one.requested_at, one.id))
        after = await runtime.aresume("many", approve=oldest.id)

    assert "waiting" == after.status
    assert 100 == len(after.approvals)
    assert [oldest.arguments["text"]] == [one["report"]["body"]["text"] for one in reports_server.effects()]


async def test_calls_of_one_turn_do_not_mix_while_models_are_streamed(opened: Open) -> None:
    @operation(policy=READ)
    async def twice(number: int) -> int:
        """Twice the number."""
        return 2 * number

    request = script([call("twice", number=1), call("twice", number=2)], "Both are known.")
    async with opened(twice, stream_models=True) as runtime:
        result = await runtime.ainvoke(request, thread_id="t")
    assert ("succeeded", ["2", "4"]) == (result.status, texts(result))


async def test_an_agent_with_a_model_of_its_own_is_asked_for_no_other(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_MODEL", "never-asked")
    monkeypatch.setenv("OPENAI_API_KEY", "not a key")
    async with opened(model=ListeningModel()) as runtime:
        with pytest.raises(errors.InvalidRequest):
            await runtime.ainvoke(script("Hello."), thread_id="t", model="openai:another")
        result = await runtime.ainvoke(script("Hello."), thread_id="t")
        (asked,) = [one for one in (await runtime.atimeline("t")).operations if one.kind == "model"]

    assert ("Hello.", "ListeningModel") == (result.outcome["answer"], asked.name)
