"""What was said about an approval or a question and refused goes into the audit, the error on to whoever said it.

Invariant: a refusal is recorded before its error is raised, and nothing else was changed then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from standfast.checkpoint import errors
from standfast.checkpoint.audit import Refusal
from standfast.checkpoint.store import Store
from standfast.tools.principals import Principal

_OF_NO_APPROVAL: Final = (
    errors.NotAuthenticated,
    errors.NotPermitted,
    errors.OtherTenant,
    errors.AlreadyDecided,
    errors.UnknownQuestion,
)
_NOT_REFUSED: Final = (errors.UnknownApproval, errors.StorageError, errors.ConfigurationError, errors.UsageError)


@dataclass
class Attempted:
    """What is known so far of what is said; `by` once it is established."""

    approval: str | None = None
    thread_id: str | None = None
    decision: str | None = None
    digest: str | None = None
    by: Principal | None = None


@asynccontextmanager
async def audited(store: Store, said: Attempted) -> AsyncIterator[Attempted]:
    """Record what is refused inside. An approval that is not known has no thread whose audit could tell of it."""
    try:
        yield said
    except errors.StandfastError as error:
        approval = said.approval or error.data.get("approval_id")
        if isinstance(error, _NOT_REFUSED) or (approval is None and not isinstance(error, _OF_NO_APPROVAL)):
            raise
        thread = said.thread_id
        if approval is not None:
            thread = (await store.approvals.get(approval)).thread_id
        assert thread is not None
        refusal = Refusal(
            thread,
            type(error).__name__,
            approval=approval,
            decision=said.decision,
            by=None if said.by is None else said.by.name,
            vouched=None if said.by is None else said.by.on_word,
            digest=said.digest,
        )
        await store.audit.refused(refusal)
        raise
