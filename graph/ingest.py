"""From files and folders to a collection: read, cut into passages, stored, fixed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from standfast.checkpoint import errors
from standfast.checkpoint.documents import Documents, StoredDocument
from standfast.graph.bar import Bar, in_notebook
from standfast.tools.passages import passages
from standfast.tools.readers import ReadDocument, SkippedFile, count_files, read_documents


async def collect(
    documents: Documents,
    paths: Sequence[str | Path],
    *,
    report: Callable[[ReadDocument | SkippedFile], None] | None = None,
) -> str:
    """Store the documents below `paths` and return their collection's id; `report` hears of each file.

    Raises `InvalidRequest` for a path that does not exist, or when nothing readable was found.
    """

    def read() -> tuple[list[StoredDocument], list[SkippedFile]]:
        given = [Path(path) for path in paths]
        with Bar("Reading documents", unit="file", total=count_files(given)) as bar:
            # Whoever listens shows how far it is; a notebook is shown it, a program of somebody's own is not.
            return read_all(given, report or ((lambda _: bar.add()) if in_notebook() else lambda _: None))

    def read_all(
        given: Sequence[Path], tell: Callable[[ReadDocument | SkippedFile], object]
    ) -> tuple[list[StoredDocument], list[SkippedFile]]:
        stored, skipped = [], []
        for one in read_documents(given):
            tell(one)
            if isinstance(one, SkippedFile):
                skipped.append(one)
                continue
            texts = [passage.text for passage in passages(one.text)]
            stored.append(StoredDocument(one.name, one.sha256, one.media_type, one.title, one.size, texts))
        return stored, skipped

    found, skipped = await asyncio.to_thread(read)
    if not found:
        why = "; ".join(f"{one.name}: {one.reason}" for one in skipped[:3]) or "the folder is empty"
        raise errors.InvalidRequest(f"no readable document in {', '.join(map(str, paths))} ({why})")
    return await documents.store(found)
