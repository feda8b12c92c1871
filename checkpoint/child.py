"""Child threads as values: the handle of one, and how it ended. Both may stand in state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from standfast.checkpoint.class_forms import named_form
from standfast.checkpoint.forms import Form, Layout, Unfit, typed

ChildStatus = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class Child:
    """A thread that a run has begun for a part of its work."""

    thread_id: str
    run_id: str


@dataclass(frozen=True)
class ChildEnd:
    """How a child has ended. `output` is its graph's output, or an `Artifact` of it if that is large."""

    child: Child
    status: ChildStatus
    output: Any = None
    reason: str | None = None


def _lower_end(end: ChildEnd) -> list[Any]:
    return [end.child.thread_id, end.child.run_id, end.status, end.output, end.reason]


def _restore_end(parts: list[Any]) -> ChildEnd:
    if len(parts) != 5 or parts[2] not in get_args(ChildStatus):
        raise Unfit("it is not how a child ends")
    thread, run, status, _, reason = parts
    return ChildEnd(Child(*typed([thread, run], (str,), (str,))), status, parts[3], reason)


CHILD_FORM: Final[Form] = named_form(
    "standfast:Child",
    Layout.PARTS,
    lambda child: [child.thread_id, child.run_id],
    lambda parts: Child(*typed(parts, (str,), (str,))),
)
CHILD_END_FORM: Final[Form] = named_form("standfast:ChildEnd", Layout.PARTS, _lower_end, _restore_end)
