"""What a caller gets back: how a thread's run stands, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.messages.ai import UsageMetadata, add_usage

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.shown import Shown
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Status
from standfast.checkpoint.waits import Wait
from standfast.graph.awaited import waiting_for
from standfast.graph.visible import shortened


@dataclass(frozen=True)
class Result(Shown):
    """How a run stands. `values` is the graph's output, `outcome` its field of that name, if it has one.

    `waiting` for people: `approvals` and `questions` say for what; `waits` are those for times, events, children and
    completions (`kind`, `name`, `until`; of an event, `request` has the match). `needs_attention` and `failed`, also
    of a node that raised: `reason` says why, and `raise_for_status` raises it. `error` is the exception behind it, in
    the process that saw it only.
    """

    thread_id: str
    run_id: str
    status: Status
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    outcome: Any = None
    reason: str | None = None
    approvals: tuple[Approval, ...] = ()
    questions: tuple[Wait, ...] = ()
    waits: tuple[Wait, ...] = ()
    error: BaseException | None = None
    drained: bool = False  # this process was told to stop; the thread is due

    @property
    def messages(self) -> list[AnyMessage]:
        """The conversation, if the graph has one."""
        return list(self.values.get("messages", ()))

    @property
    def usage(self) -> UsageMetadata | None:
        """Tokens of all answers in the conversation, as far as the model reports them."""
        total: UsageMetadata | None = None
        for message in self.messages:
            if isinstance(message, AIMessage) and message.usage_metadata:
                total = add_usage(total, message.usage_metadata)
        return total

    def raise_for_status(self) -> Self:
        """Raise `RunFailed` if the run has failed, was cancelled or needs attention; else return this.

        Its cause is `error`, if this process saw it. A run that waits, or is still to be driven, is no failure.
        """
        if self.status in (Status.FAILED, Status.CANCELLED, Status.NEEDS_ATTENTION):
            why = f": {self.reason}" if self.reason else ""
            ended = "needs attention" if self.status is Status.NEEDS_ATTENTION else f"is {self.status}"
            raise errors.RunFailed(
                f"the run of thread {self.thread_id!r} {ended}{why}", thread_id=self.thread_id, result=self
            ) from self.error
        return self

    def __repr__(self) -> str:
        parts = [f"{self.status.upper()} thread {self.thread_id!r}"]
        if self.reason:
            parts.append(f"because {self.reason}")
        parts += [f"approval {one.id} for {one.operation}" for one in self.approvals]
        parts += [f"question {one.id} at {one.node}" for one in self.questions]
        parts += [waiting_for(one) for one in self.waits]
        if self.outcome is not None:
            shown = self.outcome.get("answer", self.outcome) if isinstance(self.outcome, dict) else self.outcome
            parts.append(shortened(shown, 200))
        elif self.values and "messages" not in self.values:
            parts.append(shortened(dict(self.values), 200))
        return f"<Result {'; '.join(parts)}>"


async def read_result(store: Store, thread_id: str, values: Mapping[str, Any], *, run_id: str | None = None) -> Result:
    """How a run, by default the thread's latest, stands, from its rows; `values` is the thread's state.

    Raises `UnknownThread`.
    """
    thread = await store.threads.get(thread_id)
    assert thread.run_id is not None
    run = await store.threads.run(thread_id, run_id or thread.run_id)
    if run.id != thread.run_id:
        status = Status.QUEUED if run.state == "queued" else Status(run.state)
        return Result(thread_id, run.id, status, outcome=run.outcome, reason=run.reason)
    approvals: tuple[Approval, ...] = ()
    questions: tuple[Wait, ...] = ()
    others: tuple[Wait, ...] = ()
    if thread.status not in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED):
        approvals = tuple(await store.approvals.list(thread_id=thread_id, limit=None))
        waits = [one for one in await store.waits.of_run(thread_id, run.id) if one.state == "open"]
        questions = tuple(one for one in waits if one.kind == "question")
        others = tuple(one for one in waits if one.kind not in ("question", "approval"))
    return Result(
        thread_id=thread_id,
        run_id=run.id,
        status=thread.status,
        values=values,
        outcome=run.outcome,
        reason=thread.reason,
        approvals=approvals,
        questions=questions,
        waits=others,
    )
