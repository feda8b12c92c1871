"""The part of a runtime that takes decisions and answers, from whoever may give them.

Invariant: what was decided or answered is committed, or refused and audited, before anything is driven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval, Verb
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Status
from standfast.graph import deciding
from standfast.graph.answers import Said
from standfast.graph.door import thread_id_of
from standfast.graph.identity import Identity
from standfast.graph.refusals import Attempted, audited
from standfast.graph.result import Result
from standfast.graph.rows import Rows
from standfast.tools.approval_policy import ApprovalPolicy
from standfast.tools.operations import Registry
from standfast.tools.principals import Principal


@dataclass(frozen=True)
class SaidOf:
    """A decision, the approval that it is about, and the digest of what was seen of that, if that is known."""

    approval_id: str
    said: Said
    seen_digest: str | None = None


class Answering:
    """Who acts, what he decides and answers, and what there is to decide."""

    identity: Identity
    _operations: Registry | None = None

    @property
    def store(self) -> Store:
        """The rows of the open database."""
        raise NotImplementedError

    @property
    def policy(self) -> ApprovalPolicy:
        """Who decides about which calls."""
        raise NotImplementedError

    async def acarry_on(self, thread_id: str) -> Result:
        """Drive what is due on a thread, or follow whoever does."""
        raise NotImplementedError

    async def aprincipal(self, as_: Principal | None = None, *, token: str | None = None) -> Principal:
        """Who acts, as this runtime believes it, with the groups that the database knows him in.

        Raises `NotAuthenticated` and `AuthenticatorUnavailable`.
        """
        who = await self.identity.who(as_, token)
        return replace(who, groups=who.groups | await self.store.groups.of(who.name, tenant=who.tenant))

    async def adecide(
        self,
        approval_id: str,
        said: Said,
        *,
        as_: Principal | None = None,
        token: str | None = None,
        thread_id: str | None = None,
        seen_digest: str | None = None,
    ) -> Approval:
        """Record a decision; nothing is driven. `seen_digest` is of what the decider saw, by default of now.

        An edit says all arguments, or changes to the proposed ones; it counts as the editor's approval of the result.
        """
        async with audited(self.store, Attempted(approval_id, decision=said.verb, digest=seen_digest)) as attempted:
            attempted.by = who = await self.aprincipal(as_, token=token)
            return await deciding.decide(
                self.store,
                self._operations,
                approval_id,
                said,
                policy=self.policy,
                as_=who,
                thread_id=thread_id,
                seen_digest=seen_digest,
            )

    async def aanswer(
        self, thread_id: object, answer: Any, *, as_: Principal | None = None, token: str | None = None
    ) -> None:
        """Record an answer as `aresume` does; nothing is driven, unless a driver died before it wrote its question."""
        thread = thread_id_of(thread_id)
        async with audited(self.store, Attempted(thread_id=thread)) as attempted:
            attempted.by = who = await self.aprincipal(as_, token=token)
            known = await self.store.threads.get(thread)
            deciding.require_tenant(known, who)
            if known.status is Status.QUEUED:
                await self.acarry_on(thread)
            await deciding.answer(self.store, self._operations, thread, answer, policy=self.policy, as_=who)

    async def aapprovals(
        self, *, thread_id: object = None, state: str | None = "open", limit: int | None = 100
    ) -> list[Approval]:
        """Approvals, newest first, at most `limit` of them (None: all); by default those that can be decided.

        `policy_changed` says of those that can still be used whether their rules are others now.
        """
        thread = None if thread_id is None else thread_id_of(thread_id)
        found = await self.store.approvals.list(thread_id=thread, state=state, limit=limit)
        return Rows(Approval, [deciding.as_of_now(one, self._operations, self.policy) for one in found])

    async def _admit(self, thread_id: str, *, as_: Principal | None, token: str | None) -> None:
        """Refuse whoever has no business with the thread. Raises `NotAuthenticated` and `OtherTenant`."""
        async with audited(self.store, Attempted(thread_id=thread_id)) as attempted:
            attempted.by = who = await self.aprincipal(as_, token=token)
            deciding.require_tenant(await self.store.threads.get(thread_id), who)


def decision_said(
    given: tuple[Verb, object] | None,
    *,
    reason: str | None,
    changes: Mapping[str, Any] | None,
    response: Any,
) -> SaidOf | None:
    """The decision among the arguments of a `resume`, if there is one: a verb, and an approval or its id.

    A forgotten or a stray argument is nobody's consent. Raises `InvalidRequest`.
    """
    verb, of = given if given is not None else (None, None)
    if verb is not None and not isinstance(of, Approval | str):
        raise errors.InvalidRequest(
            f"{verb}= takes an approval, such as result.approvals[0], or its id, not {type(of).__name__} {of!r:.60}"
        )
    if (verb == "edit") != bool(changes):
        raise errors.InvalidRequest(
            "edit= and changes= go together: changes is a mapping of at least one argument to its new value; to let "
            "the call go as it is, approve= it"
        )
    if (verb == "respond") != (response is not None):
        raise errors.InvalidRequest("respond= and response= go together: response is what the agent gets for the call")
    if verb is None:
        return None
    said = Said(verb, reason, changes=changes or None, response=response)
    return SaidOf(of.id, said, of.digest) if isinstance(of, Approval) else SaidOf(str(of), said)
