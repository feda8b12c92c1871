"""When a failed attempt is followed by another: the policy alone, without a clock."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.checkpoint import errors
from standfast.tools.failures import Failure, FailureClass
from standfast.tools.operations import Effect, Policy, operation
from standfast.tools.retries import NEVER, Backoff, RetryPolicy

AWAY = Failure(FailureClass.UNAVAILABLE, "nobody there")
EVEN = RetryPolicy(max_attempts=9, initial_delay=2.0, factor=3.0, max_delay=50.0, jitter=0.0)


def delay(
    policy: RetryPolicy, failure: Failure = AWAY, *, failures: int = 1, elapsed: float = 0.0, key: str = "op"
) -> float | None:
    return policy.next_delay(failure, failures=failures, elapsed=elapsed, key=key)


def test_delays_grow_by_the_factor_up_to_the_longest() -> None:
    assert [2.0, 6.0, 18.0, 50.0, 50.0] == [delay(EVEN, failures=n) for n in range(1, 6)]


def test_a_million_failures_are_no_overflow() -> None:
    assert 60.0 <= Backoff().delay(1_000_000, None, 0.0) <= 66.0


def test_the_first_attempt_counts() -> None:
    assert delay(RetryPolicy(max_attempts=2)) is not None
    assert delay(RetryPolicy(max_attempts=2), failures=2) is None
    assert delay(NEVER) is None


def test_jitter_only_lengthens_and_is_the_same_in_every_process() -> None:
    policy = RetryPolicy(initial_delay=10.0, jitter=0.5)
    delays = [delay(policy, key=f"op-{number}") for number in range(100)]
    assert delays == [delay(policy, key=f"op-{number}") for number in range(100)]
    assert all(one is not None and 10.0 <= one <= 15.0 for one in delays)
    assert 90 < len(set(delays))


@pytest.mark.parametrize(("expected", "asked"), [(2.0, 1.0), (7.0, 7.0), (3_600.0, 3_600.0)])
def test_a_retry_after_is_obeyed_beyond_the_longest_delay_and_never_shortens(expected: float, asked: float) -> None:
    assert expected == delay(EVEN, Failure(FailureClass.RATE_LIMITED, "", asked))


@pytest.mark.parametrize(
    "kind", [one for one in FailureClass if one not in ("timeout", "rate_limited", "unavailable", "conflict")]
)
def test_what_time_cannot_mend_is_not_tried_again(kind: FailureClass) -> None:
    assert delay(EVEN, Failure(kind, "")) is None


def test_an_override_is_for_its_class_alone_and_may_add_one() -> None:
    policy = RetryPolicy(
        max_attempts=2,
        overrides={
            FailureClass.RATE_LIMITED: Backoff(5, 30.0, jitter=0.0),
            FailureClass.UNKNOWN: Backoff(2, 1.0, jitter=0.0),
        },
    )
    assert 60.0 == delay(policy, Failure(FailureClass.RATE_LIMITED, ""), failures=2)
    assert 1.0 == delay(policy, Failure(FailureClass.UNKNOWN, ""))
    assert delay(policy, AWAY, failures=2) is None


def test_no_attempt_begins_after_the_deadline() -> None:
    policy = RetryPolicy(max_attempts=9, initial_delay=10.0, jitter=0.0, deadline=100.0)
    assert 10.0 == delay(policy, elapsed=89.0)
    assert delay(policy, elapsed=90.0) is None
    assert delay(policy, Failure(FailureClass.RATE_LIMITED, "", 100.0)) is None


@pytest.mark.parametrize(
    "given",
    [
        {"max_attempts": 0},
        {"initial_delay": -1},
        {"initial_delay": float("nan")},
        {"max_delay": float("inf")},
        {"factor": 0.5},
        {"jitter": 2},
        {"deadline": 0},
        {"overrides": {"bad luck": Backoff()}},
        {"on_cancel": "panic"},
    ],
)
def test_a_policy_that_means_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidOperation):
        RetryPolicy(**given)


def test_a_class_may_be_named_by_its_word() -> None:
    assert delay(RetryPolicy(overrides={"unknown": Backoff(2)}), Failure(FailureClass.UNKNOWN, "")) is not None  # type: ignore[dict-item]


def test_a_bare_number_of_retries_is_refused_by_name() -> None:
    with pytest.raises(errors.InvalidOperation, match="RetryPolicy"):
        Policy(effect=Effect.READ, retry=3)  # type: ignore[arg-type]


def test_a_blocking_function_takes_no_deadline() -> None:
    def block() -> str:
        """Block."""
        return ""

    with pytest.raises(errors.InvalidOperation, match="blocking"):
        operation(block, policy=Policy(effect=Effect.READ, retry=RetryPolicy(deadline=5.0)))
