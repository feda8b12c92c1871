"""Work that goes on elsewhere: its end is told from outside or polled for, once, and nothing is held meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import ToolMessage

from standfast.checkpoint import errors
from standfast.graph import (
    Failed,
    Happened,
    OperationContext,
    OutcomeContext,
    Pending,
    Policy,
    Principal,
    Result,
    RetryPolicy,
    Runtime,
    TypeRegistry,
    operation,
)
from standfast.tools.pending import FIRST_DELAY, LONGEST_DELAY
from tests.conftest import Clock
from tests.crash.support.scripted_model import call, script

Open = Callable[..., Any]
RENDER = script([call("render", text="x")])
BY = Principal.vouched("renderer")


def renderer(
    calls: list[str],
    *,
    poll: Any = None,
    effect: str = "at_most_once",
    timeout: float | None = None,
    retry: RetryPolicy | None = None,
) -> Any:
    """An operation that only begins something."""

    @operation(policy=Policy(effect=effect, retry=retry or RetryPolicy(max_attempts=1)), poll=poll)  # type: ignore[arg-type]
    async def render(text: str, context: OperationContext) -> dict[str, str] | Pending:
        """Begin to render."""
        calls.append(context.operation_id)
        return Pending({"job": 7}, timeout=timeout)

    return render


def texts(result: Result) -> list[str]:
    return [str(one.text) for one in result.messages if isinstance(one, ToolMessage)]


async def ledger(runtime: Runtime) -> tuple[str, int, list[str]]:
    [known] = [one for one in await runtime.store.operations.list("t") if one.name == "render"]
    attempts = await runtime.store.operations.attempts("t")
    return known.state, known.attempts, [one.state for one in attempts if one.operation_id == known.id]


@pytest.mark.guarantee("G7")
async def test_an_operation_ends_by_its_completion_and_holds_nothing_meanwhile(opened: Open, query: Any) -> None:
    calls: list[str] = []
    async with opened(renderer(calls)) as runtime:
        parked = await runtime.ainvoke(RENDER, thread_id="t")
        assert ("waiting", ("executing", 1, ["pending"])) == (parked.status, await ledger(runtime))
        assert [(None, None)] == query("select lease_holder, due_at from threads")
        assert [("completion", calls[0], "open")] == query("select kind, name, state from waits")
        assert "waiting" == (await runtime.aresume("t")).status
        async with opened() as elsewhere:
            await elsewhere.acomplete(calls[0], {"file": "x.png"}, as_=BY)
        end = await runtime.aresume("t")
        state = await ledger(runtime)

    assert ("succeeded", ['{"file": "x.png"}'], 1) == (end.status, texts(end), len(calls))
    assert ("succeeded", 1, ["succeeded"]) == state


async def test_a_completion_by_failure_ends_the_operation_as_failed(opened: Open) -> None:
    calls: list[str] = []
    async with opened(renderer(calls)) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        await runtime.acomplete(calls[0], error="out of paint", as_=BY)
        end = await runtime.aresume("t")

    assert ["This call failed (permanent): out of paint"] == texts(end)


async def test_a_worker_is_rung_for_by_a_completion(opened: Open, eventually: Any) -> None:
    calls: list[str] = []
    async with opened(renderer(calls)) as runtime:
        stop = asyncio.Event()
        working = asyncio.create_task(runtime.awork(stop=stop))
        await runtime.asubmit(RENDER, thread_id="t")
        async with asyncio.timeout(20):
            while (await runtime.aresult("t")).status != "waiting":
                await asyncio.sleep(0.02)
            await runtime.acomplete(calls[0], {"file": "x.png"})
            while (end := await runtime.aresult("t")).status != "succeeded":
                await asyncio.sleep(0.02)
        stop.set()
        await working

    assert ['{"file": "x.png"}'] == texts(end)


@pytest.mark.guarantee("G4")
async def test_of_two_completions_the_first_counts_and_the_second_is_told_by_whom(opened: Open) -> None:
    calls: list[str] = []
    async with opened(renderer(calls)) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        told = await asyncio.gather(
            *(runtime.acomplete(calls[0], {"file": str(n)}, as_=Principal.vouched(f"r{n}")) for n in range(6)),
            return_exceptions=True,
        )
        [winner] = [n for n, one in enumerate(told) if one is None]
        end = await runtime.aresume("t")
        with pytest.raises(errors.AlreadyCompleted, match=f"by r{winner};"):
            await runtime.acomplete(calls[0], {"file": "late"})

    assert [errors.AlreadyCompleted] * 5 == [type(one) for one in told if one is not None]
    assert [f'{{"file": "{winner}"}}'] == texts(end)


async def test_a_completion_that_comes_before_the_call_has_returned_is_not_lost(opened: Open) -> None:
    async def finish(runtime: Runtime, context: OperationContext) -> None:
        await runtime.acomplete(context.operation_id, {"file": "early.png"})

    @operation(policy=Policy(effect="at_most_once"))
    async def render(text: str, context: OperationContext) -> Pending:
        """Render somewhere very fast."""
        await finish(runtime, context)
        return Pending()

    async with opened(render) as runtime:
        end = await runtime.ainvoke(RENDER, thread_id="t")

    assert ("succeeded", ['{"file": "early.png"}']) == (end.status, texts(end))


@pytest.mark.guarantee("G8")
async def test_a_poll_is_asked_at_stored_times_that_grow_until_it_knows(opened: Open, clock: Clock) -> None:
    calls: list[str] = []
    asked: list[tuple[Any, int]] = []

    async def poll(handle: Any, context: OutcomeContext) -> Happened | Pending:
        asked.append((handle, context.looks))
        if len(asked) == 2:
            raise ConnectionError("nobody there")
        return Happened({"file": "x.png"}) if len(asked) == 4 else Pending({"job": 7 + len(asked)})

    delays = [FIRST_DELAY * 2**n for n in range(4)]
    async with opened(renderer(calls, poll=poll)) as runtime:
        end = await runtime.ainvoke(RENDER, thread_id="t")
        for number, delay in enumerate(delays):
            clock.move(delay - timedelta(milliseconds=1))
            assert ("waiting", number) == ((await runtime.aresume("t")).status, len(asked))
            clock.move(timedelta(milliseconds=1))
            end = await runtime.aresume("t")
            assert number + 1 == len(asked)

    assert ("succeeded", ['{"file": "x.png"}'], 1) == (end.status, texts(end), len(calls))
    assert [({"job": 7}, 1), ({"job": 8}, 2), ({"job": 8}, 3), ({"job": 10}, 4)] == asked


async def test_the_pause_between_polls_has_a_limit(opened: Open, clock: Clock, query: Any) -> None:
    async def poll(handle: Any) -> Pending:
        return Pending(handle)

    async with opened(renderer([], poll=poll)) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        query("update operations set looks = 60 where handle is not null")
        clock.move(FIRST_DELAY)
        await runtime.aresume("t")

    assert [(LONGEST_DELAY,)] == query("select look_at - standfast.now() from operations where handle is not null")


async def test_a_poll_that_says_failed_ends_the_operation(opened: Open, clock: Clock) -> None:
    async def poll(handle: Any) -> Failed:
        return Failed(f"job {handle['job']} burnt")

    async with opened(renderer([], poll=poll)) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        clock.move(FIRST_DELAY)
        end = await runtime.aresume("t")

    assert ["This call failed (permanent): job 7 burnt"] == texts(end)


async def test_a_completion_ends_the_wait_for_the_next_poll(opened: Open, clock: Clock) -> None:
    calls: list[str] = []

    async def poll(handle: Any) -> Pending:
        raise AssertionError("it is not time yet")

    async with opened(renderer(calls, poll=poll)) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        await runtime.acomplete(calls[0], {"file": "x.png"})
        end = await runtime.aresume("t")

    assert ("succeeded", ['{"file": "x.png"}']) == (end.status, texts(end))


@pytest.mark.guarantee("G4")
async def test_a_completion_after_a_cancel_is_kept_as_late_and_changes_nothing(opened: Open) -> None:
    calls: list[str] = []
    async with opened(renderer(calls)) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        cancelled = await runtime.acancel("t")
        before = await ledger(runtime)
        with pytest.raises(errors.CompletedLate, match="it is unknown"):
            await runtime.acomplete(calls[0], {"file": "x.png"})
        [attempt] = [one for one in await runtime.store.operations.attempts("t") if one.operation_id == calls[0]]
        after = await ledger(runtime)

    assert "it is not known whether render" in (cancelled.reason or "")
    assert ("unknown", 1, ["abandoned"]) == before == after
    assert "succeeded" == attempt.late


async def test_a_run_that_needs_attention_still_waits_for_what_goes_on_elsewhere(opened: Open) -> None:
    calls: list[str] = []

    @operation(policy=Policy(effect="idempotent"))
    async def walk() -> str:
        """Walk."""
        return "walked"

    async with opened(renderer(calls), walk) as runtime:
        await runtime.ainvoke(script([call("render", text="x")]), thread_id="t")
        await runtime.apark("t", "look at it")
        await runtime.acomplete(calls[0], {"file": "x.png"})
        end = await runtime.aresume("t")

    assert ("succeeded", ['{"file": "x.png"}']) == (end.status, texts(end))


async def test_what_is_no_operation_cannot_be_completed(opened: Open) -> None:
    async with opened() as runtime:
        for identifier in ("op-nowhere", "", "x" * 300, "a\0b"):
            with pytest.raises(errors.UnknownOperationId):
                await runtime.acomplete(identifier, 1)


@dataclass(frozen=True)
class Picture:
    """A rendered picture."""

    file: str


@pytest.mark.guarantee("G11")
async def test_a_completion_is_of_the_type_that_the_operation_returns_or_is_refused(opened: Open) -> None:
    calls: list[str] = []

    @operation(policy=Policy(effect="at_most_once"))
    async def render(text: str, context: OperationContext) -> Picture | Pending:
        """Begin to render."""
        calls.append(context.operation_id)
        return Pending()

    registry = TypeRegistry()
    registry.register(Picture)
    async with opened(render, registry=registry) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        with pytest.raises(errors.InvalidRequest, match="this is no result of render"):
            await runtime.acomplete(calls[0], {"page": 1})
        with pytest.raises(errors.UnstorableValue):
            async with opened() as elsewhere:
                await elsewhere.acomplete(calls[0], object())
        await runtime.acomplete(calls[0], {"file": "x.png"})
        await runtime.aresume("t")
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "render"]

    assert Picture("x.png") == known.result


TWO_DAYS = timedelta(days=2)
MOMENT = timedelta(milliseconds=1)


@pytest.mark.guarantee("G8")
async def test_work_elsewhere_that_does_not_end_in_time_has_failed_and_no_crash_gives_it_more(
    opened: Open, clock: Clock, query: Any
) -> None:
    calls: list[str] = []
    render = renderer(calls, effect="idempotent", timeout=TWO_DAYS.total_seconds())
    async with opened(render) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
    clock.move(TWO_DAYS - MOMENT)
    async with opened(render) as runtime:
        assert "waiting" == (await runtime.aresume("t")).status
        assert [(None, timedelta(milliseconds=1))] == query(
            "select lease_holder, due_at - standfast.now() from threads"
        )
    clock.move(MOMENT)
    async with opened(render) as runtime:
        end = await runtime.aresume("t")
        state = await ledger(runtime)
        with pytest.raises(errors.CompletedLate):
            await runtime.acomplete(calls[0], {"file": "x.png"})

    assert ["This call failed (timeout): the work elsewhere did not end within its time-out"] == texts(end)
    assert ("failed", 1, ["failed"]) == state


@pytest.mark.guarantee("G4")
async def test_of_work_that_must_not_happen_twice_nobody_knows_the_outcome_after_its_time_out(
    opened: Open, clock: Clock
) -> None:
    calls: list[str] = []
    async with opened(renderer(calls, timeout=60)) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        clock.move(timedelta(seconds=60))
        asked = await runtime.aresume("t")
        state = await ledger(runtime)
        await runtime.acomplete(calls[0], {"file": "x.png"})  # it has ended after all, before a person has answered
        end = await runtime.aresume("t")

    assert (["outcome"], ("unknown", 1, ["failed"])) == ([one.kind for one in asked.approvals], state)
    assert ("succeeded", ['{"file": "x.png"}'], 1) == (end.status, texts(end), len(calls))


@pytest.mark.guarantee("G8")
async def test_work_that_was_too_slow_is_begun_again_under_its_key_as_its_policy_says(
    opened: Open, clock: Clock
) -> None:
    calls: list[str] = []
    retry = RetryPolicy(max_attempts=2, initial_delay=20.0, jitter=0.0)
    async with opened(renderer(calls, effect="idempotent", timeout=60, retry=retry)) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        for seconds, states in ((60, ["failed"]), (20, ["failed", "pending"]), (60, ["failed", "failed"])):
            clock.move(timedelta(seconds=seconds) - MOMENT)
            assert "waiting" == (await runtime.aresume("t")).status
            clock.move(MOMENT)
            end = await runtime.aresume("t")
            assert states == (await ledger(runtime))[2]

    assert "This call failed (timeout)" in texts(end)[0]
    assert 2 == len(calls)
    assert 1 == len(set(calls))


@pytest.mark.guarantee("G8")
async def test_a_poll_is_asked_once_more_when_the_time_is_up_and_may_give_more(opened: Open, clock: Clock) -> None:
    answers: list[Any] = [Pending({"job": 8}, timeout=100), Pending({"job": 9}), Happened({"file": "x.png"})]
    asked: list[Any] = []

    async def poll(handle: Any) -> Any:
        asked.append(handle["job"])
        return answers.pop(0)

    async with opened(renderer([], poll=poll, timeout=0.5)) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        clock.move(timedelta(seconds=0.5))  # before the first poll would be due
        assert ("waiting", [7]) == ((await runtime.aresume("t")).status, asked)
        clock.move(timedelta(seconds=50))
        assert ("waiting", [7, 8]) == ((await runtime.aresume("t")).status, asked)
        clock.move(timedelta(seconds=50))
        end = await runtime.aresume("t")

    assert ("succeeded", [7, 8, 9], ['{"file": "x.png"}']) == (end.status, asked, texts(end))


@pytest.mark.guarantee("G8")
async def test_a_driver_that_comes_between_two_polls_waits_no_longer_than_the_time_out(
    opened: Open, clock: Clock, query: Any
) -> None:
    calls: list[str] = []

    async def poll(handle: Any) -> Pending:
        return Pending(handle)

    timeout = FIRST_DELAY * 1.5  # the second poll would come later
    async with opened(renderer(calls, poll=poll, timeout=timeout.total_seconds())) as runtime:
        await runtime.ainvoke(RENDER, thread_id="t")
        clock.move(FIRST_DELAY)
        await runtime.aresume("t")
        assert [(timeout - FIRST_DELAY,)] == query("select until - standfast.now() from standing_1('t', %s)", calls[0])


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_time_out_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(errors.UsageError, match="a time-out is a number of seconds above 0"):
        Pending(timeout=seconds)


async def test_a_transactional_operation_cannot_be_polled_for() -> None:
    async def poll(handle: Any) -> Pending:
        return Pending()

    async def enter() -> None:
        """Enter it."""

    with pytest.raises(errors.InvalidOperation, match="ends with its transaction"):
        operation(enter, policy=Policy(effect="transactional"), poll=poll)
