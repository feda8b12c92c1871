"""The end of an operation, told from outside: by a person, a callback, or the attempt itself.

Invariant: the first to tell it counts, and takes no lease; who told what is in the audit, and so is who was refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.audit import Audit, Refusal
from standfast.checkpoint.database import Database
from standfast.checkpoint.plain_text import storable_text
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements

_SQL = statements("operations")


@dataclass(frozen=True)
class Completion:
    """The end of an operation, told from outside. `id` is made before sending, so that a repeat is recognised.

    `attempt`: which one ended so; None is the latest.
    """

    operation_id: str
    result: Any
    error: str | None
    principal: str
    vouched: bool
    attempt: int | None = None
    verified_by: str | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


async def complete(
    database: Database,
    sealer: Sealer,
    audit: Audit,
    completion: Completion,
    fit: Callable[[str, Any], Any],
) -> None:
    """Tell the end of an operation, from anywhere; the first to tell it counts.

    `fit(name, result)` is the result as the operation of this name would have returned it, and raises if it
    never would. Raises `UnknownOperationId`, `AlreadyCompleted`, `UnstorableValue`, and `CompletedLate` if nobody
    waits for the operation any more: its end is kept with its attempt then.
    """
    identifier = completion.operation_id
    row = await database.fetch_one(_SQL["place_of"], {"id": identifier}) if _sendable(identifier) else None
    if row is None:
        raise errors.UnknownOperationId(
            f"there is no operation {identifier[:40]!r}; see: standfast show THREAD", operation_id=identifier
        )
    thread, failed = row["thread_id"], completion.error is not None
    at = ("operations", thread, identifier, "result")
    result, sha256 = None, None
    if not failed:
        fitting = fit(row["name"], completion.result)
        result = sealer.seal(fitting, at=at, where="result")
        sha256 = sealer.digest(fitting, where="result")
    params = {
        "id": identifier,
        "attempt": completion.attempt,
        "completion": completion.id,
        "state": "failed" if failed else "succeeded",
        "result": result,
        "message": storable_text(completion.error),
        "sha256": sha256,
        "who": completion.principal,
        "vouched": completion.vouched,
        "verified_by": completion.verified_by,
    }
    row = await database.fetch_one(_SQL["complete"], params)
    assert row is not None
    refused: errors.StandfastError | None = None
    if row["verdict"] == "completed":
        refused = errors.AlreadyCompleted(
            f"operation {identifier!r} of thread {thread!r} has been completed by {row['detail']}; nothing was changed",
            operation_id=identifier,
            thread_id=thread,
            by=row["detail"],
        )
    elif row["verdict"] == "late":
        refused = errors.CompletedLate(
            f"nobody waits for operation {identifier!r} of thread {thread!r} any more (it is {row['detail']}); "
            f"the end is kept with its attempt, see: standfast show {thread}",
            operation_id=identifier,
            thread_id=thread,
            state=row["detail"],
        )
    if refused is None:
        return
    if completion.attempt is None:  # somebody's word; how an attempt ends by itself is nobody's
        by, vouched = completion.principal, completion.vouched
        error = type(refused).__name__
        await audit.refused(Refusal(thread, error, operation_id=identifier, by=by, vouched=vouched))
    raise refused


def _sendable(identifier: str) -> bool:
    """Whether it may be an id; anything else was never one, and may not be sent."""
    return identifier.isprintable() and len(identifier) <= 255
