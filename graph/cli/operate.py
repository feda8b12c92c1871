"""`threads`, `runs`, `waits`, `workers`, `retry`, `release`, `park`: what an operator sees and does."""

from __future__ import annotations

from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.fleet import Unserved, WorkerRow
from standfast.checkpoint.threads import Thread
from standfast.checkpoint.waits import Kind
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.limits import budget_of_text, seconds_of
from standfast.graph.cli.output import counted, local_time, note, note_cut, say, say_json, say_table
from standfast.graph.cli.session import session
from standfast.graph.door import text_of, thread_id_of
from standfast.graph.runtime import AsyncRuntime

_SILENT_SECONDS = 60.0  # after so long a worker is taken for dead


def threads(database: str | None, *, state: str | None, graph: str | None, limit: int, as_json: bool) -> int:
    """List the threads that changed last."""
    with session(database) as current:
        found = current.run(lambda runtime: runtime.athreads(state=state, graph=graph, limit=limit))
    if as_json:
        say_json([_thread_json(one) for one in found])
    elif not found:
        note("There are no such threads." if state or graph else "There are no threads yet; standfast run begins one.")
    else:
        rows = [(one.id, one.status, one.graph, local_time(one.updated_at), _why(one)) for one in found]
        say_table(("THREAD", "STATUS", "GRAPH", "CHANGED", ""), rows)
    note_cut(found, limit)
    return SUCCEEDED


def runs(
    database: str | None, *, state: str | None, graph: str | None, thread: str | None, limit: int, as_json: bool
) -> int:
    """List the runs that were accepted last."""
    with session(database) as current:
        found = current.run(lambda runtime: runtime.aruns(state=state, graph=graph, thread_id=thread, limit=limit))
    if as_json:
        say_json([vars(one) for one in found])
    elif not found:
        note("There are no such runs." if state or graph or thread else "There are no runs yet.")
    else:
        rows = [
            (
                one.thread_id,
                one.number,
                one.status,
                f"{one.graph}@{one.version}",
                one.requested_by,
                local_time(one.accepted_at),
                one.reason or "",
            )
            for one in found
        ]
        say_table(("THREAD", "RUN", "STATUS", "GRAPH", "ASKED BY", "ACCEPTED", ""), rows)
    note_cut(found, limit)
    return SUCCEEDED


def waits(
    database: str | None, *, kind: Kind | None, graph: str | None, thread: str | None, limit: int, as_json: bool
) -> int:
    """List the open waits."""
    with session(database) as current:
        found = current.run(lambda runtime: runtime.aopen_waits(kind=kind, graph=graph, thread_id=thread, limit=limit))
    if as_json:
        say_json([vars(one) for one in found])
    elif not found:
        note("Nothing waits.")
    else:
        rows = [
            (
                one.thread_id,
                one.kind,
                one.name or one.approval_id or one.id,
                one.node,
                local_time(one.opened_at),
                "" if one.until is None else local_time(one.until),
            )
            for one in found
        ]
        say_table(("THREAD", "KIND", "FOR", "AT", "SINCE", "UNTIL"), rows)
    note_cut(found, limit)
    return SUCCEEDED


def workers(database: str | None, *, as_json: bool) -> int:
    """List the workers, and what no worker serves."""

    async def look(runtime: AsyncRuntime) -> tuple[list[WorkerRow], list[Unserved]]:
        return list(await runtime.aworkers()), list(await runtime.aunserved())

    with session(database) as current:
        found, unserved = current.run(look)
    if as_json:
        say_json({"workers": [vars(one) for one in found], "unserved": [vars(one) for one in unserved]})
        return SUCCEEDED
    if found:
        rows = [
            (
                one.name,
                "alive" if one.silent_seconds < _SILENT_SECONDS else f"silent for {_age(one.silent_seconds)}",
                ", ".join(one.graphs),
                one.concurrency,
                local_time(one.started_at),
            )
            for one in found
        ]
        say_table(("WORKER", "STATE", "GRAPHS", "AT A TIME", "STARTED"), rows)
    else:
        note("There are no workers; standfast worker starts one.")
    for lack in unserved:
        say(
            f"No worker serves {lack.graph}@{lack.version}: {counted(lack.runs, 'run')} due, "
            f"the oldest for {_age(lack.oldest_seconds)}"
        )
    return SUCCEEDED


def retry(database: str | None, thread: str, *, deadline: str | None, budget: str | None, as_json: bool) -> int:
    """Make a run that needs attention, or has ended at its limit, due again."""
    thread_id, left, more = thread_id_of(thread), seconds_of(deadline), budget_of_text(budget)
    with session(database) as current:
        known = current.run(lambda runtime: runtime.aretry(thread_id, deadline=left, budget=more))
        note(f"Thread {thread_id} is due again. Without a worker: {current.line(f'resume {thread_id}')}")
    if as_json:
        say_json(_thread_json(known))
    return SUCCEEDED


def release(database: str | None, thread: str, *, yes: bool, as_json: bool) -> int:
    """Break a lease whose holder is known to be dead."""
    thread_id = thread_id_of(thread)
    with session(database) as current:

        async def work(runtime: AsyncRuntime) -> str:
            known = await runtime.store.threads.get(thread_id)
            if not yes and known.worker is not None:
                raise errors.InvalidRequest(
                    f"thread {thread_id!r} is driven by {known.worker}; its lease runs out by itself when that "
                    "process dies. If you know that it is dead, add --yes; if it lives, its work is thrown away"
                )
            return await runtime.arelease(thread_id)

        holder = current.run(work)
        note(f"The lease of {holder} is taken away; thread {thread_id} is due.")
        if as_json:
            say_json({"thread_id": thread_id, "held_by": holder})
    return SUCCEEDED


def park(database: str | None, thread: str, reason: str, *, as_json: bool) -> int:
    """Put a run aside."""
    thread_id, why = thread_id_of(thread), text_of(reason, "reason")
    with session(database) as current:
        current.run(lambda runtime: runtime.apark(thread_id, why))
        note(f"Thread {thread_id} is put aside. To go on: {current.line(f'retry {thread_id}')}")
        if as_json:
            say_json({"thread_id": thread_id, "status": "needs_attention", "reason": why})
    return SUCCEEDED


def _thread_json(one: Thread) -> dict[str, Any]:
    return {
        "thread_id": one.id,
        "uuid": one.uuid,
        "status": one.status,
        "reason": one.reason,
        "graph": one.graph,
        "version": one.version,
        "run_id": one.run_id,
        "worker": one.worker,
        "crashes": one.crashes,
        "created_at": one.created_at,
        "updated_at": one.updated_at,
    }


def _why(one: Thread) -> str:
    if one.status == "running":
        return f"by {one.worker}"
    return one.reason or ""


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
