"""Approvals and decisions as rows: what a person is asked, and what was decided, by whom, for exactly what.

Invariants: an approval is opened once for each operation and round, whatever crashes; a decision is a
compare-and-set that carries the digest its author saw, and sets the thread's due mark in its transaction.
The grant itself is checked and consumed where the operation begins (`begin_attempt_1`), never here.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from psycopg.rows import DictRow

from standfast.checkpoint import errors
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Connection, Database
from standfast.checkpoint.differences import Change, differences
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.operations import Call
from standfast.checkpoint.outbox import NewMessage, Outbox, message_id
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.shown import Shown
from standfast.checkpoint.statements import statements

_SQL = statements("approvals")

Kind = Literal["call", "outcome"]
"""What is asked: whether a call may be executed, or what became of one whose outcome is unknown."""
Verb = Literal["approve", "reject", "edit", "respond", "withdraw", "happened", "did_not_happen", "abandon"]
VERBS: Final[tuple[Verb, ...]] = ("approve", "reject", "edit", "respond")
OUTCOMES: Final[tuple[Verb, ...]] = ("happened", "did_not_happen", "abandon")
Source = Literal["list", "table", "claims"]
State = Literal["open", "approved", "rejected", "answered", "edited", "expired", "settled", "withdrawn"]
NEVER: Final = timedelta.max  # valid so long, a question does not expire
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC)  # what both Python and Postgres can hold, in every time zone


@dataclass(frozen=True)
class Terms:
    """Under what terms people decide: those of the policy's rule when the question is opened.

    `required` different people must approve, of `group` if one is named. Its members stand in `source`: a list (then
    `approvers` are its members now), the table of groups, or people's own claims. With `edit_needs_another` somebody
    other than the editor must approve an edit.
    """

    policy_version: str
    valid: timedelta
    required: int = 1
    group: str | None = None
    source: Source = "claims"
    approvers: tuple[str, ...] | None = None
    requester_may_decide: bool = True
    edit_needs_another: bool = False
    reason_required: bool = False
    allowed: tuple[Verb, ...] = VERBS
    remind_after: timedelta | None = None


@dataclass(frozen=True)
class Request:
    """What is asked about a call, by default whether it may be executed, and how it is shown.

    `proposed` are the arguments as the agent proposed them, `editor` is whose edit the call shows, if anybody's.
    """

    call: Call
    operation_version: str
    round: int
    terms: Terms
    description: str
    failed_checks: tuple[str, ...]
    requested_by: str
    proposed: Mapping[str, Any]
    editor: str | None = None
    kind: Kind = "call"


@dataclass(frozen=True)
class Decision:
    """What a person says to one approval. `id` is made before sending, so a repeat is recognised.

    `verified_by` is who established the principal's name, None nobody. `source` and `members` are of the approval's
    group now, as in `Terms`; None is as they were then.
    """

    verb: Verb
    principal: str
    vouched: bool
    digest: str
    verified_by: str | None = None
    groups: tuple[str, ...] = ()
    source: Source | None = None
    members: tuple[str, ...] | None = None
    reason: str | None = None
    arguments: Mapping[str, Any] | None = None
    operation_digest: str | None = None
    new_digest: str | None = None
    response: Any = None  # of an outcome that happened: its result
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True, repr=False)
class Approval(Shown):
    """One request for people's decision, with the decision once there is one, and the votes so far.

    Of the kind `outcome`, what is asked is what became of a call: `settled` is its decided state, `response` the
    result of one that happened. `policy_changed` is whether its rules have changed since it was asked: whoever looks at
    it from a runtime that knows the operation is told, else it is None.
    """

    id: str
    thread_id: str
    tenant: str
    run_id: str
    operation_id: str
    operation: str
    operation_version: str
    round: int
    state: State
    digest: str
    policy_version: str
    arguments: Mapping[str, Any]
    proposed: Mapping[str, Any]
    description: str
    failed_checks: tuple[str, ...]
    requested_by: str
    requested_at: datetime
    expires_at: datetime
    required: int = 1
    group: str | None = None
    source: Source = "claims"
    approvers: tuple[str, ...] | None = None
    requester_may_decide: bool = True
    edit_needs_another: bool = False
    reason_required: bool = False
    allowed: tuple[Verb, ...] = VERBS
    editor: str | None = None
    remind_at: datetime | None = None
    votes: tuple[str, ...] = ()
    decided_at: datetime | None = None
    used_at: datetime | None = None
    decision: str | None = None
    decided_by: str | None = None
    vouched: bool | None = None
    verified_by: str | None = None
    self_approved: bool | None = None
    reason: str | None = None
    response: Any = None
    kind: Kind = "call"
    policy_changed: bool | None = None

    def __repr__(self) -> str:
        by = f" by {self.decided_by}" if self.decided_by else f", valid until {self.expires_at:%Y-%m-%d %H:%M %Z}"
        return f"<Approval {self.id} {self.state}{by}: {self.operation}({_named(self.arguments)})>"

    @property
    def difference(self) -> list[Change]:
        """What people have changed of what the agent proposed."""
        return differences(self.proposed, self.arguments)


def _named(arguments: Mapping[str, Any]) -> str:
    given = (f"{name}={value!r}" for name, value in arguments.items())
    return ", ".join(one if len(one) <= 100 else f"{one[:97]}..." for one in given)


def approval_id(thread_id: str, operation_id: str, round_: int, kind: Kind = "call") -> str:
    """The id of an operation's approval: the same after any crash, short enough to type."""
    prefix = "apr-" if kind == "call" else "out-"
    return prefix + hashlib.sha256(f"{thread_id}\0{operation_id}\0{round_}".encode()).hexdigest()[:16]


class Approvals:
    """The rows of approvals and decisions."""

    def __init__(self, database: Database, sealer: Sealer, outbox: Outbox) -> None:
        self._database = database
        self._sealer = sealer
        self._outbox = outbox

    async def open(self, lease: Lease, request: Request, digest: Callable[[str, datetime], str]) -> Approval:
        """Open the approval, or find it as it was opened before. `digest` is given the tenant and the expiry.

        The message that tells of it is written in the same transaction.
        An earlier round of the operation that is still open is withdrawn: one question at a time.
        """
        call, terms = request.call, request.terms
        identifier = approval_id(lease.thread_id, call.id, request.round, request.kind)
        try:
            return await self.get(identifier)
        except errors.UnknownApproval:
            pass
        row = await self._database.fetch_one(_SQL["now"], {"thread": lease.thread_id})
        assert row is not None
        now = row["now"]
        expires_at = _LATEST if terms.valid == NEVER else now + terms.valid
        shown = {
            "description": request.description,
            "failed_checks": list(request.failed_checks),
            "proposed": dict(request.proposed),
        }
        params = {
            "thread": lease.thread_id,
            "epoch": lease.epoch,
            "id": identifier,
            "kind": request.kind,
            "run": call.run_id,
            "operation_id": call.id,
            "operation": call.name,
            "operation_version": request.operation_version,
            "namespace": call.namespace,
            "turn": call.turn,
            "index": call.index,
            "effect": call.effect,
            "round": request.round,
            "digest": digest(row["tenant"], expires_at),
            "operation_digest": call.digest,
            "policy_version": terms.policy_version,
            "required": terms.required,
            "group": terms.group,
            "source": terms.source,
            "approvers": None if terms.approvers is None else list(terms.approvers),
            "requester_may_decide": terms.requester_may_decide,
            "edit_needs_another": terms.edit_needs_another,
            "reason_required": terms.reason_required,
            "allowed": list(terms.allowed),
            "editor": request.editor,
            "arguments": self._seal_for_operation(lease.thread_id, call.id, call.arguments),
            "approval_arguments": self._seal(lease.thread_id, identifier, "arguments", dict(call.arguments)),
            "request": self._seal(lease.thread_id, identifier, "request", shown),
            "requested_by": request.requested_by,
            "expires_at": expires_at,
            "remind_at": None if terms.remind_after is None else now + terms.remind_after,
            "remind_after": terms.remind_after,
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

    async def states(self, thread_id: str, ids: Collection[str]) -> Mapping[str, str]:
        """The states of those approvals of a thread."""
        rows = await self._database.fetch(_SQL["states"], {"thread": thread_id, "ids": sorted(ids)})
        return {row["id"]: row["state"] for row in rows}

    async def granted(self, thread_id: str, operation_id: str) -> Sequence[Approval]:
        """The approvals of one operation that a person granted, oldest first."""
        rows = await self._database.fetch(_SQL["granted"], {"thread": thread_id, "operation_id": operation_id})
        return [self._approval(row) for row in rows]

    async def of_outcome(self, thread_id: str, operation_id: str) -> Sequence[Approval]:
        """The questions about what became of one operation, oldest first."""
        rows = await self._database.fetch(_SQL["of_outcome"], {"thread": thread_id, "operation_id": operation_id})
        return [self._approval(row) for row in rows]

    async def decide(self, approval: Approval, decision: Decision) -> Approval:
        """Decide, once. The decision and the wake-up are one transaction; no lease is needed.

        An approval that needs more votes comes back open. Raises `AlreadyDecided` (with what was decided, and by
        whom), `AlreadyVoted`, `ApprovalExpired`, `DigestMismatch` (with the difference), `NotPermitted`,
        `InvalidRequest` without a reason where one is required.
        """
        row = await self._database.fetch_one(_SQL["decide"], self._decision_params(approval, decision))
        assert row is not None
        if row["verdict"] == "unknown":
            raise errors.UnknownApproval(f"there is no approval {approval.id!r}", approval_id=approval.id)
        current = await self.get(approval.id)
        if row["verdict"] not in ("done", "counted", "again"):
            await self._refuse(row["verdict"], current, decision)
        reach("approval.decided")
        return current

    def _decision_params(self, approval: Approval, decision: Decision) -> dict[str, Any]:
        thread, identifier, edited = approval.thread_id, approval.id, decision.arguments
        at = ("decisions", thread, identifier, decision.id)
        return {
            "id": identifier,
            "decision_id": decision.id,
            "decision": decision.verb,
            "principal": decision.principal,
            "vouched": decision.vouched,
            "verified_by": decision.verified_by,
            "groups": list(decision.groups),
            "source": decision.source,
            "members": None if decision.members is None else list(decision.members),
            "seen": decision.digest,
            "reason": decision.reason,
            "response": None
            if decision.verb not in ("respond", "happened")
            else self._sealer.seal(decision.response, at=(*at, "response"), where="response"),
            "arguments": None if edited is None else self._sealer.seal(dict(edited), at=(*at, "arguments")),
            "approval_arguments": None if edited is None else self._seal(thread, identifier, "arguments", dict(edited)),
            "operation_arguments": None
            if edited is None
            else self._seal_for_operation(thread, approval.operation_id, edited),
            "operation_digest": decision.operation_digest,
            "digest": decision.new_digest,
        }

    async def _refuse(self, verdict: str, current: Approval, decision: Decision) -> None:
        known = {"approval_id": current.id, "thread_id": current.thread_id}
        name = f"approval {current.id!r}"
        if verdict == "expired":
            raise errors.ApprovalExpired(
                f"{name} expired at {current.expires_at:%Y-%m-%d %H:%M} UTC and counts as rejected; nothing was "
                "executed",
                **known,
            )
        if verdict == "voted":
            raise errors.AlreadyVoted(
                f"{decision.principal!r} has approved {name} before; it has {len(current.votes)} of "
                f"{current.required} votes, and one person has one",
                decision=current.state,
                by=decision.principal,
                **known,
            )
        if verdict == "decided":
            row = await self._database.fetch_one(_SQL["successor"], {"id": current.id})
            by = f" by {current.decided_by}" if current.decided_by else ""
            again = f"; it was asked again as {row['id']!r}" if row is not None else ""
            raise errors.AlreadyDecided(
                f"{name} is already {current.state}{by}; nothing was changed{again}",
                decision=current.decision or current.state,
                by=current.decided_by,
                successor=None if row is None else row["id"],
                **known,
            )
        if verdict == "stale":
            await self._refuse_stale(current, decision.digest)
        if verdict == "no_reason":
            raise errors.InvalidRequest(f"a decision about {name} needs a reason; it stays open", **known)
        why = {
            "not_allowed": f"it cannot be decided by {decision.verb!r}, only by {', '.join(current.allowed)}",
            "not_a_member": f"{decision.principal!r} is not in the group {current.group!r}",
            "requester": f"{decision.principal!r} made the request, and somebody else must decide",
            "editor": f"{decision.principal!r} made the edit, and somebody else must approve it",
        }[verdict]
        raise errors.NotPermitted(f"{name} stays open: {why}", why=verdict, by=decision.principal, **known)

    async def _refuse_stale(self, current: Approval, seen: str) -> None:
        row = await self._database.fetch_one(_SQL["by_digest"], {"thread": current.thread_id, "digest": seen})
        difference: list[Change] = []
        if row is None:
            what = "nothing that was shown for this thread had that digest"
        else:
            other = await self.get(row["id"])
            difference = differences(_bound(other), _bound(current))
            what = "since then changed: " + "; ".join(map(str, difference))
        raise errors.DigestMismatch(
            f"approval {current.id!r} is for {current.digest[:12]}, not for {seen[:12]} that this decision saw; "
            f"{what}; look at it again",
            approval_id=current.id,
            digest=current.digest,
            difference=difference,
        )

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

    async def remind(self, *, most: int = 100) -> int:
        """Tell again of what has been open for long enough; how many were told of.

        The message and the next time are one transaction, so that a reminder is neither lost nor sent twice.
        """

        async def work(conn: Connection) -> int:
            rows = await (await conn.execute(_SQL["to_remind"], {"most": most})).fetchall()
            for row in rows:
                payload = {
                    "approval_id": row["id"],
                    "thread_id": row["thread_id"],
                    "run_id": row["run"],
                    "operation": row["operation"],
                    "requested_by": row["requested_by"],
                    "expires_at": row["expires_at"],
                }
                identifier = message_id(row["id"], "reminder", row["remind_at"].isoformat())
                message = self._outbox.new(identifier, "approval.reminder", row["thread_id"], payload)
                for statement, values in self._outbox.send(row["thread_id"], row["run"], [message]):
                    await conn.execute(statement, values)
                await conn.execute(_SQL["reminded"], {"thread": row["thread_id"], "id": row["id"]})
            return len(rows)

        return await self._database.run(work)

    def _seal(self, thread_id: str, identifier: str, column: str, value: Any) -> bytes:
        return self._sealer.seal(value, at=("approvals", thread_id, identifier, column))

    def _seal_for_operation(self, thread_id: str, operation_id: str, arguments: Mapping[str, Any]) -> bytes:
        return self._sealer.seal(dict(arguments), at=("operations", thread_id, operation_id, "arguments"))

    def _approval(self, row: DictRow) -> Approval:
        thread, identifier = row["thread_id"], row["id"]
        at = ("approvals", thread, identifier)
        shown = self._sealer.unseal(row["request"], at=(*at, "request"))
        response = row["response"]
        return Approval(
            id=identifier,
            thread_id=thread,
            tenant=row["tenant"],
            run_id=row["run"],
            operation_id=row["operation_id"],
            operation=row["operation"],
            operation_version=row["operation_version"],
            round=row["round"],
            state=row["state"],
            digest=row["digest"],
            policy_version=row["policy_version"],
            arguments=self._sealer.unseal(row["arguments"], at=(*at, "arguments")),
            proposed=shown["proposed"],
            description=shown["description"],
            failed_checks=tuple(shown["failed_checks"]),
            requested_by=row["requested_by"],
            requested_at=row["requested_at"],
            expires_at=row["expires_at"],
            required=row["required"],
            group=row["group_name"],
            source=row["group_source"],
            approvers=None if row["approvers"] is None else tuple(row["approvers"]),
            requester_may_decide=row["requester_may_decide"],
            edit_needs_another=row["edit_needs_another"],
            reason_required=row["reason_required"],
            allowed=tuple(row["allowed"]),
            editor=row["editor"],
            remind_at=row["remind_at"],
            votes=tuple(row["votes"] or ()),
            decided_at=row["decided_at"],
            used_at=row["used_at"],
            decision=row["decision"],
            decided_by=row["principal"],
            vouched=row["vouched"],
            verified_by=row["verified_by"],
            self_approved=row["self_approved"],
            reason=row["reason"],
            response=None
            if response is None
            else self._sealer.unseal(response, at=("decisions", thread, identifier, row["decision_id"], "response")),
            kind=row["kind"],
        )


def _bound(approval: Approval) -> dict[str, Any]:
    """What an approval's digest covers, as far as it can differ within a thread."""
    return {
        "operation": approval.operation,
        "version": approval.operation_version,
        "policy": approval.policy_version,
        "expires_at": approval.expires_at.isoformat(),
        **{f"arguments.{name}": value for name, value in approval.arguments.items()},
    }
