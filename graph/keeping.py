"""The artifacts' part of a runtime: what threads keep outside their checkpoints.

Invariant: whatever is listed tells of all threads of the database; only what no thread refers to is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from standfast.checkpoint.artifact import Artifact
from standfast.checkpoint.artifacts import KeptArtifact
from standfast.checkpoint.store import Store
from standfast.graph.rows import Rows
from standfast.tools.artifacts import Source, found, put, save


class Keeping:
    """Artifacts, from outside of any run."""

    @property
    def store(self) -> Store:
        """The rows of the open database."""
        raise NotImplementedError

    async def aartifacts(self, *, thread_id: str | None = None, limit: int = 50) -> Sequence[KeptArtifact]:
        """What threads refer to, the newest first."""
        return Rows(KeptArtifact, await self.store.artifacts.list(thread_id=thread_id, limit=limit))

    async def aput_artifact(
        self, source: Source, *, name: str | None = None, media_type: str | None = None
    ) -> Artifact:
        """Keep bytes, text, a file or a stream for a request's input: a day, or as long as a thread refers to it."""
        return await put(self.store.artifacts, source, name=name, media_type=media_type)

    async def aread_artifact(self, artifact: Artifact | str) -> bytes:
        """The bytes of an artifact, by its id or the beginning of it. Raises `UnknownArtifact`, `CorruptValue`."""
        return await self.store.artifacts.read(await found(self.store.artifacts, artifact))

    async def asave_artifact(self, artifact: Artifact | str, path: Path) -> None:
        """Write an artifact to a file. Raises as `aread_artifact` does."""
        await save(self.store.artifacts, await found(self.store.artifacts, artifact), path)

    async def asweep_artifacts(self) -> int:
        """Delete what no thread has referred to for a day, as workers do by themselves; how many."""
        total = 0
        while swept := await self.store.artifacts.sweep():
            total += swept
        return total
