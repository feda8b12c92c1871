"""What is due on a thread, decided from its checkpoint and the recorded answers alone.

Invariants: any process decides the same; answers are given by interrupt id, never as plain values; an answer is
given again as long as the state lists its question, because only the end of the whole call shows that it arrived;
an open question is raised again, never answered. What the ledger parked for is never answered either: when it has
come, the graph goes on, and the ledger looks into its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from langgraph.types import Command, Interrupt

from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.operations import PendingRetry
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Run
from standfast.checkpoint.waits import Wait
from standfast.graph.changed import Graph, refuse_if_changed
from standfast.tools.parking import PARKED, WAITS


@dataclass(frozen=True)
class Go:
    """Let the graph go on with this input."""

    input: Any


@dataclass(frozen=True)
class Ask:
    """Nothing is due: these are open."""

    waits: list[Wait]


class Done:
    """The graph has nothing left to do."""


Step = Go | Ask | Done


class Due:
    """Looks at one thread during one drive."""

    def __init__(self, store: Store, graph: Graph, saver: LeasedSaver, lease: Lease, run: Run) -> None:
        self._store = store
        self._graph = graph
        self._saver = saver
        self._lease = lease
        self._run = run
        self._given: set[str] = set()
        self._looked = False
        self._tried: set[str] = set()
        self._halted = False

    def halted(self) -> None:
        """The last step ended in a halt: its unfinished tasks have been tried, operations of it wait for a time."""
        self._halted = True

    async def next(self) -> tuple[Step, Mapping[str, Any]]:
        """What to do next, and the state's values. Raises `GraphChanged`."""
        first, self._looked = not self._looked, True
        if first and self._lease.head is None:
            return Go(self._run.input), {}  # a thread without checkpoints: there is nothing to look at
        thread = self._lease.thread_id
        await refuse_if_changed(self._graph, self._saver, thread)
        state = await self._graph.aget_state({"configurable": {"thread_id": thread}})
        if (state.metadata or {}).get("run_id") != self._run.id:
            return Go(self._run.input), {}
        listed = {one.id: (task.name, one) for task in state.tasks for one in task.interrupts}
        answers, come = await self._ended(listed)
        if (answers or come) and (first or (answers.keys() | come) - self._given):
            self._given |= answers.keys() | come
            reach("drive.resuming")
            return Go(Command(resume=answers) if answers else None), state.values
        unfinished = {task.id for task in state.tasks if not task.interrupts and task.result is None}
        retries: Sequence[PendingRetry] = ()
        if self._halted:
            self._halted = False
            retries = await self._store.operations.pending_retries(thread, self._run.id)
            self._tried = set() if any(one.due for one in retries) else unfinished
        if unfinished - self._tried:
            # Tried once: a finished task whose node returned nothing looks the same as one that crashed.
            self._tried |= unfinished
            return Go(None), state.values
        if not listed and not retries:
            return Ask([]) if unfinished else Done(), state.values
        asked = [wait for key in listed.keys() - answers.keys() for wait in self._waits(*listed[key])]
        return Ask([*asked, *map(self._retry, retries)]), state.values

    async def _ended(self, listed: Mapping[str, tuple[str, Interrupt]]) -> tuple[dict[str, Any], set[str]]:
        """Every recorded answer to a question that the state lists, and what has come that the ledger parked for."""
        if not listed:
            return {}, set()
        thread = self._lease.thread_id
        await self._store.approvals.expire_due(thread)
        await self._store.waits.end_due(self._lease)
        answers: dict[str, Any] = {}
        ended: dict[str, list[Wait]] = {}
        parked = {key for key, (_, question) in listed.items() if parked_for(question.value)}
        awaited = {one.id for one_of_them in listed.values() for one in self._waits(*one_of_them)}
        come: set[str] = set()
        for wait in await self._store.waits.named(thread, self._run.id, awaited):
            if wait.interrupt_id in parked:
                if wait.state != "open":
                    come.add(wait.id)
            elif wait.kind == "question" and wait.state == "answered":
                answers[wait.interrupt_id] = wait.answer
            elif wait.kind in ("timer", "event", "child"):
                ended.setdefault(wait.interrupt_id, []).append(wait)
        for identifier, waits in ended.items():
            if all(one.state != "open" for one in waits):
                answers[identifier] = await self._events_of(waits)
        asked = {key: approval for key, (_, one) in listed.items() if (approval := approval_of(one.value)) is not None}
        states = await self._store.approvals.states(thread, asked.values()) if asked else {}
        for identifier, approval in asked.items():
            state = states.get(approval, "open")
            if state == "open":
                continue
            if identifier in parked:
                come |= {one.id for one in self._waits(*listed[identifier])}
            else:
                answers[identifier] = {"approval": approval, "state": state}
        return answers, come

    async def _events_of(self, waits: list[Wait]) -> dict[str, Any]:
        """The answer to a question of timers, events and children: for each what came, if it was not withdrawn."""
        events = await self._store.events.by_seq([one.event_seq for one in waits if one.event_seq is not None])
        ended: list[dict[str, Any] | None] = []
        for one in sorted(waits, key=lambda one: one.position):
            event = events.get(one.event_seq or 0)
            child = one.answered_by if one.kind == "child" else None  # how it ended
            found = {"event": None if event is None else vars(event), "child": child}
            ended.append(None if one.state == "withdrawn" else found)
        return {WAITS: ended}

    def _retry(self, pending: PendingRetry) -> Wait:
        """The row for an operation's next attempt. No question of the graph: its task is simply run again."""
        identifier = f"retry-{pending.operation_id}-{pending.attempts}"
        return Wait(
            id=identifier,
            run_id=self._run.id,
            kind="timer",
            approval_id=None,
            node=pending.name,
            request={"retry": pending.operation_id, "after": pending.failure_class},
            state="open",
            answer=None,
            answered_by=None,
            opened_at=self._run.accepted_at,
            interrupt_id=identifier,
            until=pending.at,
        )

    def _waits(self, node: str, question: Interrupt) -> list[Wait]:
        """The rows for one open question of the graph."""
        approval, parked = approval_of(question.value), parked_for(question.value)
        wait = Wait(
            id=f"{question.id}/{parked}" if parked else question.id,
            run_id=self._run.id,
            kind="approval" if approval else "question",
            approval_id=approval,
            node=node,
            request=question.value,
            state="open",
            answer=None,
            answered_by=None,
            opened_at=self._run.accepted_at,
            interrupt_id=question.id,
        )
        described = question.value.get(WAITS) if isinstance(question.value, dict) else None
        if not isinstance(described, dict):
            return [wait]
        return [
            replace(
                wait,
                id=wait.id if parked else f"{question.id}/{position}",
                kind=one["kind"],
                request=one.get("request"),
                position=position,
                quorum=described["quorum"],
                name=one["name"],
                match=one["match"],
                until=one["until"],
            )
            for position, one in enumerate(described["waits"])
        ]


def approval_of(value: Any) -> str | None:
    """The id of the approval that an interrupt's value asks for, if it asks for one."""
    approval = value.get("approval") if isinstance(value, dict) else None
    identifier = approval.get("id") if isinstance(approval, dict) else None
    return identifier if isinstance(identifier, str) else None


def parked_for(value: Any) -> str | None:
    """What the ledger waits for, if it is the ledger that waits."""
    return value.get(PARKED) if isinstance(value, dict) else None


__all__: Final = ["Ask", "Done", "Due", "Go", "Step", "approval_of", "parked_for"]
