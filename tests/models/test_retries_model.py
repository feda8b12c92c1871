"""Retries against a simple model: failures of every kind, back-off, deadlines, crashes and cancellation, in any order.

The model is the policy in a few lines. Before each drive it says whether the receiver is called; after it, how the
operation stands and when it is due again. So no attempt is made too early or too often, none is lost by a crash, and a
crash gives no fresh budget.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
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
from standfast.graph import (
    Backoff,
    FailureClass,
    OperationContext,
    Policy,
    RetryPolicy,
    Runtime,
    build_agent,
    operation,
)
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, call, script

pytestmark = pytest.mark.guarantee("G8")

TIMEOUT: Final = 60.0
ATTEMPTS, FIRST, FACTOR, MOST = 4, 20.0, 3.0, 100.0
CONFLICTS, CONFLICT_DELAY = 2, 5.0
DEADLINE: Final = 500.0
ASKED: Final = 150.0
RETRY: Final = RetryPolicy(
    max_attempts=ATTEMPTS,
    initial_delay=FIRST,
    factor=FACTOR,
    max_delay=MOST,
    jitter=0.0,
    overrides={FailureClass.CONFLICT: Backoff(max_attempts=CONFLICTS, initial_delay=CONFLICT_DELAY, jitter=0.0)},
    deadline=DEADLINE,
    park_over=0.0,  # the clock is frozen: nobody sleeps by it
)
THREADS = itertools.count()
POINTS = (None, None, None, "operation.begun", "operation.done")
MOMENTS = (None, timedelta(milliseconds=-1), timedelta(0), timedelta(0), timedelta(seconds=30))
MANNERS = ("unavailable", "limits", "conflict", "unavailable", "answers", "permanent")


class Answered(Exception):
    """A client's exception with a status, and what the receiver asks for."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.headers = headers
        self.response = self


class Receiver:
    """What is outside: how it answers, and the keys of the calls that came."""

    def __init__(self) -> None:
        self.manner = "answers"
        self.calls: list[str] = []

    def called(self, key: str) -> str:
        self.calls.append(key)
        match self.manner:
            case "unavailable":
                raise ConnectionError("nobody there")
            case "limits":
                raise Answered(429, **{"retry-after": str(int(ASKED))})
            case "conflict":
                raise Answered(409)
            case "permanent":
                raise Answered(404)
        return "done"


RECEIVERS: dict[str, Receiver] = {}


@operation(policy=Policy(effect="idempotent", timeout=TIMEOUT, retry=RETRY))
async def pay(context: OperationContext) -> str:
    """Pay."""
    return RECEIVERS[context.thread_id].called(context.operation_id)


@dataclass
class Model:
    """The operation as the policy has it: `due` from when on it is called, None once it has ended."""

    due: datetime | None
    failures: int = 0
    first: datetime | None = None
    state: str = "planned"

    def calls(self, now: datetime) -> bool:
        """Whether a drive calls the receiver now."""
        return self.due is not None and now >= self.due and not self._too_late(now)

    def _too_late(self, now: datetime) -> bool:
        return self.first is not None and (now - self.first).total_seconds() >= DEADLINE

    def drive(self, now: datetime, manner: str, died: str | None) -> None:
        """What one drive makes of it. `died`: at which point its process did, if it came there."""
        if self.due is None or now < self.due:
            return
        if self._too_late(now):
            self.due, self.state = None, "failed"
            return
        self.first = self.first or now
        if died in ("operation.begun", "operation.done"):  # until its time is up, nobody knows whether it is at work
            left = DEADLINE - (now - self.first).total_seconds()
            self.due = now + timedelta(seconds=min(TIMEOUT, left))
        elif manner == "answers":
            self.due, self.state = None, "succeeded"
        else:
            self._failed(now, manner)

    def _failed(self, now: datetime, manner: str) -> None:
        assert self.first is not None
        self.failures += 1
        most = {"conflict": CONFLICTS, "permanent": 1}.get(manner, ATTEMPTS)
        delay = CONFLICT_DELAY if manner == "conflict" else min(MOST, FIRST * FACTOR ** (self.failures - 1))
        if manner == "limits":
            delay = max(delay, ASKED)
        elapsed = (now - self.first).total_seconds()
        if self.failures >= most or elapsed + delay >= DEADLINE:
            self.due, self.state = None, "failed"
        else:
            self.due = now + timedelta(seconds=delay)


class Machine(RuleBasedStateMachine):
    runtime: Runtime
    clock: Clock
    ends: Counter[str]

    @initialize()
    def begin(self) -> None:
        self.thread = f"t-{next(THREADS)}"
        self.receiver = RECEIVERS[self.thread] = Receiver()
        self.runtime.submit(script([call("pay")], "Done."), thread_id=self.thread)
        self.model = Model(self.clock.now())
        self.cancelled = self.driven = False
        self.after = 0  # drives after its end, which change nothing

    @rule(manner=st.sampled_from(MANNERS), point=st.sampled_from(POINTS), when=st.sampled_from(MOMENTS))
    def drive(self, manner: str, point: str | None, when: timedelta | None) -> None:
        """Go on now, or at so much from when it is due: a moment before it nothing may happen."""
        if when is not None and self.model.due is not None:
            self.clock.move(max(timedelta(0), self.model.due + when - self.clock.now()))
        if self.cancelled or self.model.due is None:
            self.after += 1
            if self.after > 2:
                return
        if point == "operation.done":  # the answer has come, and nothing says so
            manner = "answers"
        self.receiver.manner = manner
        now, before = self.clock.now(), len(self.receiver.calls)
        called = self.model.calls(now) and not self.cancelled
        died = self._drive(point if called else None)
        if not self.cancelled:
            self.model.drive(now, manner, died)
        expected = 1 if called and died != "operation.begun" else 0
        assert expected == len(self.receiver.calls) - before
        self.ends[died or (manner if called else "nothing due")] += 1

    @rule(seconds=st.sampled_from((1, 5, 20, 60, 150, 400)))
    def wait(self, seconds: int) -> None:
        self.clock.move(timedelta(seconds=seconds))

    @precondition(lambda self: self.model.due is not None and not self.cancelled)
    @rule(chance=st.integers(0, 9))
    def cancel(self, chance: int) -> None:
        if chance == 7:
            self.cancelled = True
            assert "cancelled" == self.runtime.cancel(self.thread).status
            self.ends["cancelled"] += 1

    @invariant()
    def the_ledger_says_what_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        timeline = self.runtime.timeline(self.thread)
        known = [one for one in timeline.operations if one.kind == "tool"]
        if not known:
            assert [] == self.receiver.calls
            return
        [one] = known
        assert len(set(self.receiver.calls)) <= 1
        failed = [attempt for attempt in timeline.attempts.get(one.id, ()) if attempt.state == "failed"]
        if self.model.due is None:
            assert self.model.state == one.state
        else:
            assert one.state in ("planned", "executing", "unknown")
            assert self.model.failures == len(failed)
        if one.next_attempt_at is not None and one.state == "planned":
            assert self.model.due == one.next_attempt_at

    def teardown(self) -> None:
        """Whatever has happened, it comes to its end when the receiver answers, or has its time behind it."""
        if not hasattr(self, "model"):
            return
        for _ in range(10):
            if self.model.due is None or self.cancelled:
                break
            self.clock.move(timedelta(seconds=ASKED))
            self.drive("answers", None, None)
        assert self.model.due is None or self.cancelled
        self.the_ledger_says_what_the_model_says()
        self.ends[f"ended {self.model.state}"] += 1

    def _drive(self, point: str | None) -> str | None:
        """Drive it, and die at the point when the payment is there: at which it died."""
        others = 1 if point == "operation.begun" and not self.driven else 0  # the model's call begins before
        self.driven = True

        def hook(reached: str) -> None:
            nonlocal others
            if reached == point:
                others -= 1
                if others < 0:
                    crashpoints.hook = None
                    raise errors.StorageUnavailable(f"died at {reached}")

        crashpoints.hook = hook if point else None
        try:
            self.runtime.resume(self.thread)
        except errors.StorageUnavailable:
            return point
        finally:
            crashpoints.hook = None
        return None


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    crashpoints.hook = None
    RECEIVERS.clear()


@pytest.mark.timeout(280)
def test_retries_do_as_the_model_says_in_every_order(database_url: str, clock: Clock) -> None:
    with Runtime(build_agent(model=ScriptedModel(), operations=[pay]), database_url=database_url) as runtime:

        class Here(Machine):
            pass

        Here.ends = Counter()
        Here.runtime, Here.clock = runtime, clock
        options: dict[str, Any] = {"deadline": None, "derandomize": True, "print_blob": True}
        run_state_machine_as_test(
            Here,
            settings=settings(
                max_examples=30, stateful_step_count=20, suppress_health_check=list(HealthCheck), **options
            ),
        )
    print(dict(Here.ends))
    tried = {*MANNERS, "operation.begun", "operation.done", "cancelled", "ended failed", "ended succeeded"}
    # Which of them are tried depends on what hypothesis draws: never all in so few examples.
    assert {"unavailable", "operation.begun", "ended succeeded"} <= set(Here.ends), "the model was hardly tried"
    assert 6 <= len(tried & set(Here.ends)), "the model was hardly tried"
