"""Workers die anywhere between the making of a child and the joining of its end: no child is lost or doubled."""

from __future__ import annotations

import signal
import uuid
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from standfast.graph import Runtime
from tests.crash.support.own_graphs import family
from tests.crash.support.processes import Nursery

pytestmark = [pytest.mark.guarantee("G1"), pytest.mark.guarantee("G2"), pytest.mark.guarantee("G7")]
PARTS = ["a", "bb", "ccc", "dddd", "eeeee"]
POINTS = [
    ("child.spawning", 1),
    ("child.spawned", 1),
    ("child.spawning", 2),
    ("child.spawned", 3),
    ("drive.parking", 1),
    ("drive.parked", 1),
    ("drive.resuming", 1),
    ("drive.ending", 1),
    ("drive.ended", 1),
    ("drive.ended", 3),
    ("drive.parking", 2),
]


def rows(url: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, options="-c search_path=standfast") as conn:
        return conn.execute(statement, values).fetchall()  # type: ignore[arg-type]


@pytest.mark.parametrize(("point", "number"), POINTS)
def test_a_crash_between_spawn_and_join_neither_loses_nor_doubles_a_child(
    nursery: Nursery, shared_database_url: str, tmp_path: Path, point: str, number: int
) -> None:
    thread = f"{point}-{number}-{uuid.uuid4().hex[:6]}"

    async def submit() -> None:
        async with Runtime(family, database_url=shared_database_url) as runtime:
            await runtime.asubmit({"name": "all", "parts": PARTS}, thread_id=thread)

    anyio.run(submit)
    order: dict[str, Any] = {
        "url": shared_database_url,
        "thread": thread,
        "graph": "tests.crash.support.own_graphs:family",
        "env": {"STANDFAST_TEST_LOG": str(tmp_path / "log")},
    }
    assert signal.SIGKILL == nursery.run("serve", kill=(point, number), **order).signal
    assert {"status": "succeeded", "sizes": [1, 2, 3, 4, 5]} == picked(nursery.run("serve", **order).value["did"])
    children = "select state, count(*) from runs where parent_thread_id = %s group by state"
    assert [("succeeded", len(PARTS))] == rows(shared_database_url, children, thread)
    assert {f"measured {one}" for one in PARTS} == set((tmp_path / "log").read_text().splitlines())


def picked(told: dict[str, Any]) -> dict[str, Any]:
    return {key: told[key] for key in ("status", "sizes")}
