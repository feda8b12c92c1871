"""`schedules add`, `list`, `pause`, `resume`, `remove` and `run`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from standfast.checkpoint.schedules import CatchUp, Overlap, Schedule
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.limits import budget_of_text, seconds_of
from standfast.graph.cli.output import local_time, note, say, say_json, say_table
from standfast.graph.cli.run import request_of
from standfast.graph.cli.session import session


def add(
    database: str | None,
    name: str,
    cron: str,
    request: str,
    *,
    timezone: str,
    catch_up: CatchUp,
    overlap: Overlap,
    documents: Sequence[Path],
    model: str | None,
    deadline: str | None,
    budget: str | None,
    priority: int,
    graph: str | None,
    as_: str | None,
    as_json: bool,
) -> int:
    """Add a schedule."""
    given = request_of(request, own_graph=graph is not None)
    limits: dict[str, Any] = {
        "deadline": seconds_of(deadline),
        "budget": budget_of_text(budget),
        "priority": priority,
    }
    with session(database, graph, strict=True) as current:
        options: dict[str, Any] = {"as_": current.principal(as_), "documents": documents, "model": model}
        added = current.run(
            lambda runtime: runtime.aadd_schedule(
                name, cron, given, timezone=timezone, catch_up=catch_up, overlap=overlap, **limits, **options
            )
        )
    if as_json:
        say_json(_json(added))
    else:
        say(f"Schedule {name}: next at {local_time(added.next_at)}. Workers fire it: standfast worker")
    return SUCCEEDED


def list_all(database: str | None, *, as_json: bool) -> int:
    """List the schedules."""
    with session(database) as current:
        principal = current.principal(None)
        found = current.run(lambda runtime: runtime.aschedules(as_=principal))
    if as_json:
        say_json([_json(one) for one in found])
    elif not found:
        note("There are no schedules.")
    else:
        rows = [
            (
                one.name,
                f"{one.cron} ({one.zone})",
                one.graph,
                "paused" if one.paused else local_time(one.next_at),
                "" if one.last_at is None else f"{one.last_verdict} {local_time(one.last_at)} {one.last_thread or ''}",
            )
            for one in found
        ]
        say_table(("NAME", "TIMES", "GRAPH", "NEXT", "LAST"), rows)
    return SUCCEEDED


def pause(database: str | None, name: str, as_: str | None) -> int:
    """Pause one."""
    with session(database) as current:
        principal = current.principal(as_)
        current.run(lambda runtime: runtime.apause_schedule(name, as_=principal))
    note(f"Schedule {name} is paused.")
    return SUCCEEDED


def resume(database: str | None, name: str, as_: str | None) -> int:
    """Resume one."""
    with session(database) as current:
        principal = current.principal(as_)
        resumed = current.run(lambda runtime: runtime.aresume_schedule(name, as_=principal))
    note(f"Schedule {name}: next at {local_time(resumed.next_at)}.")
    return SUCCEEDED


def remove(database: str | None, name: str, as_: str | None) -> int:
    """Remove one."""
    with session(database) as current:
        principal = current.principal(as_)
        current.run(lambda runtime: runtime.aremove_schedule(name, as_=principal))
    note(f"Schedule {name} is removed; its runs stay.")
    return SUCCEEDED


def run(database: str | None, name: str, as_: str | None, *, as_json: bool) -> int:
    """Submit its request now."""
    with session(database) as current:
        principal = current.principal(as_)
        result = current.run(lambda runtime: runtime.arun_schedule(name, as_=principal))
    if as_json:
        say_json({"thread_id": result.thread_id, "run_id": result.run_id, "status": result.status})
    else:
        say(f"Thread {result.thread_id}: {result.status}.")
    return SUCCEEDED


def _json(schedule: Schedule) -> dict[str, Any]:
    shown = {key: value for key, value in vars(schedule).items() if key not in ("settings", "fingerprint")}
    deadline, budget = schedule.deadline, schedule.budget
    shown["deadline"] = None if deadline is None else deadline.total_seconds()
    shown["budget"] = None if budget is None else budget.as_stored()
    return shown
