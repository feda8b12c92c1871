"""Graphs that are not ours in style run unchanged, are killed anywhere, and go on."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.crash.support.processes import Nursery

pytestmark = [pytest.mark.guarantee("G2")]
PAGES = [" ".join(["word"] * size) for size in range(1, 7)]
HOME = "tests.crash.support.own_graphs"


@dataclass(frozen=True)
class Case:
    """A graph, what it is asked, how its question is answered, and what comes of it."""

    graph: str
    request: Mapping[str, Any]
    answer: Any
    done: Mapping[str, int]  # lines of the log, each written once
    kills: tuple[int, ...]  # at the n-th committed or begun transaction of the saver


ROUTER = Case(
    "router",
    {"text": "money back"},
    "kind regards",
    {"billing looked up": 1, "history looked up": 1},
    (1, 2, 3),
)
MAP_REDUCE = Case(
    "map_reduce",
    {"pages": PAGES},
    None,
    {f"counted {page}": 1 for page in PAGES},
    (1, 2, 3),
)
SUPERVISOR = Case(
    "supervisor",
    {"messages": [], "where": "Oslo"},
    {"decisions": [{"type": "approve"}]},
    {"booked flight Oslo": 1, "booked hotel Oslo": 1},
    (1, 3, 5, 7, 9),
)
CASES = (ROUTER, MAP_REDUCE, SUPERVISOR)


def orders() -> list[Any]:
    return [
        pytest.param(case, point, number, id=f"{case.graph}-{point}-{number}")
        for case in CASES
        for point in ("saver.fenced", "saver.committed")
        for number in case.kills
    ]


class Thread:
    """One thread of a case, in processes that may die."""

    def __init__(self, nursery: Nursery, url: str, case: Case, thread: str, log: Path) -> None:
        self._nursery = nursery
        self._case = case
        self._log = log
        self._common: dict[str, Any] = {
            "url": url,
            "thread": thread,
            "graph": f"{HOME}:{case.graph}",
            "env": {"STANDFAST_TEST_LOG": str(log)},
        }

    def order(self, job: str, **more: Any) -> Any:
        return self._nursery.run(job, **self._common, **more)

    def to_the_end(self) -> dict[str, Any]:
        """Resume, answering what is asked, in a new process each time."""
        end: dict[str, Any] = self.order("resume").value["did"]
        while end["status"] == "waiting":
            end = self.order("resume", answer={"answer": self._case.answer}).value["did"]
        return end

    def done(self) -> Counter[str]:
        return Counter(self._log.read_text().splitlines()) if self._log.exists() else Counter()

    def recorded(self) -> list[str]:
        """The ids of the steps whose results are on disk."""
        return list(self.order("recorded").value["did"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.graph)
def test_a_graph_of_any_style_runs_unchanged(
    nursery: Nursery, shared_database_url: str, tmp_path: Path, case: Case
) -> None:
    thread = Thread(nursery, shared_database_url, case, f"whole-{case.graph}-{uuid4()}", tmp_path / "log")
    first = thread.order("ask", request=case.request).value["did"]
    assert ("succeeded" if case.answer is None else "waiting") == first["status"]
    assert "succeeded" == thread.to_the_end()["status"]
    assert case.done == thread.done()


@pytest.mark.parametrize(("case", "point", "number"), orders())
def test_a_graph_of_any_style_goes_on_after_a_kill_and_repeats_nothing_that_was_recorded(
    nursery: Nursery, shared_database_url: str, tmp_path: Path, case: Case, point: str, number: int
) -> None:
    thread = Thread(nursery, shared_database_url, case, f"{case.graph}-{point}-{number}-{uuid4()}", tmp_path / "log")
    killed = thread.order("ask", request=case.request, kill=(point, number))
    if killed.signal == 0:  # it came to its question before: the answer's drive is killed
        killed = thread.order("resume", answer={"answer": case.answer}, kill=(point, 1))
    assert signal.SIGKILL == killed.signal
    recorded = len(thread.recorded())
    before = thread.done()
    assert "succeeded" == thread.to_the_end()["status"]
    after = thread.done()
    assert set(case.done) == set(after)
    # Only what had begun and was not recorded when the process died may be there twice.
    assert recorded + (after.total() - before.total()) == len(case.done)
