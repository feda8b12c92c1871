"""A crowd that waits costs those beside it nothing: to claim a thread, to wake one, or in a worker's memory.

Two databases of one server, one empty and one crowded, each with a worker process of its own, are measured in turns, so
that whatever else the machine does meets both. STANDFAST_WAITING_THREADS=100000 is the long form (`make scale`).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil  # type: ignore[import-untyped, unused-ignore]
import psycopg
import pytest

from standfast.graph import Runtime
from tests.conftest import at_database
from tests.crash.support.fleet import Forge
from tests.scale import waiting_graph
from tests.servers.fixtures import Eventually

THREADS: Final = int(os.environ.get("STANDFAST_WAITING_THREADS", "10000"))
ROUNDS: Final = 25
RATIO: Final = 1.5
MEMORY: Final = 1.1
PLACE: Final = "tests.scale.waiting_graph"


@pytest.fixture
def urls(server_url: str, template: str, crowd: Any) -> Iterator[tuple[str, str]]:
    names = [f"{kind}_{uuid.uuid4().hex[:12]}" for kind in ("empty", "crowded")]
    with psycopg.connect(server_url, autocommit=True) as conn:
        for name in names:
            conn.execute(f"create database {name} template {template}")
    empty, crowded = (at_database(server_url, name) for name in names)
    crowd(crowded, THREADS)
    yield empty, crowded
    with psycopg.connect(server_url, autocommit=True) as conn:
        for name in names:
            conn.execute(f"drop database {name} with (force)")


class Side:
    """One of the two databases: its runtime, its worker, and what it took."""

    def __init__(self, stack: ExitStack, forge: Forge, url: str, log: Path) -> None:
        arguments = ["worker", "--graph", f"waiting={PLACE}:waiting"]
        self.pid = forge.fork(arguments=arguments, environment={"STANDFAST_DATABASE_URL": url}, log=str(log))
        self.log = log
        self.runtime = stack.enter_context(Runtime(waiting_graph.waiting(), database_url=url, name="waiting"))
        self.claims: list[float] = []
        self.wakes: list[float] = []

    def round(self) -> None:
        key = uuid.uuid4().hex
        began = time.perf_counter()
        self.runtime.submit({"key": key}, thread_id=key)
        assert "waiting" == self.runtime.result(key, timeout=60).status
        self.claims.append(time.perf_counter() - began)
        began = time.perf_counter()
        assert 1 == self.runtime.emit("paid", match=key, id=key)
        while (result := self.runtime.result(key, timeout=60)).status == "waiting":
            time.sleep(0.001)
        self.wakes.append(time.perf_counter() - began)
        assert "succeeded" == result.status, result.reason

    def rss(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)


@pytest.mark.guarantee("G7")
@pytest.mark.timeout(1800)
def test_a_crowd_that_waits_makes_claims_and_wakes_no_slower_and_workers_no_larger(
    urls: tuple[str, str], tmp_path: Path, eventually: Eventually
) -> None:
    with Forge(PLACE) as forge, ExitStack() as stack:
        empty, crowded = (Side(stack, forge, url, tmp_path / f"worker-{number}.log") for number, url in enumerate(urls))
        for side in (empty, crowded):
            eventually(lambda side=side: side.log.exists() and "serves" in side.log.read_text(), 60)  # type: ignore[misc]
            side.round()
            side.claims.clear()
            side.wakes.clear()
        for number in range(ROUNDS):
            for side in (empty, crowded) if number % 2 else (crowded, empty):
                side.round()
        memory = crowded.rss() / empty.rss()
    claim, wake = (median(getattr(crowded, what)) / median(getattr(empty, what)) for what in ("claims", "wakes"))
    print(
        f"{THREADS} waiting: claim {median(crowded.claims) * 1000:.1f} ms, {claim:.2f} of the empty database's; "
        f"wake {median(crowded.wakes) * 1000:.1f} ms, {wake:.2f}; memory {memory:.2f}"
    )
    assert claim <= RATIO
    assert wake <= RATIO
    assert memory <= MEMORY
