"""Decisions and answers from outside: bound to what is open, committed with their wake-up, before anything is driven.

Invariant: a decision comes from a principal and carries the digest of what was seen; an answer names its question,
or is refused when more than one is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langgraph.types import Command

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval, Decision
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Thread
from standfast.checkpoint.waits import Wait
from standfast.graph.answers import Said, decision_of
from standfast.graph.door import text_of
from standfast.tools.approval_policy import ApprovalPolicy
from standfast.tools.digests import approval_digest, call_digest
from standfast.tools.operations import Registry
from standfast.tools.principals import Principal


async def decide(
    store: Store,
    operations: Registry | None,
    approval_id: str,
    said: Said,
    *,
    policy: ApprovalPolicy,
    as_: Principal,
    thread_id: str | None = None,
    seen_digest: str | None = None,
) -> Approval:
    """Record a decision; see `AsyncRuntime.adecide`."""
    approval = await store.approvals.get(approval_id)
    if thread_id is not None and approval.thread_id != thread_id:
        raise errors.UnknownApproval(f"thread {thread_id!r} has no approval {approval_id!r}", approval_id=approval_id)
    if as_.tenant != approval.tenant:
        raise errors.OtherTenant(
            f"there is no approval {approval_id!r} in the tenant {as_.tenant!r}", approval_id=approval_id
        )
    decision = Decision(
        verb=said.verb,
        principal=as_.name,
        vouched=as_.on_word,
        verified_by=as_.verified_by,
        digest=seen_digest or approval.digest,
        groups=tuple(sorted(as_.groups)),
        source=policy.source(approval.group),
        members=policy.members(approval.group),
        reason=None if said.reason is None else text_of(said.reason, "reason"),
        response=text_of(said.response, "response") if isinstance(said.response, str) else said.response,
    )
    if said.verb == "edit":
        decision = _edited(operations, approval, decision, _whole(approval, said))
    if said.verb == "happened":
        decision = replace(decision, response=fitting(operations, approval.operation, said.response))
    return await store.approvals.decide(approval, decision)


def require_tenant(known: Thread, who: Principal) -> None:
    """Raise `OtherTenant` for whoever is of another tenant than the thread."""
    if known.tenant != who.tenant:
        raise errors.OtherTenant(f"there is no thread {known.id!r} in the tenant {who.tenant!r}", thread_id=known.id)


def as_of_now(approval: Approval, operations: Registry | None, policy: ApprovalPolicy) -> Approval:
    """The same, with whether its rules have changed, if its operation is known here and it can still be used."""
    usable = approval.kind == "call" and approval.state in ("open", "approved") and approval.used_at is None
    if not usable or operations is None or approval.operation not in operations:
        return approval
    version = policy.version(operations.get(approval.operation))
    return replace(approval, policy_changed=version != approval.policy_version)


def fitting(operations: Registry | None, name: str, result: Any) -> Any:
    """A result from outside as the operation would have returned it, if it is known here. Raises `InvalidRequest`."""
    if operations is None or name not in operations:
        return result
    return operations.get(name).validate_result(result)


def _whole(approval: Approval, said: Said) -> Mapping[str, Any]:
    """All arguments of an edit, however it was said."""
    return said.arguments if said.arguments is not None else {**approval.arguments, **(said.changes or {})}


def _edited(operations: Registry | None, approval: Approval, decision: Decision, whole: Mapping[str, Any]) -> Decision:
    if operations is None:
        raise errors.InvalidRequest("this graph has no operations whose arguments could be edited")
    operation = operations.get(approval.operation)
    try:
        arguments = operation.validate(whole)
    except errors.OperationError as error:
        raise errors.InvalidRequest(f"the edit was not taken: {error}", approval_id=approval.id) from error
    return replace(
        decision,
        arguments=arguments,
        operation_digest=call_digest(operation.name, arguments),
        new_digest=approval_digest(
            tenant=approval.tenant,
            thread_id=approval.thread_id,
            operation_id=approval.operation_id,
            operation=operation.name,
            operation_version=approval.operation_version,
            arguments=arguments,
            policy_version=approval.policy_version,
            expires_at=approval.expires_at,
        ),
    )


async def answer(
    store: Store,
    operations: Registry | None,
    thread_id: str,
    given: Any,
    *,
    policy: ApprovalPolicy,
    as_: Principal,
) -> None:
    """Record an answer to the one open question, or a map of questions, or their ids, to answers."""
    if isinstance(given, Command):
        given = given.resume
    if isinstance(given, Mapping):
        given = {key.id if isinstance(key, Wait) else key: value for key, value in given.items()}
    known = {one.id: one for one in await _questions(store, thread_id)}
    if isinstance(given, Mapping) and given and given.keys() <= known.keys():
        # Also of questions that have been answered: a map that came second must not count as the answer of another.
        for identifier, value in given.items():
            await _answer_one(store, operations, known[identifier], value, thread_id, policy, as_)
        return
    waits = {one.id: one for one in known.values() if one.state == "open"}
    if not waits:
        thread = await store.threads.get(thread_id)
        raise errors.NothingToAnswer(
            f"thread {thread_id!r} asks nothing (it is {thread.status}); the answer was not used",
            thread_id=thread_id,
        )
    if len(waits) > 1:
        raise errors.AmbiguousAnswer(
            f"thread {thread_id!r} has {len(waits)} open questions; answer by id: {', '.join(sorted(waits))}",
            thread_id=thread_id,
            questions=tuple(sorted(waits)),
        )
    await _answer_one(store, operations, next(iter(waits.values())), given, thread_id, policy, as_)


async def _questions(store: Store, thread_id: str) -> list[Wait]:
    known = await store.threads.get(thread_id)
    assert known.run_id is not None
    waits = await store.waits.of_run(thread_id, known.run_id)
    return [one for one in waits if one.kind in ("approval", "question")]


async def _answer_one(
    store: Store,
    operations: Registry | None,
    wait: Wait,
    value: Any,
    thread_id: str,
    policy: ApprovalPolicy,
    as_: Principal,
) -> None:
    if wait.approval_id is not None:
        approval = await store.approvals.get(wait.approval_id)
        said = decision_of(value, approval)
        seen = wait.request["approval"]["digest"]  # what this question showed
        await decide(
            store, operations, approval.id, said, policy=policy, as_=as_, thread_id=thread_id, seen_digest=seen
        )
        return
    await store.waits.answer(thread_id, wait.id, value, as_.name, verified_by=as_.verified_by)
