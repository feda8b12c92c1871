"""Messages on their way to the outbox: collected while their cause is at work, written in its transaction.

Invariant: what a step or an attempt has sent is written if and when its own record is; what fails sends nothing.
A cause that runs again gives its messages the same ids, by their order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from standfast.checkpoint.database import Rider
from standfast.checkpoint.outbox import NewMessage, Outbox, message_id


class Messages:
    """What one cause sends. `cause` is its name within the thread."""

    def __init__(self, outbox: Outbox, thread_id: str, run_id: str, cause: tuple[str, ...]) -> None:
        self._outbox = outbox
        self._thread_id = thread_id
        self._run_id = run_id
        self._cause = cause
        self._new: list[NewMessage] = []

    def add(self, topic: str, payload: Any, key: str | None) -> str:
        """Collect a message, by default under its thread's key; its id. Raises `UnstorableValue`."""
        identifier = message_id(self._thread_id, *self._cause, len(self._new))
        self._new.append(self._outbox.new(identifier, topic, self._thread_id if key is None else key, payload))
        return identifier

    def clear(self) -> None:
        """The cause begins anew."""
        self._new.clear()

    def riders(self) -> list[Rider]:
        """The statements that write what has been collected."""
        return self._outbox.send(self._thread_id, self._run_id, self._new)


class StepMessages:
    """What the steps of one drive send, until their writes are stored. Steps may run in any thread."""

    def __init__(self, outbox: Outbox, thread_id: str, run_id: str) -> None:
        self._outbox = outbox
        self._thread_id = thread_id
        self._run_id = run_id
        self._lock = threading.Lock()
        self._of_task: dict[tuple[str, ...], tuple[int, Messages]] = {}

    def add(self, tasks: tuple[str, ...], attempt: int, topic: str, payload: Any, key: str | None) -> str:
        """Collect a message of the innermost of `tasks`; of its earlier attempts nothing is left. The message's id."""
        with self._lock:
            known = self._of_task.get(tasks)
            if known is None or known[0] != attempt:
                known = attempt, Messages(self._outbox, self._thread_id, self._run_id, ("step", tasks[-1]))
                self._of_task[tasks] = known
            return known[1].add(topic, payload, key)

    def take(self, task: str, *, failed: bool = False) -> Sequence[Rider]:
        """The statements for what a task and those inside it have sent; of a failed one none."""
        if not self._of_task:
            return ()
        with self._lock:
            ended = [tasks for tasks in self._of_task if task in tasks]
            taken = [self._of_task.pop(tasks)[1] for tasks in ended]
        return [] if failed else [rider for one in taken for rider in one.riders()]


of_attempt: ContextVar[Messages | None] = ContextVar("standfast.of_attempt", default=None)


@contextmanager
def sending(messages: Messages) -> Iterator[None]:
    """Let what is called inside send with the attempt that `messages` belong to."""
    token = of_attempt.set(messages)
    try:
        yield
    finally:
        of_attempt.reset(token)
