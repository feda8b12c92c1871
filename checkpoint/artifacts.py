"""The rows of artifacts: contents by their SHA-256, and the threads that refer to them.

Invariant: an artifact is complete before anybody has its id; nothing that a thread refers to is deleted, and what
nobody refers to is, some time later. What is read is what was put, or an error: the hash is checked.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO, Final

from psycopg.rows import DictRow

from standfast.checkpoint import errors, places
from standfast.checkpoint.artifact import Artifact, Seen
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Connection, Database, Rider
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements

_SQL = statements("artifacts")
PIECE: Final = 1024 * 1024
"""Bytes of a chunk, and of what is in memory at a time."""
THRESHOLD: Final = 256 * 1024
GRACE: Final = timedelta(days=1)


@dataclass(frozen=True)
class KeptArtifact:
    """An artifact as one thread refers to it. `place` is a URL, or empty for Postgres."""

    artifact: Artifact
    thread_id: str
    place: str
    referred_at: datetime


class Artifacts:
    """The rows of artifacts. New bytes go to `place`, a URL for fsspec, or by default into Postgres.

    An operation's result of more than `threshold` bytes becomes one.
    """

    def __init__(
        self, database: Database, sealer: Sealer, place: str | None = None, *, threshold: int = THRESHOLD
    ) -> None:
        self._database = database
        self._sealer = sealer
        self.threshold = threshold
        self._place = "" if place is None else places.require_place(place)

    # -- putting

    async def put(
        self, source: BinaryIO | bytes, *, name: str, media_type: str, thread_id: str | None = None
    ) -> Artifact:
        """Keep the bytes of a seekable file, from its beginning, and let a thread refer to them.

        Without a thread they are kept for a day, for whoever refers to them then. Contents that are there already
        are not stored again.
        """
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        sha256, size = await asyncio.to_thread(_digest, file)
        artifact = Artifact(sha256, name, media_type, size)
        await self._keep(artifact, file, [] if thread_id is None else self.refer(thread_id, {sha256: artifact}))
        return artifact

    async def keep(self, artifact: Artifact, data: bytes) -> None:
        """Keep bytes whose digest and size are those of the artifact, for a day or whoever refers to them then."""
        await self._keep(artifact, io.BytesIO(data), [])

    async def _keep(self, artifact: Artifact, file: BinaryIO, riders: Sequence[Rider]) -> None:
        sha256 = artifact.sha256
        params = {"sha256": sha256, "size": artifact.size, "place": self._place, "seconds": GRACE.total_seconds()}

        async def begin(conn: Connection) -> str | None:
            row = await (await conn.execute(_SQL["begin"], params)).fetchone()
            assert row is not None
            elsewhere = None if row["stored"] else str(row["place"])
            if elsewhere == "":
                await self._put_chunks(conn, sha256, file)
                elsewhere = None
            for statement, values in riders:
                await conn.execute(statement, values)
            return elsewhere

        elsewhere = await self._database.run(begin)
        if elsewhere is not None:  # its row is there already: should this process die now, the sweep knows of it
            reach("artifact.placing")
            file.seek(0)
            await asyncio.to_thread(places.write, elsewhere, sha256, file, piece=PIECE)
            await self._database.fetch_none(_SQL["stored"], params)

    async def _put_chunks(self, conn: Connection, sha256: str, file: BinaryIO) -> None:
        file.seek(0)
        index = 0
        while piece := await asyncio.to_thread(file.read, PIECE):
            sealed = self._sealer.seal(piece, at=("artifact_chunks", sha256, str(index)))
            await conn.execute(_SQL["put_chunk"], (sha256, index, sealed))
            index += 1
        await conn.execute(_SQL["stored"], {"sha256": sha256})

    def refer(self, thread_id: str, seen: Seen, *, as_parts: bool = False) -> list[Rider]:
        """The statements by which a thread refers to artifacts: none for none. They raise `UnknownArtifact`.

        It does for as long as it is there; `as_parts`, for as long as a row of its checkpoints names them.
        """
        if not seen:
            return []
        labels = [
            self._sealer.seal([one.name, one.media_type], at=("artifact_references", thread_id, one.sha256))
            for one in seen.values()
        ]
        params = {"thread": thread_id, "contents": list(seen), "labels": labels, "as_parts": as_parts}
        return [(_SQL["refer"], params)]

    async def refer_now(self, thread_id: str, seen: Seen) -> None:
        """Let a thread refer to artifacts before a value that holds them is stored. Raises `UnknownArtifact`."""
        for statement, values in self.refer(thread_id, seen):
            await self._database.fetch(statement, values)

    # -- reading

    async def pieces(self, artifact: Artifact) -> AsyncGenerator[bytes, None]:
        """The bytes, at most `PIECE` at a time. Raises `UnknownArtifact`, and `CorruptValue` if they have changed."""
        row = await self._database.fetch_one(_SQL["place"], {"sha256": artifact.sha256})
        if row is None:
            raise unknown(artifact.sha256)
        digest = hashlib.sha256()
        async for piece in self._from_postgres(artifact) if row["place"] == "" else _from(row["place"], artifact):
            digest.update(piece)
            yield piece
        if digest.hexdigest() != artifact.sha256:
            raise errors.CorruptValue(
                f"the bytes of {artifact} are not those that were put; restore them from a backup",
                path=artifact.sha256,
            )

    async def _from_postgres(self, artifact: Artifact) -> AsyncIterator[bytes]:
        for index in range(-(-artifact.size // PIECE)):
            row = await self._database.fetch_one(_SQL["chunk"], {"sha256": artifact.sha256, "index": index})
            if row is None:
                raise unknown(artifact.sha256)
            yield self._sealer.unseal(row["bytes"], at=("artifact_chunks", artifact.sha256, str(index)))

    async def read(self, artifact: Artifact) -> bytes:
        """All bytes. Raises as `pieces` does."""
        return b"".join([piece async for piece in self.pieces(artifact)])

    async def list(
        self, *, thread_id: str | None = None, prefix: str | None = None, limit: int = 50
    ) -> Sequence[KeptArtifact]:
        """What threads refer to, the newest first; `prefix` is how the SHA-256 begins."""
        params = {"thread": thread_id, "prefix": prefix, "limit": limit}
        return [self._kept(row) for row in await self._database.fetch(_SQL["list"], params)]

    async def find(self, identifier: str, *, thread_id: str | None = None) -> Artifact:
        """The artifact whose id begins so. Raises `UnknownArtifact`, also if several do."""
        usable = 8 <= len(identifier) <= 64 and not identifier.strip("0123456789abcdef")
        found = await self.list(thread_id=thread_id, prefix=identifier, limit=1000) if usable else []
        if len({one.artifact.sha256 for one in found}) != 1:
            raise unknown(identifier)
        return found[0].artifact

    # -- sweeping

    async def sweep(self, *, most: int = 100) -> int:
        """Delete artifacts that nobody has referred to since their grace time; how many."""

        async def work(conn: Connection) -> int:
            before = await (await conn.execute(_SQL["sweep"], {"most": most})).fetchall()
            for row in before:  # their rows are locked: nobody refers to them, or puts them, meanwhile
                if row["place"]:
                    await asyncio.to_thread(places.delete, row["place"], row["sha256"])
            await conn.execute(_SQL["delete"], {"contents": [row["sha256"] for row in before]})
            return len(before)

        return await self._database.run(work)

    def _kept(self, row: DictRow) -> KeptArtifact:
        at = ("artifact_references", row["thread_id"], row["sha256"])
        name, media_type = self._sealer.unseal(row["label"], at=at)
        artifact = Artifact(row["sha256"], name, media_type, row["size"])
        return KeptArtifact(artifact, row["thread_id"], row["place"], row["created_at"])


def unknown(identifier: str) -> errors.UnknownArtifact:
    """The error for an id that is not there."""
    return errors.UnknownArtifact(
        f"there is no artifact {identifier[:64]!r}, or more than one that begins so; see: standfast artifacts list",
        artifact_id=identifier,
    )


async def _from(place: str, artifact: Artifact) -> AsyncIterator[bytes]:
    source = places.pieces(place, artifact.sha256, piece=PIECE)
    try:
        while piece := await asyncio.to_thread(next, source, b""):
            yield piece
    except FileNotFoundError as error:
        raise unknown(artifact.sha256) from error


def _digest(file: BinaryIO) -> tuple[str, int]:
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while piece := file.read(PIECE):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size
