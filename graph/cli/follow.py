"""`standfast show THREAD --follow`: a run's events as they are stored, whichever process drives it."""

from __future__ import annotations

import json
from typing import Any

from standfast.checkpoint.run_events import RunEvent
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.output import local_time, say, shortened
from standfast.graph.cli.session import session
from standfast.graph.door import thread_id_of
from standfast.graph.runtime import AsyncRuntime


def follow(database: str | None, thread: str, *, after: int, as_json: bool) -> int:
    """Print the events of a thread's latest run from number `after` on, until the run ends or waits."""
    thread_id = thread_id_of(thread)

    async def inside(runtime: AsyncRuntime) -> None:
        async for event in runtime.astream(thread_id, after=after):
            say(_json(event) if as_json else _line(event))

    with session(database) as current:
        current.run(inside)
    return SUCCEEDED


def _line(event: RunEvent) -> str:
    moment = "" if event.at is None else local_time(event.at)
    what = " ".join(part for part in ("/".join(event.path), event.kind, _told(event.data)) if part)
    return f"{event.seq:6}  {moment}  {what}"


def _told(data: Any) -> str:
    if isinstance(data, dict):
        hidden = ("task", "message")
        data = {key: value for key, value in data.items() if key not in hidden and value not in (None, {}, [])}
        if set(data) == {"attempt", "text"}:
            return shortened(data["text"], 200)
    return "" if data in (None, {}) else shortened(json.dumps(data, ensure_ascii=False, default=str), 200)


def _json(event: RunEvent) -> str:
    at = None if event.at is None else event.at.isoformat()
    shown = {"seq": event.seq, "at": at, "kind": event.kind, "path": list(event.path), "data": event.data}
    return json.dumps(shown, ensure_ascii=False, default=str)
