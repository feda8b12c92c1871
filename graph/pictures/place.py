"""Where a thread stands in its graph: what it has finished, and where it waits, works, or goes on."""

from __future__ import annotations

from collections import Counter
from typing import Final

from standfast.checkpoint.threads import Status
from standfast.graph.pictures.diagram import Mark, Path
from standfast.graph.timeline import Timeline

_ENDED: Final = {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}


def place_of(timeline: Timeline) -> dict[Path, Mark]:
    """The marks of a thread's nodes, and of the nested graphs that they stand in."""
    spans = timeline.told.spans
    done = Counter(span.path for span in spans if span.until is not None)
    now: dict[Path, str] = {}
    status = timeline.thread.status
    if status not in _ENDED:
        last = timeline.told.drives[-1] if timeline.told.drives else None
        under_way = [one for one in spans if last and one.until is None and one.epoch == last.epoch]
        waiting = {wait.node for wait in timeline.waits if wait.state == "open"}
        roots = {one.path[0] for one in under_way if len(one.path) == 1}
        # A nested step that had finished before a crash begins again in the story, and is not told to end: of each
        # nested graph the step that began last is where it is, of several in one commit the innermost.
        for root in roots & waiting if waiting else roots:
            path = max(
                (one for one in under_way if one.path[0] == root), key=lambda one: (one.since, len(one.path))
            ).path
            how = "waiting" if waiting else "running" if status is Status.RUNNING else "next"
            now |= {path[:depth]: how for depth in range(1, len(path) + 1)}
    return {path: Mark(done[path], now.get(path, "")) for path in {*done, *now}}
