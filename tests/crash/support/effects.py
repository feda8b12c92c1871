"""One operation for each kind of effect, and how a run of them is seen through to its end.

Invariant: whoever answers for a person looks at the receiver's log, and at nothing else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from standfast.graph import (
    DidNotHappen,
    Effect,
    Happened,
    Operation,
    OperationContext,
    OutcomeContext,
    Pending,
    Policy,
    Principal,
    Runtime,
    operation,
)
from standfast.graph.answers import Said
from tests.crash.support.scripted_model import enter, post, shout

_DEADLINE_SECONDS: Final = 4.0  # after a kill somebody waits until it has passed
_PATIENCE_SECONDS: Final = 60.0
_KEEPER: Final = Principal.vouched("keeper@example.com")


async def _found(context: OutcomeContext) -> Mapping[str, Any] | None:
    """The report that was made under the call's key."""
    url = context.run.settings.reports_url
    assert url is not None
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.get(url, params={"idempotency_key": context.operation_id})
    answer.raise_for_status()
    reports = answer.json()["reports"]
    return reports[0] if reports else None


async def look(context: OutcomeContext) -> Happened | DidNotHappen:
    """What the receiver knows of a call."""
    found = await _found(context)
    return DidNotHappen() if found is None else Happened(f"noted {found['body']['text']}")


async def poll(handle: str, context: OutcomeContext) -> Happened | Pending:
    """Whether the work is done."""
    found = await _found(context)
    return Pending(handle) if found is None else Happened(f"noted {found['body']['text']}")


@operation(policy=Policy(effect=Effect.IDEMPOTENT, timeout=_DEADLINE_SECONDS))
async def jot_in_time(text: str, context: OperationContext) -> str:
    """Write a note without asking, within a time."""
    return await post(text, context)


@operation(policy=Policy(effect=Effect.AT_MOST_ONCE, timeout=_DEADLINE_SECONDS), reconcile=look)
async def shout_and_look(text: str, context: OperationContext) -> str:
    """Write a note where nobody knows keys, but can be asked."""
    return await post(text, context)


@operation(policy=Policy(effect=Effect.IDEMPOTENT), poll=poll)
async def commission(text: str, context: OperationContext) -> Pending:
    """Have a note written."""
    await post(text, context)
    return Pending(context.operation_id)


EFFECTS: Final[tuple[Operation, ...]] = (jot_in_time, enter, shout, shout_and_look, commission)


async def see_through(runtime: Runtime, thread: str, log: Path) -> dict[str, Any]:
    """Carry a run on until it ends, answering whatever a person is asked; what is known of it then."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            result = await runtime.aresume(thread)
            if result.status not in ("waiting", "queued"):
                break
            for question in result.approvals:
                said = Said("happened", response=f"noted {thread}") if _arrived(log, thread) else Said("did_not_happen")
                await runtime.adecide(question.id, said, as_=_KEEPER)
            if not result.approvals:
                await asyncio.sleep(0.05)
    operations = await runtime.store.operations.list(thread)
    return {
        "status": str(result.status),
        "reason": result.reason,
        "effects": (result.outcome or {}).get("effects", []),
        "operations": [
            {"name": one.name, "state": one.state, "result": one.result, "failure": one.failure_class}
            for one in operations
            if one.kind == "tool"
        ],
    }


def _arrived(log: Path, thread: str) -> bool:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return any(one["kind"] == "effect" and one["report"]["body"]["thread"] == thread for one in lines)
