"""The ledger against a simple model: calls, lost answers, crashes, questions, completions, cancels, in any order.

An effect that must not be repeated is called once, and once more for each time that somebody said that it did not
happen; nothing is called or asked before an attempt's deadline; what is settled never changes; nobody is stuck.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from standfast.checkpoint import crashpoints, errors
from standfast.checkpoint.operations import Operation
from standfast.graph import (
    CannotTell,
    DidNotHappen,
    Happened,
    OperationContext,
    OutcomeContext,
    Pending,
    Policy,
    Principal,
    Result,
    RetryPolicy,
    Runtime,
    Said,
    build_agent,
    operation,
)
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, call, script

pytestmark = pytest.mark.guarantee("G4")

DEADLINE: Final = timedelta(seconds=60)
KINDS = ("idempotent", "at_most_once", "reconciled", "pending")
POINTS = (
    "operation.begun",
    "operation.done",
    "operation.recorded",
    "operation.pending",
    "outcome.unknown",
    "outcome.answered",
    "outcome.decided",
    "outcome.settled",
    "outcome.polled",
    "approval.opened",
    "drive.parking",
    "drive.resuming",
    "saver.committed",
)
SETTLED = ("succeeded", "failed", "reconciled")
THREADS = itertools.count()
KEEPER = Principal.vouched("keeper")


class Receiver:
    """What is outside: which calls arrived, under which keys, and what it says when it is asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.manner = "answers"
        self.says: Any = CannotTell()

    def called(self, key: str) -> str:
        self.calls.append(key)
        if self.manner == "loses its answer":
            raise ConnectionError("nobody there")
        return "done"


RECEIVERS: dict[str, Receiver] = {}


async def reconcile(context: OutcomeContext) -> Any:
    return RECEIVERS[context.run.thread_id].says


async def poll(handle: Any, context: OutcomeContext) -> Any:
    says = RECEIVERS[context.run.thread_id].says
    return says if isinstance(says, Happened) else Pending(handle)


@operation(policy=Policy(effect="idempotent", timeout=60, retry=RetryPolicy(max_attempts=2, initial_delay=0)))
async def idempotent(context: OperationContext) -> str:
    """Do it under a key."""
    return RECEIVERS[context.thread_id].called(context.operation_id)


@operation(policy=Policy(effect="at_most_once", timeout=60))
async def at_most_once(context: OperationContext) -> str:
    """Do it once."""
    return RECEIVERS[context.thread_id].called(context.operation_id)


@operation(policy=Policy(effect="at_most_once", timeout=60), reconcile=reconcile)
async def reconciled(context: OperationContext) -> str:
    """Do it once, where one can ask."""
    return RECEIVERS[context.thread_id].called(context.operation_id)


@operation(policy=Policy(effect="at_most_once", timeout=60), poll=poll)
async def pending(context: OperationContext) -> str | Pending:
    """Have it done."""
    RECEIVERS[context.thread_id].called(context.operation_id)
    return Pending("job")


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    crashpoints.hook = None
    RECEIVERS.clear()


class Machine(RuleBasedStateMachine):
    runtime: Runtime
    clock: Clock
    ends: Counter[str]

    @initialize(kind=st.sampled_from(KINDS), point=st.sampled_from((None, "operation.begun", "operation.done")))
    def begin(self, kind: str, point: str | None) -> None:
        self.thread, self.kind = f"t-{next(THREADS)}", kind
        self.receiver = RECEIVERS[self.thread] = Receiver()
        self.chances = 1  # how often an effect that must not be repeated may be called
        self.settled: tuple[Any, ...] | None = None
        self.completed = False
        self.over = False
        self.runtime.submit(script([call(kind)]), thread_id=self.thread)
        if point is not None:
            self._drive(point, 2 if point == "operation.begun" else 1)  # the first attempt is the model's

    # -- what happens

    @rule()
    def drive(self) -> None:
        self._drive(None)

    @rule(point=st.sampled_from(POINTS), times=st.sampled_from((1, 1, 2)))
    def crash(self, point: str, times: int) -> None:
        self._drive(point, times)

    @rule(point=st.sampled_from(("outcome.unknown", "outcome.answered", "outcome.decided", "outcome.settled")))
    def crash_in_doubt(self, point: str) -> None:
        self.clock.move(DEADLINE)
        self._drive(point)

    @rule(seconds=st.sampled_from((1, 20, 70, 4000)))
    def wait(self, seconds: int) -> None:
        self.clock.move(timedelta(seconds=seconds))

    @rule(manner=st.sampled_from(("answers", "loses its answer")))
    def change(self, manner: str) -> None:
        self.receiver.manner = manner

    @rule(says=st.sampled_from((Happened("seen"), DidNotHappen(), CannotTell())))
    def know(self, says: Any) -> None:
        self.receiver.says = says

    @precondition(lambda self: not self.over)
    @rule(verb=st.sampled_from(("did_not_happen", "happened", "abandon")))
    def decide(self, verb: Any) -> None:
        self.clock.move(DEADLINE)
        self._drive(None)
        for question in self.runtime.approvals(thread_id=self.thread, state=None):
            said = Said(verb, response="told" if verb == "happened" else None)
            if question.state == "open":
                self._say(question.id, said)
                self.chances += verb == "did_not_happen"
                self.ends[verb] += 1
            else:
                with pytest.raises(errors.AlreadyDecided):
                    self._say(question.id, said)

    @rule(failed=st.booleans())
    def complete(self, failed: bool) -> None:
        known = self._known()
        if known is None or known.attempts == 0:
            return
        questions = self.runtime.approvals(thread_id=self.thread, state="settled")
        used = any(one.used_at is None for one in questions)
        wanted = known.state in ("executing", "unknown") and not self.over and not used
        try:
            self.runtime.complete(known.id, "completed", error="broken" if failed else None)
        except errors.AlreadyCompleted:
            assert self.completed
        except errors.CompletedLate:
            assert not wanted
            self.ends["late"] += 1
        else:
            assert wanted
            self.completed = True
            self.ends["completed"] += 1

    @precondition(lambda self: not self.over)
    @rule(chance=st.integers(0, 9))
    def cancel(self, chance: int) -> None:
        if chance == 0:
            self.over = True
            self.runtime.cancel(self.thread)
            self.ends["cancelled"] += 1

    # -- what holds

    @invariant()
    def an_effect_that_must_not_be_repeated_is_not(self) -> None:
        if self.kind != "idempotent":
            assert len(self.receiver.calls) <= self.chances, self.receiver.calls
        assert len(set(self.receiver.calls)) <= 1

    @invariant()
    def what_is_settled_stays(self) -> None:
        known = self._known()
        now = None
        if known is not None and known.state in SETTLED:
            now = (known.state, known.result, known.failure_class, known.failure_message, known.attempts)
        assert self.settled in (None, now)
        self.settled = now

    def teardown(self) -> None:
        """Whatever has happened, it comes to its end when the receiver answers and a person does."""
        if not hasattr(self, "thread"):
            return
        self.receiver.manner, self.receiver.says = "answers", Happened("seen")
        for _ in range(30):
            if self.over:
                break
            self.clock.move(timedelta(hours=2))
            self._drive(None)
            self.decide("happened")
            self.what_is_settled_stays()
        self.ends[f"{self.kind} ended"] += self.over
        assert self.over
        self.an_effect_that_must_not_be_repeated_is_not()

    # -- driving

    def _drive(self, point: str | None, times: int = 1) -> None:
        deadline = self._deadline()
        calls, looks = len(self.receiver.calls), self._looks()

        def hook(reached: str) -> None:
            nonlocal times
            times -= reached == point
            if times == 0:
                crashpoints.hook = None
                raise errors.StorageUnavailable(f"died at {reached}")

        crashpoints.hook = hook if point else None
        result: Result | None = None
        try:
            result = self.runtime.resume(self.thread)
        except errors.StorageUnavailable:
            self.ends[point or ""] += 1
        finally:
            crashpoints.hook = None
        if result is not None and result.status == "succeeded":
            self.over = True
        early = deadline is not None and self.clock.now() < deadline
        if early and not self.completed:
            assert (calls, looks) == (len(self.receiver.calls), self._looks()), "something happened before the deadline"
            self.ends["early"] += 1
        self.chances += self._not_happened(calls)

    def _say(self, question: str, said: Said) -> None:
        self.runtime._wait(lambda: self.runtime.adecide(question, said, as_=KEEPER))

    def _not_happened(self, calls: int) -> int:
        """The calls of this drive that its operation's own answer allowed."""
        allowed = self.kind == "reconciled" and isinstance(self.receiver.says, DidNotHappen)
        return len(self.receiver.calls) - calls if allowed else 0

    def _known(self) -> Operation | None:
        found = [one for one in self.runtime.timeline(self.thread).operations if one.kind == "tool"]
        return found[0] if found else None

    def _deadline(self) -> datetime | None:
        """Until when an attempt that never reported may be under way."""
        attempts = self.runtime.timeline(self.thread).attempts
        known = self._known()
        latest = attempts[known.id][-1] if known is not None and attempts.get(known.id) else None
        return latest.started_at + DEADLINE if latest is not None and latest.state == "executing" else None

    def _looks(self) -> int:
        return len(self.runtime.approvals(thread_id=self.thread, state=None))


@pytest.mark.timeout(280)
def test_the_ledger_does_as_the_model_says_in_every_order(database_url: str, clock: Clock) -> None:
    graph = build_agent(model=ScriptedModel(), operations=[idempotent, at_most_once, reconciled, pending])
    with Runtime(graph, database_url=database_url) as runtime:

        class Here(Machine):
            pass

        Here.ends = Counter()
        Here.runtime, Here.clock = runtime, clock
        run_state_machine_as_test(
            Here,
            settings=settings(
                max_examples=20,
                stateful_step_count=15,
                deadline=None,
                derandomize=True,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    print(dict(Here.ends))
    tried = {"happened", "did_not_happen", "completed", "cancelled", "early"}
    # Which rules can run depends on how far a drive has come, so not each is tried each time.
    assert {f"{kind} ended" for kind in KINDS} <= set(Here.ends), "the model was hardly tried"
    assert 3 <= len(tried & set(Here.ends)), "the model was hardly tried"
