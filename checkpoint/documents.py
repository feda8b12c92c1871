"""Documents and collections: content-addressed texts in Postgres full-text search.

Invariant: a document is stored once under the SHA-256 of its file's bytes; a collection is the fixed set of
names and hashes that a run was accepted with. A run searches its own collection only, so that other runs'
documents are invisible to it and a folder that changes later changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from standfast.checkpoint.database import Connection, Database
from standfast.checkpoint.statements import statements

_SQL = statements("documents")


@dataclass(frozen=True)
class StoredDocument:
    """A document to store: its name in the collection, its hash, and its passages in order."""

    name: str
    sha256: str
    media_type: str
    title: str
    size: int
    passages: Sequence[str]


@dataclass(frozen=True)
class Member:
    """A document of a collection, without its text. `size` is in bytes."""

    name: str
    sha256: str
    title: str
    media_type: str
    size: int
    passages: int


class Documents:
    """The rows of documents, passages and collections."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def store(self, documents: Sequence[StoredDocument]) -> str:
        """Store what is new and return the collection's id; the same files give the same id."""
        names = "".join(f"{one.name}\0{one.sha256}\n" for one in sorted(documents, key=lambda one: one.name))
        identifier = hashlib.sha256(names.encode()).hexdigest()
        hashes = [one.sha256 for one in documents]

        async def work(conn: Connection) -> None:
            cursor = conn.cursor()
            await cursor.execute(_SQL["known"], {"hashes": hashes})
            known = {row["sha256"] for row in await cursor.fetchall()}
            for one in documents:
                if one.sha256 not in known:
                    await cursor.execute(_SQL["put_document"], vars(one))
                    rows = [
                        {"sha256": one.sha256, "index": index, "text": text} for index, text in enumerate(one.passages)
                    ]
                    await cursor.executemany(_SQL["put_passage"], rows)
            await cursor.execute(_SQL["put_collection"], {"id": identifier})
            await cursor.executemany(
                _SQL["put_member"],
                [{"id": identifier, "name": one.name, "sha256": one.sha256} for one in documents],
            )

        await self._database.run(work)
        return identifier

    async def members(self, collection_id: str | None) -> list[Member]:
        """The documents of a collection, by name; none for None."""
        rows = await self._database.fetch(_SQL["members"], {"collection": collection_id})
        return [Member(**row) for row in rows]

    async def search(self, collection_id: str | None, query: str, *, limit: int) -> list[dict[str, Any]]:
        """The best passages for a query: `document`, `sha256`, `passage`, `title`, `text`, `rank`."""
        params = {"collection": collection_id, "query": query.replace("\0", " "), "limit": limit}
        rows = await self._database.fetch(_SQL["search"], params)
        return [{**row, "rank": float(row["rank"])} for row in rows]

    async def passages(
        self, collection_id: str | None, document: str, *, first: int, last: int
    ) -> list[dict[str, Any]]:
        """Some passages of one document in order, by inclusive numbers: the keys of `search` without rank."""
        params = {"collection": collection_id, "document": document, "first": first, "last": last}
        return await self._database.fetch(_SQL["passages"], params)
