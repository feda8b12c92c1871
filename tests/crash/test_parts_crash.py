"""A process that dies while a large part of a state is on its way loses nothing, and leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from standfast.graph import Runtime
from tests.conftest import Clock
from tests.crash.support.own_graphs import desk, document
from tests.crash.support.processes import Nursery

pytestmark = [pytest.mark.guarantee("G13"), pytest.mark.guarantee("G2")]
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("point", "number"),
    [("parts.put", number) for number in (1, 2, 3, 6)]
    + [("saver.fenced", number) for number in (1, 2, 3, 4)]
    + [("saver.committed", number) for number in (1, 2, 3)],
)
def test_a_kill_at_any_moment_keeps_every_part_that_a_row_names_and_no_other(
    nursery: Nursery,
    database_url: str,
    clock: Clock,
    query: Callable[..., list[tuple[Any, ...]]],
    tmp_path: Path,
    point: str,
    number: int,
) -> None:
    order: dict[str, Any] = {
        "url": database_url,
        "thread": "t",
        "graph": "tests.crash.support.own_graphs:desk",
        "env": {"STANDFAST_TEST_LOG": str(tmp_path / "log")},
    }
    assert signal.SIGKILL == nursery.run("ask", request={"sizes": []}, kill=(point, number), **order).signal
    missing = "select p from {0}, unnest(parts) p except select sha256 from artifact_references where thread_id = 't'"
    for table in ("checkpoint_blobs", "checkpoint_writes"):
        assert [] == query(missing.format(table))
    clock.move(2 * DAY)  # what had been put and not referred to is swept before anybody goes on
    with Runtime(desk(), database_url=database_url) as runtime:
        runtime.sweep_artifacts()
        assert "succeeded" == nursery.run("resume", **order).value["did"]["status"]
        assert "measured" == (tmp_path / "log").read_text().splitlines()[-1]
        clock.move(2 * DAY)
        runtime.sweep_artifacts()
        values = runtime.state("t", whole=True).values
    assert ([300_000] * 3, document(2)) == (values["sizes"], values["document"])
    named = "select unnest(parts) from checkpoint_blobs union select unnest(parts) from checkpoint_writes"
    assert sorted(query(named)) == sorted(query("select sha256 from artifacts"))
