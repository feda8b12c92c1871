"""One thread's door to artifacts, for its nodes and operations.

Invariant: what is put here the thread refers to from then on. No more than a piece of a file or stream is in memory
at a time; only `read` and `load` hold the whole.
"""

from __future__ import annotations

import asyncio
import mimetypes
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, BinaryIO, Final

from standfast.checkpoint import errors
from standfast.checkpoint.artifact import Artifact, Seen, seeing
from standfast.checkpoint.artifacts import PIECE, Artifacts, unknown
from standfast.checkpoint.codec import Codec

VALUE: Final = "application/vnd.standfast.value"
"""The media type of a value that is neither text nor bytes, as the codec writes it."""
TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"

Source = bytes | str | Path | AsyncIterable[bytes]
"""Where an artifact's bytes come from: bytes, text (as UTF-8), the path of a file, or a stream."""


class ThreadArtifacts:
    """The artifacts of the thread that is being driven."""

    def __init__(self, artifacts: Artifacts, codec: Codec, thread_id: str) -> None:
        self._artifacts = artifacts
        self._codec = codec
        self._thread_id = thread_id

    async def put(self, source: Source, *, name: str | None = None, media_type: str | None = None) -> Artifact:
        """Keep bytes, text, a file or a stream. The type is by default guessed from the name. Raises `InvalidRequest`.

        The same content again is not stored again.
        """
        return await put(self._artifacts, source, name=name, media_type=media_type, thread_id=self._thread_id)

    def pieces(self, artifact: Artifact) -> AsyncGenerator[bytes, None]:
        """The bytes, at most a mebibyte at a time. Raises `UnknownArtifact`, and `CorruptValue` at the end."""
        return self._artifacts.pieces(artifact)

    async def read(self, artifact: Artifact) -> bytes:
        """All bytes. Raises as `pieces` does."""
        return await self._artifacts.read(artifact)

    async def save(self, artifact: Artifact, path: Path) -> None:
        """Write the bytes to a file, which appears complete or not at all. Raises as `pieces` does."""
        await save(self._artifacts, artifact, path)

    async def load(self, artifact: Artifact) -> Any:
        """The result that became this artifact, as it was; of one that was put, its bytes or text."""
        data = await self.read(artifact)
        if artifact.media_type == VALUE:
            return self._codec.decode(data, where=artifact.name)
        return data.decode() if artifact.media_type == TEXT else data

    async def find(self, identifier: str) -> Artifact:
        """The thread's artifact whose id begins so, with at least 8 characters, as a model reads it.

        Raises `UnknownArtifact`.
        """
        return await self._artifacts.find(identifier, thread_id=self._thread_id)

    async def settle(self, result: Any, *, name: str) -> Any:
        """A result as it will be recorded: one that is too large becomes an artifact of this name.

        The thread refers to every artifact in it from now on. Raises `UnknownArtifact`.
        """
        seen: Seen = {}
        try:
            with seeing(seen):
                encoded = self._codec.encode(result)
        except errors.UnstorableValue:
            return result  # whoever records it says so
        if seen:
            await self._artifacts.refer_now(self._thread_id, seen)
        if len(encoded) <= self._artifacts.threshold or seen:
            return result
        if type(result) is bytes:
            return await self.put(result, name=name, media_type=BYTES)
        if type(result) is str and (text := _utf8(result)) is not None:
            return await self.put(text, name=name, media_type=TEXT)
        return await self.put(encoded, name=name, media_type=VALUE)


async def put(
    artifacts: Artifacts, source: Source, *, name: str | None, media_type: str | None, thread_id: str | None = None
) -> Artifact:
    """Keep bytes, text, a file or a stream, for a thread or for whoever refers to it within a day."""
    title = name or (source.name if isinstance(source, Path) else "unnamed")
    if not isinstance(title, str) or not title.isprintable() or len(title) > 255:
        raise errors.InvalidRequest(f"an artifact's name has 1 to 255 printable characters, not {title!r:.60}")
    guessed = TEXT if isinstance(source, str) else mimetypes.guess_type(title)[0] or BYTES
    kind = media_type or guessed
    if isinstance(source, str):
        source = source.encode()
    if isinstance(source, bytes):
        return await artifacts.put(source, name=title, media_type=kind, thread_id=thread_id)
    with await asyncio.to_thread(_opened, source) as file:
        if not isinstance(source, Path):
            async for piece in source:
                await asyncio.to_thread(file.write, piece)
        return await artifacts.put(file, name=title, media_type=kind, thread_id=thread_id)


async def save(artifacts: Artifacts, artifact: Artifact, path: Path) -> None:
    """Write an artifact's bytes to a file, which appears complete or not at all."""
    part = path.with_name(f"{path.name}.part")
    try:
        with await asyncio.to_thread(part.open, "wb") as file:
            async with aclosing(artifacts.pieces(artifact)) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


async def found(artifacts: Artifacts, artifact: Artifact | str) -> Artifact:
    """The artifact itself, or the one of this id. Raises `UnknownArtifact`."""
    if isinstance(artifact, Artifact):
        return artifact
    if not isinstance(artifact, str):
        raise unknown(repr(artifact))
    return await artifacts.find(artifact)


def _opened(source: Path | AsyncIterable[bytes]) -> BinaryIO:
    if not isinstance(source, Path):
        return tempfile.SpooledTemporaryFile(max_size=PIECE)  # type: ignore[return-value]
    try:
        return source.open("rb")
    except OSError as error:
        raise errors.InvalidRequest(f"the file {str(source)!r} cannot be read: {error.strerror}") from error


def _utf8(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None
