"""Who may say who is in which group.

Invariant: with an authenticator only whoever the policy names may, and nobody while it names none; what is refused
is told in the audit, in the chain of groups.
"""

from __future__ import annotations

from standfast.checkpoint import errors
from standfast.checkpoint.store import Store
from standfast.graph.door import text_of
from standfast.graph.identity import Identity
from standfast.graph.refusals import Attempted, audited
from standfast.tools.approval_policy import ApprovalPolicy
from standfast.tools.principals import Principal

_CHAIN = ""  # of the audit: that of groups


async def set_member(
    store: Store,
    identity: Identity,
    policy: ApprovalPolicy,
    group: str,
    name: str,
    *,
    member: bool,
    tenant: str,
    as_: Principal | None,
    token: str | None,
) -> bool:
    """Put somebody into a group, or take him out; see `AsyncRuntime.aset_member`."""
    named = {"group": group, "principal": name, "tenant": tenant}
    names = {what: text_of(given, f"name of the {what}") for what, given in named.items()}
    async with audited(store, Attempted(thread_id=_CHAIN)) as attempted:
        attempted.by = who = await identity.who(as_, token)
        if identity.authenticator is not None:
            await _require_admin(store, policy, who, names["tenant"])
        return await store.groups.set(
            names["group"],
            names["principal"],
            tenant=names["tenant"],
            member=member,
            by=who.name,
            verified_by=who.verified_by,
        )


async def _require_admin(store: Store, policy: ApprovalPolicy, who: Principal, tenant: str) -> None:
    admins = policy.group_admins
    if admins is None:
        raise errors.NotPermitted(
            "nobody may change groups: where there is an authenticator, the policy must say whose members may "
            "(group_admins: NAME); nothing was changed",
            why="no_admins",
            by=who.name,
        )
    if tenant != who.tenant:
        raise errors.NotPermitted(
            f"{who.name!r} is of the tenant {who.tenant!r} and changes no groups of {tenant!r}; nothing was changed",
            why="other_tenant",
            by=who.name,
        )
    if not await policy.is_member(admins, who, store.groups):
        raise errors.NotPermitted(
            f"{who.name!r} is not in the group {admins!r}, whose members change groups; nothing was changed",
            why="not_a_member",
            by=who.name,
        )
