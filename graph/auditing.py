"""The audit for whoever reads it elsewhere: each entry as one object, with the values that its digests stand for.

Invariant: a value is given only if it has the digest that the chain holds; what was erased, or cannot be unsealed
here, is left out, and the entry and its hash stand.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.audit import Entry
from standfast.checkpoint.store import Store
from standfast.tools.digests import call_digest


async def exported(store: Store, thread_id: str | None = None) -> AsyncIterator[dict[str, Any]]:
    """The entries of one thread, or of all: `entry`, `hash`, and `values` where there are.

    `values` are `arguments`, a `reason` or an `answer`.
    `hash` is SHA-256, in hex, over the bytes of the hash before it in the thread and RFC 8785's bytes of `entry`.
    """
    known: str | None = None
    arguments: dict[str, Any] = {}
    reasons: Mapping[str, str] = {}
    answers: Mapping[str, Any] = {}
    async for one in store.audit.entries(thread_id):
        if one.thread_id != known:
            known, arguments = one.thread_id, await _arguments(store, one.thread_id)
            reasons = await store.audit.reasons(one.thread_id)
            answers = await _answers(store, one.thread_id)
        values = _values(one, arguments, reasons)
        question = str(one.facts.get("question"))
        if question in answers:
            digest = store.sealer.digest(answers[question], where="answer")
            values |= {"answer": answers[question]} if digest == one.facts.get("answer_sha256") else {}
        yield {"entry": one.facts, "hash": one.hash, **({"values": values} if values else {})}


async def _arguments(store: Store, thread_id: str) -> dict[str, Any]:
    """The arguments of the thread's calls by their digest."""
    try:
        approvals = await store.approvals.list(thread_id=thread_id, state=None, limit=None)
    except errors.StorageError:
        return {}
    return {call_digest(one.operation, one.arguments): one.arguments for one in approvals}


async def _answers(store: Store, thread_id: str) -> Mapping[str, Any]:
    try:
        return await store.waits.answers(thread_id)
    except errors.StorageError:
        return {}


def _values(entry: Entry, arguments: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    digest = str(entry.facts.get("operation_digest"))
    if digest in arguments:
        values["arguments"] = arguments[digest]
    reason = reasons.get(str(entry.facts.get("decision_id")))
    if reason is not None and hashlib.sha256(reason.encode()).hexdigest() == entry.facts.get("reason_sha256"):
        values["reason"] = reason
    return values
