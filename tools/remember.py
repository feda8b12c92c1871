"""The operation by which an agent learns: a preference of the requester, for all his later threads.

A person allows each one: what is remembered steers every later run of the requester, and the words may come from a
document that wants to. Give it to `build_agent(operations=[*DEFAULT_OPERATIONS, remember])`; it is not built in.
"""

from __future__ import annotations

from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.memory import preferences_of
from standfast.tools.failures import InvalidArguments
from standfast.tools.operations import Effect, OperationContext, Policy, operation

_LONGEST = 500


@operation(policy=Policy(effect=Effect.IDEMPOTENT, approval=True))
async def remember(preference: str, context: OperationContext) -> dict[str, Any]:
    """Remember one lasting preference of the requester, in one sentence, for all later requests of theirs."""
    text = preference.strip()
    if not text or len(text) > _LONGEST:
        raise InvalidArguments(f"a preference has 1 to {_LONGEST} characters, not {len(text)}")
    if context.memory is None:
        raise errors.UsageError("this operation was called without memory; it works under Runtime")
    # The operation's id is the key: an attempt that is repeated changes nothing.
    await context.memory.aput(preferences_of(context.run.requested_by), context.operation_id, {"text": text})
    return {"remembered": text}
