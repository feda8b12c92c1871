"""The limits of one run while it is driven: its deadline and its budget.

Invariant: what is spent is counted from the rows, not from this process: a crash gives nothing back. A limit is
checked before a step and before a model call, and leaves everything that has been done as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from langchain_core.messages import AIMessage

from standfast.checkpoint.budget import Budget, Spent
from standfast.checkpoint.children import Ancestor, Children
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.operations import Operations
from standfast.checkpoint.threads import Run
from standfast.tools.halts import Halt

Name = Literal["deadline", "budget"]


class LimitReached(Halt):
    """The run is at its limit, of this name; the sentence says which one."""

    def __init__(self, name: Name, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name
        self.sentence = sentence


class Limits:
    """The limits of one drive's run. `ends_at` is its deadline by `time.monotonic()`, as far as it is known."""

    def __init__(
        self,
        run: Run,
        operations: Operations,
        children: Children,
        lease: Lease,
        clock: Callable[[], Awaitable[datetime]],
    ) -> None:
        self._run = run
        self._operations = operations
        self._children = children
        self._above: list[Ancestor] | None = None
        self._lease = lease
        self._clock = clock
        self._budget = run.budget or Budget()
        self._lock = asyncio.Lock()
        self._spent: _Spent | None = None
        self._steps: int | None = None
        self.ends_at: float | None = None

    async def seconds_left(self) -> float | None:
        """Seconds to the deadline, by the database's clock; None without one."""
        if self._run.deadline is None:
            return None
        return (self._run.deadline - await self._clock()).total_seconds()

    async def before_step(self) -> LimitReached | None:
        """The limit that forbids another step, if one does."""
        left = await self.seconds_left()
        if left is not None and left <= 0:
            return self.late()
        if self._budget.steps is not None:
            if self._steps is None:
                self._steps = await self._operations.steps(self._run.thread_id, self._run.id)
            if self._steps >= self._budget.steps:
                return _spent_up(self._run.thread_id, "steps", self._steps, self._budget.steps)
        return None

    async def after_step(self) -> LimitReached | None:
        """Count a step whose record is committed; the limit that forbids another, if one does."""
        if self._steps is not None:
            self._steps += 1
        return await self.before_step()

    def late(self) -> LimitReached:
        """The deadline, reached."""
        assert self._run.deadline is not None
        thread, passed = self._run.thread_id, f"{self._run.deadline:%Y-%m-%d %H:%M:%S %Z}"
        return LimitReached(
            "deadline",
            f"the deadline of thread {thread!r} has passed ({passed}); what was done is kept. "
            f"To go on: standfast retry {thread} --deadline 1h",
        )

    async def before_model_call(self) -> None:
        """Count a call of the model. Raises `LimitReached` if a budget has none left: the run's own, of which its
        children spend too, or that of a run that it works for."""
        for one in await self._ancestors():
            if one.budget is not None and _counts(one.budget):
                spent = await self._of_family(one.thread_id, one.run_id, one.budget, itself=True)
                spent.calls -= 1  # this one has begun
                self._check(one.thread_id, one.budget, spent)
        if _counts(self._budget):
            async with self._lock:
                spent = self._spent = self._spent or await self._read()
            theirs = await self._of_family(self._run.thread_id, self._run.id, self._budget, itself=False)
            self._check(self._run.thread_id, self._budget, spent.with_(theirs))
            spent.calls += 1

    def _check(self, thread: str, budget: Budget, spent: _Spent) -> None:
        for name, used, most in (
            ("model calls", spent.calls, budget.model_calls),
            ("tokens", spent.tokens, budget.tokens),
            ("money", spent.money, budget.money),
        ):
            if most is not None and used >= most:
                raise _spent_up(thread, name, used, most)

    async def _ancestors(self) -> list[Ancestor]:
        if self._above is None:
            child = self._run.parent_thread_id is not None
            self._above = await self._children.above(self._run.thread_id, self._run.id) if child else []
        return self._above

    async def _of_family(self, thread: str, run: str, budget: Budget, *, itself: bool) -> _Spent:
        valued = budget.tokens is not None or budget.money is not None
        calls = await self._children.spent(thread, run, itself=itself, answers=valued)
        spent = _Spent(calls.count)
        for answer in calls.answers:
            spent.add(answer, budget)
        return spent

    def answered(self, answer: AIMessage) -> None:
        """Count what an answer has cost, as far as the model says so."""
        if self._spent is not None:
            self._spent.add(answer, self._budget)

    async def _read(self) -> _Spent:
        thread, run = self._run.thread_id, self._run.id
        spent = _Spent(await self._operations.model_calls(self._lease, run))
        if self._budget.tokens is not None or self._budget.money is not None:
            for one in await self._operations.list(thread, run):
                if one.kind == "model" and one.state == "succeeded" and not one.inherited:
                    spent.add(one.result, self._budget)
        return spent


async def spent_by(run: Run, operations: Operations, children: Children) -> Spent:
    """What a run has spent until now, its specialists and children included."""
    calls = await children.spent(run.thread_id, run.id, itself=True, answers=True)
    budget = run.budget or Budget()
    spent = _Spent(calls.count)
    for answer in calls.answers:
        spent.add(answer, budget)
    money = None if budget.price is None else spent.money
    return Spent(spent.calls, spent.tokens, money, await operations.steps(run.thread_id, run.id))


def _spent_up(thread: str, what: str, used: object, most: object) -> LimitReached:
    option = what.replace(" ", "_")
    return LimitReached(
        "budget",
        f"the budget of thread {thread!r} is spent ({used} of {most} {what}); what was done is kept. "
        f"To go on: standfast retry {thread} --budget {option}=MORE",
    )


def _counts(budget: Budget) -> bool:
    """Whether it bounds what is spent on models."""
    return budget.model_calls is not None or budget.tokens is not None or budget.money is not None


class _Spent:
    """What a run has spent on its model, or a family of runs."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.tokens = 0
        self.money = Decimal(0)

    def add(self, answer: Any, budget: Budget) -> None:
        usage = getattr(answer, "usage_metadata", None)
        if isinstance(usage, Mapping):
            self.tokens += usage["total_tokens"]
            if budget.price is not None:
                self.money += budget.price.of(usage["input_tokens"], usage["output_tokens"])

    def with_(self, other: _Spent) -> _Spent:
        """Both together."""
        both = _Spent(self.calls + other.calls)
        both.tokens, both.money = self.tokens + other.tokens, self.money + other.money
        return both
