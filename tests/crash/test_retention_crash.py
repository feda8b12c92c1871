"""A process that is killed while it prunes leaves whole threads, and the next one goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from standfast.checkpoint.crashpoints import RETENTION_POINTS
from standfast.graph import Runtime, build_agent
from tests.conftest import Clock
from tests.crash.support.processes import Nursery
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel, script

THREADS = 25


@pytest.mark.parametrize("point", RETENTION_POINTS)
@pytest.mark.guarantee("G13")
def test_a_kill_in_the_middle_leaves_whole_threads_and_the_next_prune_ends_it(
    nursery: Nursery, database_url: str, clock: Clock, query: Callable[..., list[tuple[Any, ...]]], point: str
) -> None:
    keep = 1 if point == "retention.cutting" else None
    with Runtime(build_agent(model=ScriptedModel(), operations=OPERATIONS), database_url=database_url) as runtime:
        for number in range(THREADS):
            runtime.invoke(script("hello"), thread_id=f"t{number:02}")
        messages = runtime.state("t00").values["messages"]
        clock.move(timedelta(days=30))

        order = {"url": database_url, "scripted": True, "older_than": 86_400, "keep": keep}
        killed = nursery.run("prune", **order, kill=[point, 2])

        assert signal.SIGKILL == killed.signal
        left = {str(thread) for (thread,) in query("select id from threads")}
        gone = THREADS - len(left)
        assert {"retention.deleting": gone == 10, "retention.deleted": gone > 10, "retention.cutting": gone == 0}[point]
        for table in ("checkpoints", "runs"):
            assert left == {str(thread) for (thread,) in query(f"select distinct thread_id from {table}")}
        lengths = [len(runtime.history(thread)) for thread in sorted(left)]
        assert {"retention.cutting": 1}.get(point, 0) == sum(length == 1 for length in lengths)

        did = nursery.run("prune", **order).value["did"]

        assert len(left) - lengths.count(1) == did
        if keep is None:
            assert [] == query("select id from threads")
        else:
            assert [1] * THREADS == [len(runtime.history(thread)) for thread in sorted(left)]
            assert messages == runtime.state("t00").values["messages"]
