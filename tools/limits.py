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

from standfast.checkpoint.budget import Budget
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
        self, run: Run, operations: Operations, lease: Lease, clock: Callable[[], Awaitable[datetime]]
    ) -> None:
        self._run = run
        self._operations = operations
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
                return self._spent_up("steps", self._steps, self._budget.steps)
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
        """Count a call of the model. Raises `LimitReached` if the budget has none left."""
        budget = self._budget
        if budget.model_calls is None and budget.tokens is None and budget.money is None:
            return
        async with self._lock:
            spent = self._spent = self._spent or await self._read()
        for name, used, most in (
            ("model calls", spent.calls, budget.model_calls),
            ("tokens", spent.tokens, budget.tokens),
            ("money", spent.money, budget.money),
        ):
            if most is not None and used >= most:
                raise self._spent_up(name, used, most)
        spent.calls += 1

    def answered(self, answer: AIMessage) -> None:
        """Count what an answer has cost, as far as the model says so."""
        if self._spent is not None:
            self._spent.add(answer, self._budget)

    async def _read(self) -> _Spent:
        thread, run = self._run.thread_id, self._run.id
        spent = _Spent(await self._operations.model_calls(self._lease, run))
        if self._budget.tokens is not None or self._budget.money is not None:
            for one in await self._operations.list(thread, run):
                if one.kind == "model" and one.state == "succeeded":
                    spent.add(one.result, self._budget)
        return spent

    def _spent_up(self, what: str, used: object, most: object) -> LimitReached:
        thread = self._run.thread_id
        option = what.replace(" ", "_")
        return LimitReached(
            "budget",
            f"the budget of thread {thread!r} is spent ({used} of {most} {what}); what was done is kept. "
            f"To go on: standfast retry {thread} --budget {option}=MORE",
        )


class _Spent:
    """What a run has spent on its model."""

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
