"""What an attempt's end is recorded as, and how many attempts there are: by what happened, not by how often."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from pydantic import PrivateAttr

from standfast.checkpoint import errors
from standfast.graph import Effect, OperationContext, Policy, Result, RetryPolicy, operation, sleep
from standfast.tools.failures import InvalidArguments
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, call, script

Open = Callable[..., Any]
DAY = timedelta(days=1)


def texts(result: Result) -> list[str]:
    return [str(one.text) for one in result.messages if isinstance(one, ToolMessage)]


async def test_waits_are_no_failures_and_take_no_retries(opened: Open, clock: Clock) -> None:
    failures: list[int] = []

    @operation(policy=Policy(effect=Effect.IDEMPOTENT, retry=RetryPolicy(max_attempts=2, park_over=0)))
    async def patient(context: OperationContext) -> str:
        """Wait for two days, fail once, then work."""
        await sleep(for_=DAY)
        await sleep(for_=DAY)
        if not failures:
            failures.append(context.attempt)
            raise ConnectionError("nobody there")
        return "there"

    async with opened(patient) as runtime:
        assert "waiting" == (await runtime.ainvoke(script([call("patient")]), thread_id="t")).status
        clock.move(DAY)
        assert "waiting" == (await runtime.aresume("t")).status
        clock.move(DAY)
        assert "waiting" == (await runtime.aresume("t")).status
        clock.move(timedelta(seconds=1))
        result = await runtime.aresume("t")
        mine = {one.id for one in await runtime.store.operations.list("t") if one.name == "patient"}
        attempts = [one for one in await runtime.store.operations.attempts("t") if one.operation_id in mine]

    assert ["there"] == texts(result)
    assert [("waiting", None), ("waiting", None), ("failed", "ConnectionError: nobody there"), ("succeeded", None)] == [
        (one.state, one.failure_message) for one in attempts
    ]


class AbsentModel(ScriptedModel):
    """Is away as often as `away` says, then is the scripted model."""

    away: int
    _asked: int = PrivateAttr(0)

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        self._asked += 1
        if self._asked <= self.away:
            raise ConnectionError("nobody there")
        return super().answer(messages)


async def test_each_resume_gives_a_model_that_was_away_its_full_number_of_tries(opened: Open) -> None:
    model = AbsentModel(away=5)
    async with opened(model=model) as runtime:
        parked = await runtime.ainvoke(script("Here I am."), thread_id="t")
        assert ("needs_attention", 3) == (parked.status, model._asked)
        result = await runtime.aresume("t")

    assert ("succeeded", 6) == (result.status, model._asked)


@operation(policy=Policy(effect=Effect.IDEMPOTENT))
async def garble() -> str:
    """Fail with words that no database takes."""
    raise ValueError("NUL \0, surrogate \ud800, and " + "long " * 2_000)


async def test_words_that_no_text_column_takes_are_a_failure_like_any_other(opened: Open) -> None:
    async with opened(garble) as runtime:
        result = await runtime.ainvoke(script([call("garble")]), thread_id="t")
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "garble"]

    assert "succeeded" == result.status
    assert known.failure_message is not None
    assert known.failure_message.startswith("ValueError: NUL \ufffd, surrogate \ufffd, and long ")
    assert 4_000 == len(known.failure_message)
    assert [f"This call failed (permanent): {known.failure_message}"] == texts(result)


class GarblingModel(ScriptedModel):
    """Fails with words that no database takes."""

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        raise ValueError("NUL \0 and surrogate \ud800")


async def test_a_reason_that_no_text_column_takes_parks_the_run_like_any_other(opened: Open) -> None:
    async with opened(model=GarblingModel()) as runtime:
        parked = await runtime.ainvoke(script("never"), thread_id="t")
        known = await runtime.store.threads.get("t")

    assert "needs_attention" == parked.status
    assert known.reason is not None
    assert "NUL \ufffd and surrogate \ufffd" in known.reason


@pytest.mark.parametrize(
    "raised",
    [
        InvalidArguments("no such account"),
        errors.OperationMismatch("the operation's own"),
        errors.NotGranted("the operation's own"),
        errors.ModelFailed("the operation's own"),
    ],
)
async def test_whatever_a_transactional_operation_raises_is_its_failure(
    opened: Open, query: Callable[..., list[tuple[Any, ...]]], raised: Exception
) -> None:
    @operation(policy=Policy(effect=Effect.TRANSACTIONAL))
    async def enter_badly(context: OperationContext) -> str:
        """Enter a line, then fail."""
        await context.connection.execute("insert into public.entries (text) values ('x')")
        raise raised

    query("create table public.entries (text text)")
    async with opened(enter_badly) as runtime:
        result = await runtime.ainvoke(script([call("enter_badly")]), thread_id="t")
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "enter_badly"]

    assert "succeeded" == result.status
    assert [f"{type(raised).__name__}: {raised}"] == [one.partition("): ")[2] for one in texts(result)]
    assert ("failed", 1) == (known.state, known.attempts)
    assert [] == query("select * from public.entries")


async def elsewhere(context: OperationContext) -> None:
    await psycopg.AsyncConnection.connect("host=127.0.0.1 port=1 connect_timeout=2")


async def too_long(context: OperationContext) -> None:
    await context.connection.execute("set local statement_timeout = 1")
    await context.connection.execute("select pg_sleep(60)")


async def locked(context: OperationContext) -> None:
    await context.connection.execute("set local lock_timeout = 1")
    await context.connection.execute("select pg_advisory_xact_lock(1)")


@pytest.mark.parametrize("effect", [elsewhere, too_long, locked])
async def test_what_a_transactional_operation_is_refused_by_a_database_is_its_failure_and_not_a_database_that_is_away(
    opened: Open, database_url: str, effect: Callable[[OperationContext], Awaitable[None]]
) -> None:
    @operation(policy=Policy(effect=Effect.TRANSACTIONAL, retry=RetryPolicy(max_attempts=1)))
    async def refused(context: OperationContext) -> str:
        """Ask for what is not given."""
        await effect(context)
        return "given"

    with psycopg.connect(database_url) as holder:
        holder.execute("select pg_advisory_xact_lock(1)")
        async with opened(refused) as runtime:
            result = await runtime.ainvoke(script([call("refused")]), thread_id="t")
            [known] = [one for one in await runtime.store.operations.list("t") if one.name == "refused"]

    assert ("succeeded", "failed", 1) == (result.status, known.state, known.attempts)
