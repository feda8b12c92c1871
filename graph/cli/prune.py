"""`prune`: what has ended long ago goes, with a bar that tells how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from standfast.graph.bar import Bar
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.limits import seconds_of
from standfast.graph.cli.output import counted, note, say, say_json, say_table
from standfast.graph.cli.session import session
from standfast.graph.retention import WHY, Pruned
from standfast.graph.runtime import AsyncRuntime


def prune(
    database: str | None,
    older_than: str,
    *,
    states: Sequence[str] | None,
    graph: str | None,
    tenant: str,
    keep_checkpoints: int | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Delete ended threads, or cut histories, and say what went."""
    seconds = seconds_of(older_than)
    assert seconds is not None

    async def work(runtime: AsyncRuntime) -> Pruned:
        with Bar("Pruning", unit="thread") as bar:

            def report(more: int, total: int) -> None:
                bar.expect(total)
                bar.add(more)

            return await runtime.aprune(
                older_than=seconds,
                states=states,
                graph=graph,
                tenant=tenant,
                keep_checkpoints=keep_checkpoints,
                dry_run=dry_run,
                report=report,
            )

    with session(database) as current:
        done = current.run(work)
    if as_json:
        say_json(_json(done))
    else:
        _tell(done, cut=keep_checkpoints is not None)
    return SUCCEEDED


def _tell(done: Pruned, *, cut: bool) -> None:
    number = done.threads.total()
    if number:
        rows = [(graph, state, f"{count:,}") for (graph, state), count in sorted(done.threads.items())]
        say_table(("GRAPH", "STATE", "THREADS"), rows)
    what = "have older checkpoints cut off" if cut else "be deleted"
    if done.dry_run:
        say(f"{counted(number, 'thread')} would {what}. Nothing was changed.")
    elif cut:
        say(f"Of {counted(number, 'thread')} {counted(done.checkpoints, 'older checkpoint')} were deleted.")
    else:
        parts = {"thread": number, "artifact": done.artifacts, "document": done.documents}
        say(f"Deleted: {', '.join(counted(size, noun) for noun, size in parts.items())}. The audit stays.")
    for why, count in sorted(done.kept.items()):
        note(f"Kept: {counted(count, 'thread')} {WHY[why]}.")


def _json(done: Pruned) -> dict[str, Any]:
    threads = [
        {"graph": graph, "state": state, "threads": count} for (graph, state), count in sorted(done.threads.items())
    ]
    return {**vars(done), "threads": threads, "kept": dict(done.kept)}
