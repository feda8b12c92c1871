"""Retry policies: whether another attempt is made after a failure, and when.

Invariant: a decision depends on what is recorded (the failures so far, the time since the first attempt) and on
nothing of this process: every process decides the same, and a crash gives no fresh budget.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from standfast.checkpoint import errors
from standfast.tools.failures import TRANSIENT, Failure, FailureClass

_LONGEST: Final = 366 * 86_400.0  # seconds; whoever asks for more is asked again after that


@dataclass(frozen=True)
class Backoff:
    """How often and how fast. Times are in seconds.

    `max_attempts`: with the first one; failures of all classes count together. The delay before the second attempt
    is `initial_delay`, before each further one `factor` times as long, up to `max_delay`, which does not shorten the
    first; `jitter` is the share by which each may be longer. A failure that asks for a longer delay (`Retry-After`)
    gets it, above `max_delay` too.
    """

    max_attempts: int = 3
    initial_delay: float = 0.5
    factor: float = 2.0
    max_delay: float = 60.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise errors.InvalidOperation(f"max_attempts counts the first one too, so it is not {self.max_attempts}")
        if not (0 <= self.initial_delay <= _LONGEST and 0 <= self.max_delay <= _LONGEST):
            raise errors.InvalidOperation(
                f"a delay is 0 to {_LONGEST:.0f} s, not {self.initial_delay} or {self.max_delay}"
            )
        if not (1 <= self.factor <= 1000 and 0 <= self.jitter <= 1):
            raise errors.InvalidOperation(
                f"a factor is 1 to 1000 and a jitter 0 to 1, not {self.factor} and {self.jitter}"
            )

    def delay(self, failures: int, retry_after: float | None, chance: float) -> float:
        """Seconds before the next attempt, after this many failures (from 1); `chance` is 0 to 1."""
        delay, longest = self.initial_delay, max(self.initial_delay, self.max_delay)
        for _ in range(failures - 1):  # not a power, which overflows
            if delay in (0.0, longest):
                break
            delay = min(longest, delay * self.factor)
        return min(_LONGEST, max(delay, retry_after or 0.0) * (1 + self.jitter * chance))


@dataclass(frozen=True)
class RetryPolicy(Backoff):
    """When a failed attempt is followed by another. Only what time can mend is: see docs/failures.md.

    `overrides`: another `Backoff` for single classes, also for one that is not retried by itself. `deadline`: seconds
    from the start of the first attempt, delays and restarts included; no attempt begins after it, and it cuts off the
    one under way. `on_cancel`: when the run is cancelled, `stop` the attempt under way, or let it `finish` and be
    recorded. A delay of more than `park_over` seconds is no sleep: the thread parks, and nothing is held meanwhile.
    """

    overrides: Mapping[FailureClass, Backoff] = field(default_factory=dict, hash=False)
    deadline: float | None = None
    on_cancel: Literal["stop", "finish"] = "stop"
    park_over: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            known = {FailureClass(kind): backoff for kind, backoff in self.overrides.items()}
        except ValueError as error:
            raise errors.InvalidOperation(f"{error}; the classes are {', '.join(FailureClass)}") from error
        object.__setattr__(self, "overrides", known)
        if self.deadline is not None and self.deadline <= 0:
            raise errors.InvalidOperation(f"a deadline is positive, not {self.deadline}")
        if self.on_cancel not in ("stop", "finish"):
            raise errors.InvalidOperation(f"on_cancel is stop or finish, not {self.on_cancel!r}")

    def next_delay(self, failure: Failure, *, failures: int, elapsed: float, key: str) -> float | None:
        """Seconds before the next attempt, or None if there is none.

        `failures` counts this one, `elapsed` is seconds since the first attempt began; `key` makes the jitter the
        same in every process.
        """
        backoff = self.overrides.get(failure.kind, self if failure.kind in TRANSIENT else NEVER)
        if failures >= backoff.max_attempts:
            return None
        chance = random.Random(f"{key}/{failures}").random()  # noqa: S311 - it spreads load, it hides nothing
        delay = backoff.delay(failures, failure.retry_after, chance)
        return None if self.deadline is not None and elapsed + delay >= self.deadline else delay


NEVER: Final = RetryPolicy(max_attempts=1)
"""One attempt."""
