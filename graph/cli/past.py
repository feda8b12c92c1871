"""`history`, `state`, `diff` and `fork`: what a thread was, and going on from there on a new one.

A state is named THREAD or THREAD@CHECKPOINT; of a checkpoint's id the beginning is enough.
"""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import BaseMessage

from standfast.checkpoint import errors
from standfast.graph.cli.ask import object_of, show_and_ask
from standfast.graph.cli.carry import carry_on, take_graph_of
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.limits import budget_of_text, seconds_of
from standfast.graph.cli.outcome import show_result
from standfast.graph.cli.output import local_time, note, say, say_json, say_table, shortened
from standfast.graph.cli.session import Session, session
from standfast.graph.door import thread_id_of
from standfast.graph.history import Diff, HistoryEntry
from standfast.graph.result import Result
from standfast.graph.runtime import AsyncRuntime


def history(database: str | None, thread: str, *, limit: int, before: str | None, as_json: bool) -> int:
    """List a thread's checkpoints, newest first."""
    thread_id = thread_id_of(thread)
    with session(database) as current:
        found = current.run(lambda runtime: runtime.ahistory(thread_id, limit=limit, before=before))
        if as_json:
            say_json([vars(one) for one in found])
            return SUCCEEDED
        if not found:
            note("There are no checkpoints yet.")
            return SUCCEEDED
        rows = [
            (one.checkpoint_id, one.number, local_time(one.at), one.source, ", ".join(one.changed), _next(one))
            for one in found
        ]
        say_table(("CHECKPOINT", "STEP", "AT", "BY", "WROTE", "NEXT"), rows)
        note(f"\nTo look at one: {current.line(f'state {thread_id}@CHECKPOINT')}")
        note(f"To go on from one, on a new thread: {current.line(f'fork {thread_id}@CHECKPOINT')}")
    return SUCCEEDED


def state(database: str | None, place: str, *, at: str | None, graph: str | None, as_json: bool) -> int:
    """Show the values of one state."""
    thread, checkpoint = _place(place, at)
    with session(database, graph) as current:

        async def work(runtime: AsyncRuntime) -> Any:
            await _require_graph_of(current, runtime, thread)
            return await runtime.astate(thread, at=checkpoint)

        found = current.run(work)
    values = {name: _shown(value) for name, value in found.values.items()}
    if as_json:
        at = found.config["configurable"].get("checkpoint_id")
        say_json({"thread_id": thread, "checkpoint_id": at, "values": values, "next": list(found.next)})
        return SUCCEEDED
    for name, value in values.items():
        lines = value if isinstance(value, list) and name == "messages" else [value]
        for line in lines:
            say(f"{name}: {shortened(json.dumps(line, ensure_ascii=False, default=str), 200)}")
    say(f"next: {', '.join(found.next) or 'nothing'}")
    return SUCCEEDED


def diff(database: str | None, before: str, after: str, *, graph: str | None, as_json: bool) -> int:
    """Show what differs between two states."""
    first, second = _place(before), _place(after)
    with session(database, graph) as current:

        async def work(runtime: AsyncRuntime) -> Diff:
            for thread in dict.fromkeys((first[0], second[0])):
                await _require_graph_of(current, runtime, thread)
            return await runtime.adiff(first, second)

        found = current.run(work)
    if as_json:
        say_json({**vars(found), "changes": [vars(one) for one in found.changes]})
    elif not found.changes and found.next_before == found.next_after:
        note("They do not differ.")
    else:
        for one in found.changes:
            say(str(one))
        if found.next_before != found.next_after:
            say(f"next: {', '.join(found.next_before) or 'nothing'} -> {', '.join(found.next_after) or 'nothing'}")
    return SUCCEEDED


def fork(
    database: str | None,
    place: str,
    *,
    at: str | None,
    to: str | None,
    values: str | None,
    as_node: str | None,
    allow_effects: bool,
    deadline: str | None,
    budget: str | None,
    graph: str | None,
    as_: str | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Make a new thread from a state of another one, and drive it."""
    thread, checkpoint = _place(place, at)
    changes = None if values is None else object_of(values, "--values")
    left, most = seconds_of(deadline), budget_of_text(budget)
    with session(database, graph) as current:
        principal = current.principal(as_)

        async def work(runtime: AsyncRuntime) -> Result:
            await take_graph_of(current, runtime, thread)
            return await runtime.afork(
                thread,
                at=checkpoint,
                values=changes,
                as_node=as_node,
                to=to,
                allow_effects=allow_effects,
                deadline=left,
                budget=most,
                as_=principal,
            )

        forked = current.run(work)
        may = "may have new effects, each with its own approval" if allow_effects else "may only read"
        note(f"Thread {forked.thread_id} is a fork of {thread}; it {may}.")
        if not wait:
            show_result(current, forked, as_json=as_json)
            return SUCCEEDED
        return show_and_ask(current, carry_on(current, forked.thread_id), principal, as_json=as_json)


async def _require_graph_of(current: Session, runtime: AsyncRuntime, thread_id: str) -> None:
    """Refuse to show a state by the fields of another graph: most of it would be missing. Raises `InvalidRequest`."""
    thread = await runtime.store.threads.get(thread_id)
    if current.graph is None and thread.graph != runtime.name:
        graph = thread.graph if ":" in thread.graph else "MODULE:ATTR"
        raise errors.InvalidRequest(
            f"thread {thread_id!r} belongs to graph {thread.graph!r}, whose fields are not known here; "
            f"add --graph {graph}"
        )
    runtime.name = thread.graph


def _place(given: str, at: str | None = None) -> tuple[str, str | None]:
    thread, mark, checkpoint = given.rpartition("@")
    if at is not None and mark:
        raise errors.InvalidRequest(f"{given!r} names a checkpoint; write that, or --at {at}, not both")
    if not mark:
        return thread_id_of(given), at
    if not checkpoint or not thread:
        raise errors.InvalidRequest(f"write THREAD or THREAD@CHECKPOINT, not {given!r}; see: standfast history THREAD")
    return thread_id_of(thread), checkpoint


def _next(one: HistoryEntry) -> str:
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in one.next.items())


def _shown(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return {"type": value.type, "id": value.id, "content": value.content}
    if isinstance(value, list):
        return [_shown(one) for one in value]
    return value
