"""`settle`, `complete` and `emit`: what happened elsewhere, told by a person or by whoever has done it."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval, Verb
from standfast.graph.answers import Said
from standfast.graph.cli.decide import carry_on_after
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.limits import seconds_of
from standfast.graph.cli.output import counted, note, say_json
from standfast.graph.cli.session import session
from standfast.graph.door import text_of
from standfast.graph.runtime import AsyncRuntime


def settle(
    database: str | None,
    approval_id: str,
    verb: Verb,
    result: str | None,
    reason: str | None,
    *,
    graph: str | None,
    as_: str | None,
    digest: str | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Settle one unknown outcome, then carry its thread on. The exit code at the end."""
    if result is not None and verb != "happened":
        raise errors.InvalidRequest("--result is of a call that happened")
    response = None if result is None else _json(result, "--result")
    said = Said(verb, None if reason is None else text_of(reason, "reason"), response=response)
    with session(database, graph) as current:
        principal = current.principal(as_)

        async def work(runtime: AsyncRuntime) -> Approval:
            return await runtime.adecide(approval_id, said, as_=principal, seen_digest=digest)

        decided = current.run(work)
        note(f"{_SETTLED[verb].format(decided.operation)} ({decided.id}), says {principal.name}.")
        return carry_on_after(current, decided, principal, wait=wait, as_json=as_json)


def complete(
    database: str | None,
    operation_id: str,
    result: str | None,
    error: str | None,
    *,
    as_: str | None,
    as_json: bool,
) -> int:
    """Tell the end of an operation whose work went on elsewhere; nothing is driven."""
    if result is not None and error is not None:
        raise errors.InvalidRequest("give --result or --error, not both")
    value = None if result is None else _json(result, "--result")
    failed = None if error is None else text_of(error, "error")
    with session(database) as current:
        principal = current.principal(as_)

        async def work(runtime: AsyncRuntime) -> None:
            await runtime.acomplete(operation_id, value, error=failed, as_=principal)

        current.run(work)
    note(f"Operation {operation_id} has {'failed' if error is not None else 'succeeded'}, says {principal.name}.")
    if as_json:
        say_json({"operation_id": operation_id, "state": "failed" if error is not None else "succeeded"})
    return SUCCEEDED


def emit(
    database: str | None,
    name: str,
    payload: str | None,
    *,
    match: str | None,
    identifier: str | None,
    ttl: str,
    as_: str | None,
    as_json: bool,
) -> int:
    """Emit an event; nothing is driven."""
    given = None if payload is None else _json(payload, "the payload")
    key = None if match is None else _json(match, "--match")
    event_id = identifier or str(uuid.uuid4())
    lasting = timedelta(seconds=seconds_of(ttl) or 0)
    with session(database) as current:
        principal = current.principal(as_)
        ended = current.run(lambda one: one.aemit(name, given, id=event_id, match=key, ttl=lasting, as_=principal))
    if ended is None:
        note(f"Event {event_id} was emitted before; nothing was changed.")
    else:
        note(f"Event {name!r} ({event_id}) is kept; it ended {counted(ended, 'wait')}.")
    if as_json:
        say_json({"id": event_id, "name": name, "waits_ended": ended})
    return SUCCEEDED


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.InvalidRequest(f"{what} is not JSON: {error}; text stands in quotes") from error


_SETTLED = {
    "happened": "{} happened",
    "did_not_happen": "{} did not happen, and is tried again",
    "abandon": "{} is given up",
}
