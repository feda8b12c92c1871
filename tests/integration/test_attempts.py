"""What an attempt's end is recorded as, and how many attempts there are: by what happened, not by how often."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from pydantic import PrivateAttr

from standfast.graph import Effect, OperationContext, Policy, Result, operation, sleep
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, call, script

Open = Callable[..., Any]
DAY = timedelta(days=1)


def texts(result: Result) -> list[str]:
    return [str(one.text) for one in result.messages if isinstance(one, ToolMessage)]


async def test_waits_are_no_failures_and_take_no_retries(opened: Open, clock: Clock) -> None:
    failures: list[int] = []

    @operation(policy=Policy(effect=Effect.IDEMPOTENT, retries=1))
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
