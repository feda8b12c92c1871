"""Approvals and decisions as rows: what a person is asked, and what was decided, by whom, for exactly what.

Invariants: an approval is opened once for each operation and round, whatever crashes; a decision is a
compare-and-set that carries the digest its author saw, and sets the thread's due mark in its transaction.
The grant itself is checked and consumed where the operation begins (`begin_attempt_1`), never here.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from psycopg.rows import DictRow

from standfast.checkpoint import errors
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Connection, Database
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.operations import Call
from standfast.checkpoint.outbox import NewMessage, Outbox, message_id
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements

_SQL = statements("approvals")

Verb = Literal["approve", "reject", "edit"]


@dataclass(frozen=True)
class Request:
    """What is asked: a call that wants to be executed, and how it is shown."""

    call: Call
    round: int
    policy_version: str
    valid: timedelta
    description: str
    failed_checks: tuple[str, ...]
    requested_by: str


@dataclass(frozen=True)
class Decision:
    """What a person says to one approval. `id` is made before sending, so a repeat is recognised."""

    verb: Verb
    principal: str
    vouched: bool
    digest: str
    reason: str | None = None
    arguments: Mapping[str, Any] | None = None
    operation_digest: str | None = None
    new_digest: str | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True)
class Approval:
    """One request for a person's decision, with the decision once there is one."""

    id: str
    thread_id: str
    run_id: str
    operation_id: str
    operation: str
    round: int
    state: Literal["open", "approved", "rejected", "expired", "withdrawn"]
    digest: str
    policy_version: str
    arguments: Mapping[str, Any]
    description: str
    failed_checks: tuple[str, ...]
    requested_by: str
    requested_at: datetime
    expires_at: datetime
    decided_at: datetime | None = None
    used_at: datetime | None = None
    decision: str | None = None
    decided_by: str | None = None
    vouched: bool | None = None
    self_approved: bool | None = None
    reason: str | None = None


def approval_id(thread_id: str, operation_id: str, round_: int) -> str:
    """The id of an operation's approval: the same after any crash, short enough to type."""
    return "apr-" + hashlib.sha256(f"{thread_id}\0{operation_id}\0{round_}".encode()).hexdigest()[:16]


class Approvals:
    """The rows of approvals and decisions."""

    def __init__(self, database: Database, sealer: Sealer, outbox: Outbox) -> None:
        self._database = database
        self._sealer = sealer
        self._outbox = outbox

    async def open(self, lease: Lease, request: Request, digest: Callable[[datetime], str]) -> Approval:
        """Open the approval, or find it as it was opened before. `digest` is given the expiry.

        The message that tells of it is written in the same transaction.
        An earlier round of the operation that is still open is withdrawn: one question at a time.
        """
        call = request.call
        identifier = approval_id(lease.thread_id, call.id, request.round)
        try:
            return await self.get(identifier)
        except errors.UnknownApproval:
            pass
        clock = await self._database.fetch_one(_SQL["now"])
        assert clock is not None
        expires_at = clock["now"] + request.valid
        shown = {"description": request.description, "failed_checks": list(request.failed_checks)}
        params = {
            "thread": lease.thread_id,
            "epoch": lease.epoch,
            "id": identifier,
            "run": call.run_id,
            "operation_id": call.id,
            "operation": call.name,
            "namespace": call.namespace,
            "turn": call.turn,
            "index": call.index,
            "effect": call.effect,
            "round": request.round,
            "digest": digest(expires_at),
            "operation_digest": call.digest,
            "policy_version": request.policy_version,
            "arguments": self._sealer.seal(
                dict(call.arguments), at=("operations", lease.thread_id, call.id, "arguments")
            ),
            "approval_arguments": self._seal(lease.thread_id, identifier, "arguments", dict(call.arguments)),
            "request": self._seal(lease.thread_id, identifier, "request", shown),
            "requested_by": request.requested_by,
            "expires_at": expires_at,
        }

        told = self._outbox.send(lease.thread_id, call.run_id, [self._opened(lease, identifier, request, expires_at)])

        async def work(conn: Connection) -> None:
            await conn.execute(_SQL["fence"], params)
            await conn.execute(_SQL["plan"], params)
            await conn.execute(_SQL["supersede"], params)
            await conn.execute(_SQL["open"], params)
            for statement, values in told:
                await conn.execute(statement, values)

        await self._database.run(work)
        reach("approval.opened")
        return await self.get(identifier)

    async def get(self, identifier: str) -> Approval:
        """One approval. Raises `UnknownApproval`."""
        row = None
        if identifier.isprintable() and len(identifier) <= 255:  # anything else was never an id, and may not be sent
            row = await self._database.fetch_one(_SQL["get"], {"id": identifier})
        if row is None:
            raise errors.UnknownApproval(
                f"there is no approval {identifier[:40]!r}; see: standfast approvals", approval_id=identifier
            )
        return self._approval(row)

    async def list(
        self, *, thread_id: str | None = None, state: str | None = "open", limit: int | None = 100
    ) -> list[Approval]:
        """Approvals, newest first; by default those that can still be decided. `limit=None` is all of them."""
        rows = await self._database.fetch(_SQL["list"], {"thread": thread_id, "state": state, "limit": limit})
        return [self._approval(row) for row in rows]

    async def granted(self, thread_id: str, operation_id: str) -> Sequence[Approval]:
        """The approvals of one operation that a person granted, oldest first."""
        rows = await self._database.fetch(_SQL["granted"], {"thread": thread_id, "operation_id": operation_id})
        return [self._approval(row) for row in rows]

    async def decide(self, approval: Approval, decision: Decision) -> Approval:
        """Decide, once. The decision and the wake-up are one transaction; no lease is needed.

        Raises `AlreadyDecided` (with what was decided, and by whom), `ApprovalExpired`, `DigestMismatch`.
        """
        thread, identifier = approval.thread_id, approval.id
        edited = decision.arguments is not None
        params = {
            "id": identifier,
            "decision_id": decision.id,
            "decision": decision.verb,
            "principal": decision.principal,
            "vouched": decision.vouched,
            "seen": decision.digest,
            "reason": decision.reason,
            "arguments": self._seal(thread, identifier, "arguments", dict(decision.arguments or {}))
            if edited
            else None,
            "operation_digest": decision.operation_digest,
            "digest": decision.new_digest,
        }
        row = await self._database.fetch_one(_SQL["decide"], params)
        assert row is not None
        verdict = row["verdict"]
        if verdict == "unknown":
            raise errors.UnknownApproval(f"there is no approval {identifier!r}", approval_id=identifier)
        current = await self.get(identifier)
        if verdict == "expired":
            raise errors.ApprovalExpired(
                f"approval {identifier!r} expired at {current.expires_at:%Y-%m-%d %H:%M} UTC and counts as "
                "rejected; nothing was executed",
                approval_id=identifier,
            )
        if verdict == "decided":
            raise errors.AlreadyDecided(
                f"approval {identifier!r} is already {current.state}"
                + (f" by {current.decided_by}" if current.decided_by else "")
                + "; nothing was changed",
                approval_id=identifier,
                decision=current.decision or current.state,
                by=current.decided_by,
            )
        if verdict == "stale":
            raise errors.DigestMismatch(
                f"approval {identifier!r} is now for {current.digest[:12]}, not for {decision.digest[:12]} that "
                "this decision saw; look at it again",
                approval_id=identifier,
                digest=current.digest,
            )
        reach("approval.decided")
        return current

    async def withdraw(self, lease: Lease, identifier: str) -> None:
        """Close a request that is asked again under another id."""
        params = {"thread": lease.thread_id, "epoch": lease.epoch, "id": identifier}

        async def work(conn: Connection) -> None:
            await conn.execute(_SQL["fence"], params)
            await conn.execute(_SQL["withdraw"], params)

        await self._database.run(work)

    async def expire_due(self, thread_id: str) -> None:
        """Reject what nobody decided in time."""
        await self._database.fetch(_SQL["expire"], {"thread": thread_id})

    def _opened(self, lease: Lease, identifier: str, request: Request, expires_at: datetime) -> NewMessage:
        """What those who may decide are told. The arguments stay here: who is told looks at them."""
        payload = {
            "approval_id": identifier,
            "thread_id": lease.thread_id,
            "run_id": request.call.run_id,
            "operation": request.call.name,
            "requested_by": request.requested_by,
            "expires_at": expires_at,
        }
        return self._outbox.new(message_id(identifier, "opened"), "approval.opened", lease.thread_id, payload)

    def _seal(self, thread_id: str, identifier: str, column: str, value: Any) -> bytes:
        return self._sealer.seal(value, at=("approvals", thread_id, identifier, column))

    def _approval(self, row: DictRow) -> Approval:
        thread, identifier = row["thread_id"], row["id"]
        at = ("approvals", thread, identifier)
        shown = self._sealer.unseal(row["request"], at=(*at, "request"))
        return Approval(
            id=identifier,
            thread_id=thread,
            run_id=row["run"],
            operation_id=row["operation_id"],
            operation=row["operation"],
            round=row["round"],
            state=row["state"],
            digest=row["digest"],
            policy_version=row["policy_version"],
            arguments=self._sealer.unseal(row["arguments"], at=(*at, "arguments")),
            description=shown["description"],
            failed_checks=tuple(shown["failed_checks"]),
            requested_by=row["requested_by"],
            requested_at=row["requested_at"],
            expires_at=row["expires_at"],
            decided_at=row["decided_at"],
            used_at=row["used_at"],
            decision=row["decision"],
            decided_by=row["principal"],
            vouched=row["vouched"],
            self_approved=row["self_approved"],
            reason=row["reason"],
        )
