"""`approvals` and `show`: looking at what is there. Nothing is changed."""

from __future__ import annotations

from typing import Any

from standfast.checkpoint.approvals import Approval
from standfast.graph.cli.approval import approval_json
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.output import local_time, note, say_json, say_table, shortened
from standfast.graph.cli.session import session
from standfast.graph.cli.show import show_timeline, timeline_json
from standfast.graph.door import thread_id_of


def approvals(database: str | None, *, graph: str | None, thread: str | None, everything: bool, as_json: bool) -> int:
    """List the approvals that can still be decided, or all."""
    if thread is not None:
        thread_id_of(thread)
    state = None if everything else "open"
    with session(database, graph) as current:

        async def work(runtime: Any) -> Any:
            if thread is not None:
                await runtime.store.threads.get(thread)
            return await runtime.aapprovals(thread_id=thread, state=state)

        found = current.run(work)
    if as_json:
        say_json([approval_json(one) for one in found])
    elif not found:
        note("No approval is open." if state else "There are no approvals.")
    else:
        rows = [
            (
                one.id,
                one.thread_id,
                one.operation,
                one.state + (", policy changed" if one.policy_changed else ""),
                one.requested_by,
                _when(one),
                shortened(next(iter(one.arguments.values()), "") if one.kind == "call" else one.description, 60),
            )
            for one in found
        ]
        say_table(("APPROVAL", "THREAD", "OPERATION", "STATE", "ASKED BY", "UNTIL / AT", ""), rows)
        if state:
            note("\nstandfast show THREAD has the details; approve, reject, edit and settle take the id.")
    return SUCCEEDED


def _when(one: Approval) -> str:
    if one.state != "open":
        return local_time(one.decided_at or one.expires_at)
    return local_time(one.expires_at) if one.kind == "call" else ""


def show(database: str | None, thread: str, *, graph: str | None, as_json: bool) -> int:
    """Show everything that is recorded about one thread."""
    thread_id = thread_id_of(thread)
    with session(database, graph) as current:
        found = current.run(lambda runtime: runtime.atimeline(thread_id))
        if as_json:
            say_json(timeline_json(found))
        else:
            show_timeline(current, found)
    return SUCCEEDED
