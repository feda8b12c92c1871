"""What may become of a call that did not simply return: values for `reconcile`, `poll` and operations to return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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

    It ends by `runtime.complete(operation_id, ...)` or by the operation's `poll`; no process is held meanwhile.
    """

    handle: Any = None


@dataclass(frozen=True)
class Failed:
    """The work elsewhere has failed, for good."""

    message: str


Reconciled = Happened | DidNotHappen | CannotTell
Polled = Happened | Failed | Pending
