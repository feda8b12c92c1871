"""`artifacts list` and `get`: what threads keep outside their checkpoints."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path

from standfast.checkpoint import errors
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.output import local_time, note, note_cut, say_json, say_table
from standfast.graph.cli.session import session
from standfast.graph.door import thread_id_of
from standfast.graph.runtime import AsyncRuntime

_SHOWN = 16  # characters of an id


def list_all(database: str | None, *, thread: str | None, limit: int, as_json: bool) -> int:
    """List artifacts, the newest first."""
    thread_id = None if thread is None else thread_id_of(thread)
    with session(database) as current:
        found = current.run(lambda runtime: runtime.aartifacts(thread_id=thread_id, limit=limit))
    if as_json:
        say_json(
            [
                {
                    **vars(one.artifact),
                    "thread_id": one.thread_id,
                    "place": one.place or None,
                    "referred_at": one.referred_at,
                }
                for one in found
            ]
        )
    elif not found:
        note("There are no such artifacts." if thread else "There are no artifacts.")
    else:
        rows = [
            (
                one.artifact.sha256[:_SHOWN],
                f"{one.artifact.size:,}",
                one.artifact.media_type,
                one.thread_id,
                local_time(one.referred_at),
                one.artifact.name,
            )
            for one in found
        ]
        say_table(("ID", "BYTES", "TYPE", "THREAD", "SINCE", "NAME"), rows)
    note_cut(found, limit)
    return SUCCEEDED


def get(database: str | None, identifier: str, out: Path | None) -> int:
    """Write an artifact's bytes to a file, or to standard output."""
    if out is not None and not out.resolve().parent.is_dir():
        raise errors.InvalidRequest(f"there is no folder {str(out.resolve().parent)!r}; nothing was written")

    async def write(runtime: AsyncRuntime) -> str:
        artifact = await runtime.store.artifacts.find(identifier)
        if out is not None:
            await runtime.asave_artifact(artifact, out)
            return f"{artifact} is in {out}"
        async with aclosing(runtime.store.artifacts.pieces(artifact)) as pieces:
            async for piece in pieces:
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return str(artifact)

    with session(database) as current:
        note(current.run(write))
    return SUCCEEDED
