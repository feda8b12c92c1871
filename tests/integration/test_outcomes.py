"""An attempt that did not report: when it counts as unknown, who is asked, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import ToolMessage

from standfast.checkpoint import crashpoints, errors
from standfast.graph import (
    CannotTell,
    DidNotHappen,
    Happened,
    OperationContext,
    OutcomeContext,
    Policy,
    Principal,
    Result,
    RetryPolicy,
    Runtime,
    operation,
    sleep,
)
from standfast.graph.answers import Said
from standfast.tools.reconciliation import DELAYS
from tests.conftest import Clock
from tests.crash.support.scripted_model import call, script

Open = Callable[..., Any]
BY = Principal.vouched("keeper@example.com")
LEASE = timedelta(seconds=16)
pytestmark = pytest.mark.guarantee("G4")


class Died(BaseException):
    """Ends a drive as a kill would: nothing is recorded after it."""


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    crashpoints.hook = None


@pytest.fixture
def die(clock: Clock) -> Callable[..., Any]:
    """Drive by a coroutine that dies at a point, and let its lease run out."""

    async def dying(drive: Any, point: str) -> None:
        def hook(reached: str) -> None:
            if reached == point:
                crashpoints.hook = None
                raise Died

        crashpoints.hook = hook
        with pytest.raises(Died):
            await drive
        assert crashpoints.hook is None
        clock.move(LEASE)

    return dying


def texts(result: Result) -> list[str]:
    return [str(one.text) for one in result.messages if isinstance(one, ToolMessage)]


async def ledger(runtime: Runtime, name: str) -> tuple[str, int]:
    [known] = [one for one in await runtime.store.operations.list("t") if one.name == name]
    return known.state, known.attempts


def launcher(calls: list[str], *, reconcile: Any = None) -> Any:
    """An operation that must not happen twice."""

    @operation(policy=Policy(effect="at_most_once", timeout=60), reconcile=reconcile)
    async def launch(text: str, context: OperationContext) -> dict[str, str]:
        """Launch it."""
        calls.append(context.operation_id)
        return {"launched": text}

    return launch


LAUNCH = script([call("launch", text="x")])


# -- when


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
async def test_an_attempt_may_be_under_way_until_its_deadline_however_early_another_driver_comes(
    opened: Open, die: Any, clock: Clock, effect: str
) -> None:
    calls: list[str] = []

    @operation(policy=Policy(effect=effect, timeout=60))  # type: ignore[arg-type]
    async def launch(text: str, context: OperationContext) -> dict[str, str]:
        """Launch it."""
        calls.append(context.operation_id)
        return {"launched": text}

    async with opened(launch) as runtime:
        await die(runtime.ainvoke(LAUNCH, thread_id="t"), "operation.done")
        early = await runtime.aresume("t")
        still = await runtime.aresume("t")
        state = await ledger(runtime, "launch")
        clock.move(timedelta(seconds=44))  # 60 in all
        late = await runtime.aresume("t")

    assert ("waiting", "waiting", ("executing", 1)) == (early.status, still.status, state)
    assert () == early.approvals
    if effect == "idempotent":
        assert ("succeeded", 2, 1) == (late.status, len(calls), len(set(calls)))
    else:
        assert ("waiting", 1) == (late.status, len(calls))
        assert ["launch"] == [one.operation for one in late.approvals]


async def test_a_worker_carries_on_by_itself_when_the_deadline_has_passed(
    opened: Open, die: Any, clock: Clock, query: Any
) -> None:
    calls: list[str] = []

    @operation(policy=Policy(effect="idempotent", timeout=60))
    async def launch(text: str, context: OperationContext) -> str:
        """Launch it."""
        calls.append(context.operation_id)
        return "launched"

    async with opened(launch) as runtime:
        await die(runtime.ainvoke(LAUNCH, thread_id="t"), "operation.done")
        await runtime.aresume("t")
        [(due,)] = query("select due_at - (select deadline from attempts where deadline is not null) from threads")

    assert timedelta(0) == due
    assert [("timer", "open")] == query("select kind, state from waits")


async def test_what_an_operation_had_waited_for_is_not_waited_for_again_after_its_deadline(
    opened: Open, die: Any, clock: Clock
) -> None:
    """The ledger's own wait takes no place among those of the operation."""
    calls: list[int] = []

    @operation(policy=Policy(effect="idempotent", timeout=60))
    async def launch(text: str, context: OperationContext) -> str:
        """Sleep, launch, sleep."""
        await sleep(for_=timedelta(days=1))
        calls.append(context.attempt)
        if len(calls) == 2:
            await sleep(for_=timedelta(days=2))
        return "launched"

    async with opened(launch) as runtime:
        assert "waiting" == (await runtime.ainvoke(LAUNCH, thread_id="t")).status
        clock.move(timedelta(days=1))
        await die(runtime.aresume("t"), "operation.done")
        assert "waiting" == (await runtime.aresume("t")).status
        clock.move(timedelta(seconds=60))
        assert ("waiting", 2) == ((await runtime.aresume("t")).status, len(calls))
        clock.move(timedelta(days=2))
        end = await runtime.aresume("t")

    assert ("succeeded", 3) == (end.status, len(calls))


async def test_siblings_go_on_while_one_call_is_in_doubt(opened: Open, die: Any, clock: Clock) -> None:
    calls: list[str] = []
    steps: list[str] = []

    @operation(policy=Policy(effect="idempotent"))
    async def walk(context: OperationContext) -> str:
        """Walk, then rest."""
        steps.append("walk")
        await sleep(for_=timedelta(days=1))
        return "walked"

    async with opened(launcher(calls), walk) as runtime:
        request = script([call("launch", text="x"), call("walk")])
        await die(runtime.ainvoke(request, thread_id="t"), "operation.done")
        clock.move(timedelta(seconds=60))
        asked = await runtime.aresume("t")
        clock.move(timedelta(days=1))
        await runtime.aresume("t")
        walked = await ledger(runtime, "walk")
        answered = await runtime.aresume("t", {"type": "did_not_happen"}, as_=BY)

    assert (["launch"], "succeeded") == ([one.operation for one in asked.approvals], walked[0])
    assert ("succeeded", 2) == (answered.status, len(calls))


# -- the operation's own answer


async def in_doubt(opened: Open, die: Any, clock: Clock, launch: Any, then: Any) -> None:
    """A call of `launch` whose driver died after it, with its deadline over; `then(runtime)` goes on."""
    async with opened(launch) as runtime:
        await die(runtime.ainvoke(LAUNCH, thread_id="t"), "operation.done")
        clock.move(timedelta(seconds=60))
        await then(runtime)


async def test_what_its_reconcile_says_has_happened_is_not_called_again(opened: Open, die: Any, clock: Clock) -> None:
    calls: list[str] = []
    asked: list[OutcomeContext] = []

    async def reconcile(context: OutcomeContext) -> Happened:
        asked.append(context)
        return Happened({"launched": "found"})

    async def then(runtime: Runtime) -> None:
        end = await runtime.aresume("t")
        assert ("succeeded", 1) == (end.status, len(calls))
        assert ['{"launched": "found"}'] == texts(end)
        assert ("reconciled", 1) == await ledger(runtime, "launch")
        assert [{"launched": "found"}] == [one["result"] for one in end.outcome["effects"]]

    await in_doubt(opened, die, clock, launcher(calls, reconcile=reconcile), then)
    assert [(calls[0], {"text": "x"}, 1, 0)] == [(a.operation_id, dict(a.arguments), a.attempt, a.looks) for a in asked]


async def test_what_its_reconcile_says_did_not_happen_is_tried_again(opened: Open, die: Any, clock: Clock) -> None:
    calls: list[str] = []

    async def reconcile(context: OutcomeContext) -> DidNotHappen:
        return DidNotHappen()

    async def then(runtime: Runtime) -> None:
        end = await runtime.aresume("t")
        assert ("succeeded", 2, 1) == (end.status, len(calls), len(set(calls)))
        assert ("succeeded", 2) == await ledger(runtime, "launch")

    await in_doubt(opened, die, clock, launcher(calls, reconcile=reconcile), then)


@pytest.mark.guarantee("G8")
async def test_a_reconcile_that_cannot_tell_is_asked_again_after_stored_pauses_then_a_person_is(
    opened: Open, die: Any, clock: Clock
) -> None:
    calls: list[str] = []
    asked: list[int] = []

    async def reconcile(context: OutcomeContext) -> CannotTell:
        asked.append(context.looks)
        if context.looks == 1:
            raise ConnectionError("nobody there")
        return CannotTell()

    async def then(runtime: Runtime) -> None:
        await die(runtime.aresume("t"), "outcome.answered")  # an answer that was lost costs no look
        for number, delay in enumerate(DELAYS):
            parked = await runtime.aresume("t")
            assert ("waiting", number + 2, ()) == (parked.status, len(asked), parked.approvals)
            clock.move(delay - timedelta(milliseconds=1))
            await runtime.aresume("t")
            assert number + 2 == len(asked)
            clock.move(timedelta(milliseconds=1))
        end = await runtime.aresume("t")
        assert (["launch"], len(DELAYS) + 2) == ([one.operation for one in end.approvals], len(asked))
        await runtime.aresume("t")
        assert len(DELAYS) + 2 == len(asked)

    await in_doubt(opened, die, clock, launcher(calls, reconcile=reconcile), then)
    assert [0, *range(len(DELAYS) + 1)] == asked
    assert 1 == len(calls)


async def test_a_failure_that_may_have_happened_counts_among_the_retries_when_it_did_not(opened: Open) -> None:
    calls: list[int] = []

    async def reconcile(context: OutcomeContext) -> DidNotHappen:
        return DidNotHappen()

    retry = RetryPolicy(max_attempts=2, initial_delay=0.001)

    @operation(policy=Policy(effect="at_most_once", retry=retry), reconcile=reconcile)
    async def launch(text: str, context: OperationContext) -> str:
        """Launch it."""
        calls.append(context.attempt)
        raise ConnectionError("nobody there")

    async with opened(launch) as runtime:
        end = await runtime.ainvoke(LAUNCH, thread_id="t")
        state = await ledger(runtime, "launch")

    assert ([1, 2], ("reconciled", 2)) == (calls, state)
    assert ["This call failed (unavailable): ConnectionError: nobody there"] == texts(end)


async def test_a_result_that_its_reconcile_found_and_nobody_can_store_is_done_all_the_same(
    opened: Open, die: Any, clock: Clock
) -> None:
    calls: list[str] = []

    async def reconcile(context: OutcomeContext) -> Happened:
        return Happened(object())

    async def then(runtime: Runtime) -> None:
        end = await runtime.aresume("t")
        assert ("succeeded", 1, "reconciled") == (end.status, len(calls), (await ledger(runtime, "launch"))[0])
        assert "unstorable_result" in texts(end)[0]

    await in_doubt(opened, die, clock, launcher(calls, reconcile=reconcile), then)


# -- a person's answer


@dataclass(frozen=True)
class Told:
    """What a person says, and what follows."""

    said: Said
    state: str
    calls: int
    text: str


@pytest.mark.parametrize(
    "told",
    [
        Told(Said("happened", response={"launched": "seen"}), "reconciled", 1, '{"launched": "seen"}'),
        Told(Said("did_not_happen"), "succeeded", 2, '{"launched": "x"}'),
        Told(Said("abandon", "too late now"), "reconciled", 1, "given up by keeper@example.com: too late now"),
    ],
    ids=lambda told: told.said.verb,
)
async def test_a_person_settles_what_nobody_can_find_out(opened: Open, die: Any, clock: Clock, told: Told) -> None:
    calls: list[str] = []

    async def then(runtime: Runtime) -> None:
        asked = await runtime.aresume("t")
        [question] = asked.approvals
        assert [question] == await runtime.aapprovals()
        assert ("waiting", "outcome", "open") == (asked.status, question.kind, question.state)
        await runtime.adecide(question.id, told.said, as_=BY)
        with pytest.raises(errors.AlreadyDecided, match=r"settled by keeper@example\.com"):
            await runtime.adecide(question.id, Said("abandon"), as_=Principal.vouched("late@example.com"))
        end = await runtime.aresume("t")
        assert ("succeeded", told.calls) == (end.status, len(calls))
        assert told.text in texts(end)[0]
        assert told.state == (await ledger(runtime, "launch"))[0]
        decided = await runtime.store.approvals.get(question.id)
        assert (told.said.verb, "keeper@example.com") == (decided.decision, decided.decided_by)
        assert (told.said.verb == "abandon") == ("unknown" in end.outcome)

    await in_doubt(opened, die, clock, launcher(calls), then)


@pytest.mark.parametrize("point", ["outcome.unknown", "approval.opened", "outcome.decided", "outcome.settled"])
async def test_a_driver_that_dies_on_the_way_loses_neither_question_nor_answer(
    opened: Open, die: Any, clock: Clock, point: str
) -> None:
    calls: list[str] = []

    async def then(runtime: Runtime) -> None:
        if point in ("outcome.unknown", "approval.opened"):
            await die(runtime.aresume("t"), point)
        [question] = (await runtime.aresume("t")).approvals
        await runtime.adecide(question.id, Said("happened", response={"launched": "seen"}), as_=BY)
        if point in ("outcome.decided", "outcome.settled"):
            await die(runtime.aresume("t"), point)
        end = await runtime.aresume("t")
        assert ("succeeded", 1, ['{"launched": "seen"}']) == (end.status, len(calls), texts(end))
        assert 1 == len(await runtime.aapprovals(state=None))

    await in_doubt(opened, die, clock, launcher(calls), then)


async def test_a_result_that_does_not_fit_is_refused_and_the_question_stays(
    opened: Open, die: Any, clock: Clock
) -> None:
    calls: list[str] = []

    async def then(runtime: Runtime) -> None:
        [question] = (await runtime.aresume("t")).approvals
        with pytest.raises(errors.InvalidRequest, match="no result of launch: launched"):
            await runtime.aresume("t", {"type": "happened", "result": {"launched": 7}}, as_=BY)
        assert "open" == (await runtime.store.approvals.get(question.id)).state

    await in_doubt(opened, die, clock, launcher(calls), then)


async def test_a_result_that_came_through_a_process_without_the_operation_is_checked_all_the_same(
    opened: Open, die: Any, clock: Clock
) -> None:
    calls: list[str] = []

    async def then(runtime: Runtime) -> None:
        [question] = (await runtime.aresume("t")).approvals
        async with opened() as elsewhere:
            await elsewhere.adecide(question.id, Said("happened", response="what?"), as_=BY)
        [again] = (await runtime.aresume("t")).approvals
        assert question.id != again.id
        assert "is not one of launch" in again.description
        end = await runtime.aresume("t", {"type": "happened", "result": {"launched": "seen"}}, as_=BY)
        assert ("succeeded", 1) == (end.status, len(calls))

    await in_doubt(opened, die, clock, launcher(calls), then)


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("verb", ["approve", "reject", "edit"])
async def test_a_question_about_an_outcome_grants_nothing(opened: Open, die: Any, clock: Clock, verb: Any) -> None:
    calls: list[str] = []

    async def then(runtime: Runtime) -> None:
        [question] = (await runtime.aresume("t")).approvals
        with pytest.raises(errors.NotPermitted, match="only by happened, did_not_happen, abandon"):
            await runtime.adecide(question.id, Said(verb, "no"), as_=BY)
        assert ("waiting", 1) == ((await runtime.aresume("t")).status, len(calls))

    await in_doubt(opened, die, clock, launcher(calls), then)


async def test_each_attempt_in_doubt_is_a_question_of_its_own(opened: Open, die: Any, clock: Clock) -> None:
    calls: list[str] = []

    async def then(runtime: Runtime) -> None:
        [first] = (await runtime.aresume("t")).approvals
        await runtime.adecide(first.id, Said("did_not_happen"), as_=BY)
        await die(runtime.aresume("t"), "operation.done")
        clock.move(timedelta(seconds=60))
        [second] = (await runtime.aresume("t")).approvals
        assert first.id != second.id
        assert "took effect in attempt 2" in second.description
        end = await runtime.aresume("t", {"type": "abandon"}, as_=BY)
        assert ("succeeded", 2) == (end.status, len(calls))

    await in_doubt(opened, die, clock, launcher(calls), then)


async def test_a_call_in_doubt_whose_operation_is_gone_is_put_before_a_person(
    opened: Open, die: Any, clock: Clock
) -> None:
    calls: list[str] = []
    async with opened(launcher(calls)) as runtime:
        await die(runtime.ainvoke(LAUNCH, thread_id="t"), "operation.done")
    clock.move(timedelta(seconds=60))
    async with opened() as runtime:
        [question] = (await runtime.aresume("t")).approvals
        end = await runtime.aresume("t", {"type": "did_not_happen"}, as_=BY)

    assert ("launch", "succeeded", 1) == (question.operation, end.status, len(calls))
    assert "nobody can execute it any more" in texts(end)[0]


async def test_a_cancelled_run_withdraws_its_question_and_names_what_is_in_doubt(
    opened: Open, die: Any, clock: Clock
) -> None:
    async def then(runtime: Runtime) -> None:
        [question] = (await runtime.aresume("t")).approvals
        end = await runtime.acancel("t")
        assert "cancelled" == end.status
        assert "it is not known whether launch" in (end.reason or "")
        assert "withdrawn" == (await runtime.store.approvals.get(question.id)).state

    await in_doubt(opened, die, clock, launcher([]), then)


# -- what cannot be declared


@pytest.mark.parametrize("effect", ["read", "idempotent", "transactional"])
def test_a_reconcile_that_nobody_would_ask_is_refused(effect: str) -> None:
    async def reconcile(context: OutcomeContext) -> DidNotHappen:
        return DidNotHappen()

    async def launch() -> None:
        """Launch it."""

    with pytest.raises(errors.InvalidOperation, match="reconcile= is for at_most_once"):
        operation(launch, policy=Policy(effect=effect), reconcile=reconcile)  # type: ignore[arg-type]


def test_a_reconcile_that_blocks_is_refused() -> None:
    def reconcile(context: OutcomeContext) -> DidNotHappen:
        return DidNotHappen()

    async def launch() -> None:
        """Launch it."""

    with pytest.raises(errors.InvalidOperation, match="must be an async function"):
        operation(launch, policy=Policy(effect="at_most_once"), reconcile=reconcile)  # type: ignore[arg-type]
