"""What a deploy may change under a waiting thread, and what a user's own code may do: the run goes on, or asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import ToolMessage

from standfast.checkpoint.settings import Settings
from standfast.graph import Effect, Operation, Policy, Principal, Result, Runtime, build_agent, operation, sleep
from standfast.graph.answers import Said
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, call, jot, note, script
from tests.servers.reports import ReportsServer

Deploy = Callable[..., Any]
WHO = Principal.vouched("approver@example.com")
DAY = timedelta(days=1)


@pytest.fixture
def deploy(database_url: str, reports_server: ReportsServer) -> Deploy:
    """`async with deploy(*operations) as runtime:` the agent with exactly these."""

    @asynccontextmanager
    async def deploying(*operations: Operation) -> AsyncIterator[Runtime]:
        graph = build_agent(model=ScriptedModel(), operations=operations)
        settings = Settings(reports_url=f"{reports_server.url}/reports")
        async with Runtime(graph, database_url=database_url, settings=settings) as runtime:
            yield runtime

    return deploying


def texts(result: Result) -> list[str]:
    return [str(one.text) for one in result.messages if isinstance(one, ToolMessage)]


class Stopped(BaseException):
    """What no node catches: as if the process had ended here, with its lease given up."""


@contextmanager
def stopping(monkeypatch: pytest.MonkeyPatch, point: str, *, calls: int) -> Iterator[None]:
    """Stop the drive when it reaches `point` for the `calls`th time."""
    reached: list[str] = []

    def reach(at: str) -> None:
        reached.append(at)
        if reached.count(point) == calls and at == point:
            raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr("standfast.tools.ledger.reach", reach)
        with pytest.raises(Stopped):
            yield


# -- another version


@pytest.mark.guarantee("G6")
async def test_a_grant_for_one_version_of_an_operation_is_none_for_another(
    deploy: Deploy, reports_server: ReportsServer
) -> None:
    async with deploy(note) as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="agreed")]), thread_id="t")
        await runtime.adecide(waiting.approvals[0].id, Said("approve"), as_=WHO)
    async with deploy(replace(note, version="2")) as runtime:
        again = await runtime.aresume("t")
        assert ("waiting", 1, []) == (again.status, len(again.approvals), reports_server.effects())
        assert waiting.approvals[0].id != again.approvals[0].id
        result = await runtime.aresume("t", approve=again.approvals[0].id, as_=WHO)

    assert ("succeeded", ["noted agreed"]) == (result.status, texts(result))
    assert 1 == len(reports_server.effects())


@pytest.mark.guarantee("G6")
async def test_an_edit_of_what_the_old_version_asked_is_asked_about_again_under_the_new_one(
    deploy: Deploy, reports_server: ReportsServer
) -> None:
    async with deploy(note) as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="draft")]), thread_id="t")
    async with deploy(replace(note, version="2")) as runtime:
        again = await runtime.aresume("t", edit=waiting.approvals[0].id, changes={"text": "final"})
        assert ("waiting", 0) == (again.status, len(reports_server.effects()))
        result = await runtime.aresume("t", approve=again.approvals[0].id, as_=WHO)

    assert ("succeeded", 1) == (result.status, len(reports_server.effects()))


async def test_what_was_executed_under_the_old_version_is_told_and_not_asked_for_again(
    deploy: Deploy, reports_server: ReportsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with deploy(note) as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="once")]), thread_id="t")
        with stopping(monkeypatch, "operation.recorded", calls=1):
            await runtime.aresume("t", approve=waiting.approvals[0].id)
    async with deploy(replace(note, version="2")) as runtime:
        result = await runtime.aresume("t")

    assert ("succeeded", ["noted once"]) == (result.status, texts(result))
    assert 1 == len(reports_server.effects())


# -- an operation that is gone


async def test_an_approved_operation_that_a_deploy_removed_is_told_to_the_model(deploy: Deploy) -> None:
    async with deploy(note, jot) as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="never")], "Understood."), thread_id="t")
    async with deploy(jot) as runtime:
        result = await runtime.aresume("t", approve=waiting.approvals[0].id, as_=WHO)

    assert ("succeeded", "Understood.") == (result.status, result.outcome["answer"])
    assert ["Not done: there is no operation 'note'; there are: jot."] == texts(result)


@operation(policy=Policy(effect=Effect.IDEMPOTENT))
async def patient() -> str:
    """Wait for a day."""
    await sleep(for_=DAY)
    return "waited"


async def test_a_waiting_operation_that_a_deploy_removed_is_told_to_the_model(deploy: Deploy, clock: Clock) -> None:
    async with deploy(patient, jot) as runtime:
        assert "waiting" == (await runtime.ainvoke(script([call("patient")]), thread_id="t")).status
    clock.move(DAY)
    async with deploy(jot) as runtime:
        result = await runtime.aresume("t")

    assert "succeeded" == result.status
    assert ["This call failed (permanent): there is no operation 'patient'; there are: jot"] == texts(result)


@pytest.mark.parametrize(("point", "status"), [("operation.begun", "waiting"), ("operation.recorded", "succeeded")])
async def test_a_removed_operation_that_had_begun_is_told_as_it_is_known(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, point: str, status: str
) -> None:
    async with deploy(jot, note) as runtime:
        with stopping(monkeypatch, point, calls=1 if point == "operation.recorded" else 2):
            await runtime.ainvoke(script([call("jot", text="x")]), thread_id="t")
    async with deploy(note) as runtime:
        result = await runtime.aresume("t")

    assert status == result.status
    assert (status == "succeeded") is (texts(result) == ["noted x"])


# -- a user's own code


async def _raises(arguments: Mapping[str, Any], context: Any) -> Sequence[str]:
    raise KeyError(arguments["text"])


async def _reads(arguments: Mapping[str, Any], context: Any) -> Sequence[str]:
    return [f"read: {sorted(context.passages_read)}"]


async def test_a_check_that_raises_is_a_failed_check_that_says_so(deploy: Deploy) -> None:
    @operation(policy=Policy(effect=Effect.IDEMPOTENT), checks=[_raises])
    async def checked(text: str) -> str:
        """Be checked."""
        return text

    async with deploy(checked) as runtime:
        waiting = await runtime.ainvoke(script(*[[call("checked", text="x")]] * 3), thread_id="t")
        assert ("the check _raises could not be made: KeyError: 'x'",) == waiting.approvals[0].failed_checks
        result = await runtime.aresume("t", approve=waiting.approvals[0].id)

    assert ("succeeded", "x") == (result.status, texts(result)[-1])


async def test_an_operation_with_a_reader_s_name_may_return_anything(deploy: Deploy) -> None:
    @operation(policy=Policy(effect=Effect.READ))
    async def search_documents(text: str) -> Any:
        """Find something in another place."""
        return {"text": text, "list": [text, {"document": 7}, {"document": "a", "passage": 1}]}[text]

    @operation(policy=Policy(effect=Effect.IDEMPOTENT), checks=[_reads])
    async def checked() -> str:
        """Be checked."""
        return ""

    found = [call("search_documents", text=one) for one in ("text", "list")]
    async with deploy(search_documents, checked) as runtime:
        result = await runtime.ainvoke(script(found, [call("checked")]), thread_id="t")

    assert "read: [('a', 1)]" in texts(result)[-1]
