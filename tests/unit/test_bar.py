"""How long work is shown: a bar for a person, lines for a log, nothing if it is over in a moment."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.graph.bar import Bar
from standfast.tools.readers import count_files, read_documents

WORK = """
import itertools
from standfast.graph.bar import Bar
clock = itertools.count(0.0, 0.4).__next__
with Bar("Reading documents", unit="file", total=30, clock=clock) as bar:
    for _ in range(30):
        bar.add()
"""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_work_that_is_over_in_a_moment_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("Reading", unit="file", total=1000, clock=Clock()) as bar:
        for _ in range(1000):
            bar.add()
    assert ("", "") == capsys.readouterr()


def test_a_log_gets_a_line_now_and_then_with_the_rate_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Bar("Reading", unit="file", total=100, clock=clock) as bar:
        for _ in range(20):
            clock.now += 0.5
            bar.add()
    out, err = capsys.readouterr()
    assert "" == out
    assert [
        "Reading: 10 of 100 files, 2.0/s, 45 s left",
        "Reading: 20 of 100 files, 2.0/s, 40 s left",
    ] == err.splitlines()


def test_work_of_unknown_size_tells_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Bar("Sweeping", unit="artifact", clock=clock) as bar:
        clock.now += 10
        bar.add(5)
    assert "Sweeping: 5 artifacts, 0.5/s\n" == capsys.readouterr().err


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end_and_a_result_stays_clean() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    run = subprocess.run([sys.executable, "-c", WORK], stderr=theirs, stdout=subprocess.PIPE, env=env, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert (0, b"") == (run.returncode, run.stdout)
    assert "Reading documents" in shown
    assert "/30" in shown
    assert shown.rstrip().endswith(("\x1b[?25h", "\x1b[2K"))  # the line is erased, the cursor is back


def test_files_are_counted_as_they_are_read(tmp_path: Path) -> None:
    for name in ("a.txt", "b.md", "sub/c.txt", "empty.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name.startswith("empty") else "words")
    assert 4 == count_files([tmp_path]) == len(list(read_documents([tmp_path])))
    assert 0 == count_files([tmp_path / "missing"])
