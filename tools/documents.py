"""The tools that read: `search_documents` and `read_document`, over the collection that the run was accepted with."""

from __future__ import annotations

from typing import Any, Final

from standfast.tools.failures import InvalidArguments
from standfast.tools.operations import Effect, OperationContext, Policy, operation
from standfast.tools.retries import RetryPolicy

_MOST_PASSAGES: Final = 20


@operation(policy=Policy(effect=Effect.READ, retry=RetryPolicy()))
async def search_documents(query: str, context: OperationContext, limit: int = 5) -> list[dict[str, Any]]:
    """Search the run's documents. Returns the best passages, each with its document, its number and its text."""
    if not query.strip():
        raise InvalidArguments("query must have at least one word")
    limit = max(1, min(limit, _MOST_PASSAGES))
    return await context.documents.search(context.run.collection_id, query, limit=limit)


@operation(policy=Policy(effect=Effect.READ, retry=RetryPolicy()))
async def read_document(
    document: str, context: OperationContext, passage: int = 0, count: int = 1
) -> list[dict[str, Any]]:
    """Read `count` passages of a document from number `passage` on. `document` is a name that a search returned."""
    count = max(1, min(count, _MOST_PASSAGES))
    found = await context.documents.passages(
        context.run.collection_id, document, first=passage, last=passage + count - 1
    )
    if not found:
        members = await context.documents.members(context.run.collection_id)
        known = {one.name: one.passages for one in members}
        if document in known:
            raise InvalidArguments(f"{document!r} has passages 0 to {known[document] - 1}, not {passage}")
        raise InvalidArguments(f"there is no document {document!r}; there are: {', '.join(known) or 'none'}")
    return found
