"""What may become of a call that did not simply return: values for `reconcile`, `poll` and operations to return."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from standfast.checkpoint import errors


@dataclass(frozen=True)
class Happened:
    """The call took effect, with this result."""

    result: Any = None


@dataclass(frozen=True)
class DidNotHappen:
    """The call did not take effect, and will not: it may be tried again."""


@dataclass(frozen=True)
class CannotTell:
    """Nothing is known yet; the question is put again later, then to a person."""

    reason: str = ""


@dataclass(frozen=True)
class Pending:
    """The work goes on elsewhere, known there by `handle`, any value that can be stored.

    It ends by `runtime.complete(operation_id, ...)` or by the operation's `poll`; no process is held meanwhile. After
    `timeout` seconds, counted from here by the database's clock, whatever becomes of this process, that attempt has
    failed by `timeout`: an `at_most_once` operation's outcome is unknown then, any other's is tried again as its
    policy says. From a `poll`, None leaves the time-out as it is. Raises `UsageError`.
    """

    handle: Any = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise errors.UsageError(f"a time-out is a number of seconds above 0, not {self.timeout!r}")


@dataclass(frozen=True)
class Failed:
    """The work elsewhere has failed, for good."""

    message: str


Reconciled = Happened | DidNotHappen | CannotTell
Polled = Happened | Failed | Pending
