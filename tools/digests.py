"""Digests of calls: what a decision is bound to and what the ledger compares. RFC 8785, then SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import rfc8785

from standfast.checkpoint import errors

_SAFE: Final = 2**53 - 1  # the largest integer that RFC 8785 takes: JSON numbers are doubles there


def operation_id(thread_id: str, run_id: str, namespace: str, turn: int, index: int, kind: str) -> str:
    """The durable id of one intended effect: from its place, never from the model. The key of every attempt."""
    place = "\0".join((thread_id, run_id, namespace, str(turn), str(index), kind))
    return "op-" + hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def call_digest(name: str, arguments: Mapping[str, Any]) -> str:
    """The digest of a tool's name and arguments; the order of keys does not matter.

    Raises `UnstorableValue` for arguments that are not JSON.
    """
    return _digest({"operation": name, "arguments": arguments})


def approval_digest(
    *,
    tenant: str,
    thread_id: str,
    operation_id: str,
    operation: str,
    operation_version: str,
    arguments: Mapping[str, Any],
    policy_version: str,
    expires_at: datetime,
) -> str:
    """The digest that a decision carries: everything that must not change between showing and doing."""
    return _digest(
        {
            "tenant": tenant,
            "thread": thread_id,
            "operation_id": operation_id,
            "operation": operation,
            "operation_version": operation_version,
            "arguments": arguments,
            "policy_version": policy_version,
            "expires_at": expires_at.astimezone(UTC).isoformat(),
        }
    )


def _digest(value: Mapping[str, Any]) -> str:
    try:
        return hashlib.sha256(rfc8785.dumps(_canonical(value))).hexdigest()
    except (rfc8785.CanonicalizationError, UnicodeError, RecursionError) as error:
        raise errors.UnstorableValue(f"the arguments of a call must be JSON: {error}", path="arguments") from error


def _canonical(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE:
        return {"$integer": str(value)}
    if isinstance(value, Mapping):
        return {key: _canonical(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(one) for one in value]
    return value
