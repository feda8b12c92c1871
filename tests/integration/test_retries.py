"""Retries by kind of failure, by the database's clock, which these tests hold and move; nothing here sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import PrivateAttr, SecretStr

from standfast.checkpoint import errors
from standfast.graph import (
    Backoff,
    Effect,
    FailureClass,
    InvalidArguments,
    OperationContext,
    Policy,
    Result,
    RetryPolicy,
    operation,
)
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, call, script
from tests.servers.openai import OpenAIServer, Reply
from tests.servers.reports import ReportsServer
from tests.servers.scripted import Step, http_date

pytestmark = pytest.mark.guarantee("G8")
Open = Callable[..., Any]
Query = Callable[..., list[tuple[Any, ...]]]
PARKED: dict[str, Any] = {"jitter": 0.0, "park_over": 0.0}


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def texts(result: Result) -> list[str]:
    return [str(one.text) for one in result.messages if isinstance(one, ToolMessage)]


class Flaky:
    """An operation `work` that fails as often as it is told to."""

    def __init__(self, retry: RetryPolicy, failures: int, error: Exception | None = None) -> None:
        self.attempts: list[int] = []
        self._error = error or ConnectionError("nobody there")
        self._failures = failures

        @operation(policy=Policy(effect=Effect.IDEMPOTENT, retry=retry))
        async def work(context: OperationContext) -> str:
            """Work."""
            self.attempts.append(context.attempt)
            if len(self.attempts) <= self._failures:
                raise self._error
            return "worked"

        self.operation = work


async def test_each_attempt_comes_at_its_time_and_not_before(opened: Open, clock: Clock, query: Query) -> None:
    flaky = Flaky(RetryPolicy(5, 20.0, 3.0, 100.0, **PARKED), failures=4)
    async with opened(flaky.operation) as runtime:
        assert "waiting" == (await runtime.ainvoke(script([call("work")]), thread_id="t")).status
        for number, delay in enumerate((20, 60, 100, 100), 1):
            assert [(clock.now() + seconds(delay),)] == query("select until from waits where state = 'open'")
            clock.move(seconds(delay) - seconds(0.001))
            assert "waiting" == (await runtime.aresume("t")).status
            assert number == len(flaky.attempts)
            clock.move(seconds(0.001))
            result = await runtime.aresume("t")
            assert number + 1 == len(flaky.attempts)

    assert ("succeeded", ["worked"]) == (result.status, texts(result))


async def test_the_last_attempt_allowed_ends_the_operation_and_the_model_is_told(opened: Open, clock: Clock) -> None:
    flaky = Flaky(RetryPolicy(2, 20.0, **PARKED), failures=9)
    async with opened(flaky.operation) as runtime:
        await runtime.ainvoke(script([call("work")]), thread_id="t")
        clock.move(seconds(20))
        result = await runtime.aresume("t")

    assert [1, 2] == flaky.attempts
    assert ["This call failed (unavailable): ConnectionError: nobody there"] == texts(result)


async def test_a_long_delay_holds_neither_process_nor_lease_and_a_worker_ends_it(
    opened: Open, clock: Clock, query: Query
) -> None:
    flaky = Flaky(RetryPolicy(2, 3600.0, jitter=0.0), failures=1)
    async with opened(flaky.operation) as runtime:
        await runtime.ainvoke(script([call("work")]), thread_id="t")
        assert [(None, clock.now() + seconds(3600))] == query("select lease_holder, due_at from threads")
        stop = asyncio.Event()
        worker = asyncio.create_task(runtime.awork(stop=stop))
        clock.move(seconds(3600))
        async for event in runtime.astream("t"):
            last = event
        stop.set()
        await worker

    assert ("run_end", [1, 2]) == (last.kind, flaky.attempts)
    assert [("timed_out",)] == query("select state from waits")


async def test_a_clock_that_steps_back_makes_a_delay_longer_and_an_attempt_no_other(
    opened: Open, clock: Clock, query: Query
) -> None:
    flaky = Flaky(RetryPolicy(3, 20.0, jitter=0.0, park_over=0), failures=1)
    async with opened(flaky.operation, lease_seconds=5.0) as runtime:
        await runtime.ainvoke(script([call("work")]), thread_id="t")
        clock.move(seconds(-3600))
        for late in (0, 20, 3580):
            clock.move(seconds(late))
            assert ("waiting", [1]) == ((await runtime.aresume("t")).status, flaky.attempts)
        clock.move(seconds(20))
        result = await runtime.aresume("t")

    assert ("succeeded", [1, 2], ["worked"]) == (result.status, flaky.attempts, texts(result))
    assert [(1, "failed"), (2, "succeeded")] == query(
        """select a.number, a.state from attempts a join operations o on o.id = a.operation_id
            where o.name = 'work' order by a.number"""
    )


async def test_a_short_delay_is_slept_by_whoever_drives(opened: Open) -> None:
    flaky = Flaky(RetryPolicy(initial_delay=0.01), failures=2)
    async with opened(flaky.operation) as runtime:
        result = await runtime.ainvoke(script([call("work")]), thread_id="t")

    assert ("succeeded", [1, 2, 3]) == (result.status, flaky.attempts)


async def test_a_sleep_that_ends_early_by_the_databases_clock_is_slept_on(opened: Open, clock: Clock) -> None:
    flaky = Flaky(RetryPolicy(initial_delay=0.01, jitter=0.0), failures=1)
    async with opened(flaky.operation) as runtime:
        drive = asyncio.create_task(runtime.ainvoke(script([call("work")]), thread_id="t"))
        while not flaky.attempts:
            await asyncio.sleep(0.005)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert [1] == flaky.attempts  # ten times the delay has passed here, and nothing by the clock that counts
        clock.move(seconds(0.01))
        result = await drive

    assert ("succeeded", [1, 2]) == (result.status, flaky.attempts)


@pytest.mark.parametrize("asked", [300, "date"])
async def test_a_receiver_that_names_a_time_is_left_alone_until_then(
    opened: Open, clock: Clock, query: Query, reports_server: ReportsServer, asked: Any
) -> None:
    @operation(policy=Policy(effect=Effect.READ, retry=RetryPolicy(2, 1.0, **PARKED)))
    async def fetch() -> str:
        """Fetch."""
        async with httpx.AsyncClient() as client:
            (await client.get(f"{reports_server.url}/reports")).raise_for_status()
        return "fetched"

    after = http_date(300) if asked == "date" else asked
    reports_server.script(Step(method="GET", status=429, retry_after=after))
    async with opened(fetch) as runtime:
        await runtime.ainvoke(script([call("fetch")]), thread_id="t")
        [(wait, stored)] = query(
            "select extract(epoch from next_attempt_at - standfast.now())::float, "
            "(select max(retry_after) from attempts) from operations where next_attempt_at is not null"
        )
        assert 298.0 <= wait == stored <= 301.0  # a date knows whole seconds only
        clock.move(seconds(wait) - seconds(1))
        assert "waiting" == (await runtime.aresume("t")).status
        assert 1 == len(reports_server.requests())
        clock.move(seconds(1))
        assert ["fetched"] == texts(await runtime.aresume("t"))


async def test_a_model_that_names_a_time_is_left_alone_until_then(
    opened: Open, clock: Clock, openai_server: OpenAIServer
) -> None:
    openai_server.script(Reply(status=429, retry_after=600), Reply(text="Here I am."))
    key = SecretStr("none")
    model = ChatOpenAI(model="m", base_url=openai_server.base_url, api_key=key, max_retries=0)
    async with opened(model=model) as runtime:
        assert "waiting" == (await runtime.ainvoke("Are you there?", thread_id="t")).status
        clock.move(seconds(599))
        assert "waiting" == (await runtime.aresume("t")).status
        assert 1 == len(openai_server.requests())
        clock.move(seconds(600))
        result = await runtime.aresume("t")

    assert ("succeeded", "Here I am.") == (result.status, result.outcome["answer"])


async def test_a_class_of_failure_has_its_own_back_off(opened: Open, clock: Clock, query: Query) -> None:
    retry = RetryPolicy(2, 5.0, **PARKED, overrides={FailureClass.UNKNOWN: Backoff(3, 70.0, jitter=0.0)})
    flaky = Flaky(retry, failures=1, error=RuntimeError("who knows"))
    async with opened(flaky.operation) as runtime:
        await runtime.ainvoke(script([call("work")]), thread_id="t")
        assert [(clock.now() + seconds(70),)] == query("select until from waits where state = 'open'")
        clock.move(seconds(70))
        assert ["worked"] == texts(await runtime.aresume("t"))


async def test_no_attempt_begins_after_the_deadline_of_all(opened: Open, clock: Clock) -> None:
    flaky = Flaky(RetryPolicy(9, 60.0, 1.0, deadline=100.0, **PARKED), failures=9)
    async with opened(flaky.operation) as runtime:
        await runtime.ainvoke(script([call("work")]), thread_id="t")
        clock.move(seconds(60))
        result = await runtime.aresume("t")

    assert [1, 2] == flaky.attempts
    assert ["This call failed (unavailable): ConnectionError: nobody there"] == texts(result)


async def test_an_attempt_that_comes_too_late_for_the_deadline_is_not_made(opened: Open, clock: Clock) -> None:
    flaky = Flaky(RetryPolicy(9, 60.0, 1.0, deadline=100.0, **PARKED), failures=1)
    async with opened(flaky.operation) as runtime:
        await runtime.ainvoke(script([call("work")]), thread_id="t")
        clock.move(seconds(3600))  # nobody came for the thread in time
        result = await runtime.aresume("t")

    assert [1] == flaky.attempts
    assert ["This call failed (timeout): the deadline of its attempts had passed before this one"] == texts(result)


async def test_an_operation_knows_the_time_left_to_it(opened: Open) -> None:
    left: list[float | None] = []

    @operation(policy=Policy(effect=Effect.READ, timeout=50.0, retry=RetryPolicy(deadline=20.0)))
    async def hurry(context: OperationContext) -> str:
        """Hurry."""
        left.append(context.time_left)
        return ""

    @operation(policy=Policy(effect=Effect.READ))
    async def stroll(context: OperationContext) -> str:
        """Stroll."""
        left.append(context.time_left)
        return ""

    async with opened(hurry, stroll) as runtime:
        await runtime.ainvoke(script([call("hurry")], [call("stroll")]))

    assert left[0] is not None
    assert 10.0 < left[0] <= 20.0
    assert left[1] is None


# -- what a crash gives, and what a person gives


class AbsentModel(ScriptedModel):
    """Is away as often as `away` says, then is the scripted model."""

    away: int
    _asked: int = PrivateAttr(0)

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        self._asked += 1
        if self._asked <= self.away:
            raise ConnectionError("nobody there")
        return super().answer(messages)


async def test_a_model_has_one_budget_of_attempts_however_many_drives_it_takes(opened: Open, clock: Clock) -> None:
    model = AbsentModel(away=9)
    async with opened(model=model, model_retry=RetryPolicy(3, 60.0, 1.0, **PARKED)) as runtime:
        for asked in (1, 2):
            drive = runtime.ainvoke(script("Here."), thread_id="t") if asked == 1 else runtime.aresume("t")
            assert ("waiting", asked) == ((await drive).status, model._asked)
            clock.move(seconds(60))
        assert ("needs_attention", 3) == ((await runtime.aresume("t")).status, model._asked)


async def test_a_person_who_retries_gives_a_fresh_budget(opened: Open, clock: Clock) -> None:
    model = AbsentModel(away=3)
    async with opened(model=model, model_retry=RetryPolicy(2, 60.0, 1.0, **PARKED)) as runtime:
        await runtime.ainvoke(script("Here."), thread_id="t")
        clock.move(seconds(60))
        assert "needs_attention" == (await runtime.aresume("t")).status
        await runtime.aretry("t")
        assert "waiting" == (await runtime.aresume("t")).status
        clock.move(seconds(60))
        assert ("succeeded", 4) == ((await runtime.aresume("t")).status, model._asked)


# -- beside others


async def test_siblings_finish_and_a_person_can_decide_while_a_retry_waits(
    opened: Open, clock: Clock, reports_server: ReportsServer
) -> None:
    flaky = Flaky(RetryPolicy(2, 3600.0, jitter=0.0), failures=1)
    turn = [call("work"), call("jot", text="beside"), call("note", text="asked")]
    async with opened(flaky.operation) as runtime:
        waiting = await runtime.ainvoke(script(turn), thread_id="t")
        assert 1 == len(reports_server.effects())
        still = await runtime.aresume("t", approve=waiting.approvals[0].id)
        assert ("waiting", 2, [1]) == (still.status, len(reports_server.effects()), flaky.attempts)
        clock.move(seconds(3600))
        result = await runtime.aresume("t")

    assert ["worked", "noted beside", "noted asked"] == texts(result)


async def test_a_drive_that_is_told_to_stop_does_not_park_a_sibling_of_a_retry(
    opened: Open, reports_server: ReportsServer, suspended: None
) -> None:
    """It may stand between two steps. LangGraph raises the halt or the drain, as it happens: so this is done often."""
    for number in range(8):
        flaky = Flaky(RetryPolicy(2, 3600.0, jitter=0.0), failures=1)
        turn = [call("work"), call("note", text="asked")]
        async with opened(flaky.operation) as runtime:
            waiting = await runtime.ainvoke(script(turn), thread_id=f"t{number}")
            still = await runtime.aresume(f"t{number}", approve=waiting.approvals[0].id)
        assert ("waiting", number + 1, [1]) == (still.status, len(reports_server.effects()), flaky.attempts)


# -- by kind


async def test_a_refusal_for_want_of_rights_is_shown_to_a_person_and_tried_again_when_he_says_so(
    opened: Open, reports_server: ReportsServer
) -> None:
    flaky = Flaky(RetryPolicy(), failures=1, error=PermissionError("no right to"))
    async with opened(flaky.operation) as runtime:
        stopped = await runtime.ainvoke(script([call("work"), call("jot", text="beside")]), thread_id="t")
        assert ("needs_attention", 1) == (stopped.status, len(reports_server.effects()))
        assert stopped.reason is not None
        assert stopped.reason.startswith("work (op-")
        assert "no right to" in stopped.reason
        assert [1] == flaky.attempts
        result = await runtime.aresume("t")

    assert ("succeeded", ["worked", "noted beside"]) == (result.status, texts(result))


async def test_a_call_that_stays_invalid_is_refused_after_the_third_time(opened: Open) -> None:
    flaky = Flaky(RetryPolicy(), failures=9, error=InvalidArguments("no such account"))
    async with opened(flaky.operation) as runtime:
        result = await runtime.ainvoke(script(*[[call("work")]] * 5))

    *tried, fourth, fifth = texts(result)
    assert ["This call failed (invalid): InvalidArguments: no such account"] * 3 == tried
    assert ["work was refused as invalid 3 times and is not called again; go on without it."] * 2 == [fourth, fifth]
    assert [1, 1, 1] == flaky.attempts


async def test_a_call_that_was_cancelled_from_within_has_failed(opened: Open) -> None:
    @operation(policy=Policy(effect=Effect.READ, retry=RetryPolicy()))
    async def undone() -> str:
        """Wait for a task that somebody cancels."""
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task
        return ""

    async with opened(undone) as runtime:
        result = await runtime.ainvoke(script([call("undone")]))

    assert ["This call failed (cancelled): CancelledError: cancelled from within"] == texts(result)


# -- cancellation


@pytest.mark.one_drive("both attempts are under way in one: the first waits for the second")
@pytest.mark.parametrize(
    ("on_cancel", "state", "attempt"), [("stop", "planned", "abandoned"), ("finish", "succeeded", "succeeded")]
)
async def test_a_cancelled_run_stops_its_attempt_or_lets_it_finish_as_its_policy_says(
    opened: Open, query: Query, on_cancel: Any, state: str, attempt: str
) -> None:
    begun, watched, noticed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @operation(policy=Policy(effect=Effect.IDEMPOTENT, retry=RetryPolicy(on_cancel=on_cancel)))
    async def work() -> str:
        """Work until the sibling is stopped."""
        begun.set()
        await noticed.wait()
        return "worked"

    @operation(policy=Policy(effect=Effect.READ))
    async def sibling() -> str:
        """Notice the cancellation."""
        watched.set()
        try:
            await asyncio.Event().wait()
        finally:
            noticed.set()
        return ""

    async with opened(work, sibling) as runtime:
        drive = asyncio.create_task(runtime.ainvoke(script([call("work"), call("sibling")]), thread_id="t"))
        await begun.wait()
        await watched.wait()
        assert "cancelled" == (await runtime.acancel("t")).status
        await asyncio.wait([drive])

    assert [(state,)] == query("select state from operations where name = 'work'")
    assert [(attempt,)] == query(
        "select a.state from attempts a join operations o on o.id = a.operation_id where o.name = 'work'"
    )


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(("effect", "calls"), [(Effect.IDEMPOTENT, 2), (Effect.AT_MOST_ONCE, 1)])
async def test_an_attempt_that_its_driver_cut_off_holds_nobody_up_if_a_key_protects_it(
    opened: Open, clock: Clock, effect: Effect, calls: int
) -> None:
    begun, keys = asyncio.Event(), []

    @operation(policy=Policy(effect=effect, timeout=600))
    async def work(context: OperationContext) -> str:
        """Work for ever, at first."""
        keys.append(context.operation_id)
        begun.set()
        if len(keys) == 1:
            await asyncio.Event().wait()
        return "worked"

    async with opened(work) as runtime:
        drive = asyncio.create_task(runtime.ainvoke(script([call("work")]), thread_id="t"))
        await begun.wait()
        drive.cancel()  # its process is told to end, and ends it in good order
        with pytest.raises(asyncio.CancelledError):
            await drive
        result = await runtime.aresume("t")
        assert (calls, 1) == (len(keys), len(set(keys)))
        if effect is Effect.AT_MOST_ONCE:  # the call may have arrived: nobody asks before it must have ended
            assert ("waiting", ()) == (result.status, result.approvals)
            clock.move(timedelta(seconds=600))
            assert ["outcome"] == [one.kind for one in (await runtime.aresume("t")).approvals]
        else:
            assert ("succeeded", ["worked"]) == (result.status, texts(result))


async def test_a_lost_lease_stops_even_an_attempt_that_would_finish(opened: Open, query: Query) -> None:
    begun = asyncio.Event()

    @operation(policy=Policy(effect=Effect.IDEMPOTENT, retry=RetryPolicy(on_cancel="finish")))
    async def work() -> str:
        """Work for ever."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    async with opened(work, lease_seconds=1.0) as runtime:
        drive = asyncio.create_task(runtime.ainvoke(script([call("work")]), thread_id="t"))
        await begun.wait()
        await runtime.arelease("t")
        with pytest.raises(errors.LeaseLost):
            await drive
