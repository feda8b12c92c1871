"""In a terminal: the question that is asked at once, and Ctrl-C. A real process on a real pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.openai import Reply

REQUEST = "Publish a report on what must be retained"
SECONDS = 40.0
LICENCES = Path(__file__).parents[3] / "notebooks" / "documents"


class Terminal:
    """A process whose standard streams are one terminal; what it writes is gathered until it is looked for."""

    def __init__(self, command: list[str], **env: str) -> None:
        self._own, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **env},
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, text: str) -> str:
        """Read until `text` was written; everything up to it. AssertionError if it never is."""
        deadline = time.monotonic() + SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            assert self._read(deadline), f"it ended without {text!r}: {self.seen}"
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def interrupt_until(self, text: str) -> None:
        """Ctrl-C until `text` is written: one that comes just before Python begins to read is noticed by the next."""
        for _ in range(5):
            self.interrupt()
            while text not in self.seen and self._read(time.monotonic() + 5):
                pass
            if text in self.seen:
                return
        raise AssertionError(f"five interrupts brought no {text!r}: {self.seen}")

    def end(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._own], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._own, 65536)
        except OSError:  # Linux: the other side is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


@pytest.fixture
def terminal(environment: None, script_path: str) -> Iterator[Callable[..., Terminal]]:
    """Start the console script in a terminal."""
    opened: list[Terminal] = []

    def start(*arguments: str, **env: str) -> Terminal:
        opened.append(Terminal([script_path, *arguments], **env))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_quotation_is_read_once_and_its_repetitions_are_shortened(
    terminal: Callable[..., Terminal], cli: Any
) -> None:
    request = "Compare what GPL-3 and Apache-2.0 ask of someone who ships modified binaries, and publish a report"
    run = terminal("run", request, "--docs", str(LICENCES), "--thread", "t")
    shown = run.wait_for("[a]pprove, [e]dit, [r]eject, or [l]ater? ").replace("\r\n", "\n")
    run.type("l\n")
    assert run.end() == 3
    [asked] = cli("approvals", "--json").json
    whole = cli("show", "t").out
    long = [" ".join(one["quote"].split()) for one in asked["arguments"]["quotations"] if len(one["quote"]) > 100]
    assert len(long) > 5
    assert [1] * len(long) == [shown.count(quote) for quote in long]
    assert all(" ".join(whole.split()).count(quote) > 1 for quote in long)
    assert "shortened; in full: standfast show t\n" in shown
    assert "shortened" not in whole


def test_the_question_is_asked_at_once_and_holds_no_lease_and_no_connection(
    terminal: Callable[..., Terminal], documents: Path, tmp_path: Path, query: Any, cli: Any
) -> None:
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import json, pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "arguments = json.loads(path.read_text())\n"
        "path.write_text(json.dumps({**arguments, 'title': 'Edited by hand'}))\n"
    )
    run = terminal(
        "run", REQUEST, "--docs", str(documents), "--thread", "t", EDITOR=f"{sys.executable} {editor}", VISUAL=""
    )
    shown = run.wait_for("[a]pprove, [e]dit, [r]eject, or [l]ater? ")
    assert "Model: offline" in shown
    assert "analysis: asks for" in shown
    assert "-- title --" in shown
    assert [(None,)] == query("select lease_holder from threads")
    others = (  # none of the server's own, such as a vacuum
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
        "and backend_type = 'client backend'"
    )
    assert [(0,)] == query(others)

    run.type("what?\n")
    run.wait_for("[a]pprove, [e]dit, [r]eject, or [l]ater? ")
    run.type("e\n")
    run.wait_for("Published: ")
    assert run.end() == 0
    published = list((tmp_path / "reports").glob("*.md"))
    assert ["# Edited by hand"] == [path.read_text().splitlines()[0] for path in published]
    assert [("pat",)] == query("select principal from decisions")


def test_later_leaves_it_open_and_reject_asks_why(
    terminal: Callable[..., Terminal], documents: Path, query: Any
) -> None:
    run = terminal("run", REQUEST, "--docs", str(documents), "--thread", "t")
    run.wait_for("or [l]ater? ")
    run.type("l\n")
    run.wait_for("standfast approve apr-")
    assert run.end() == 3
    assert [("open",)] == query("select state from approvals")

    resumed = terminal("resume", "t")
    resumed.wait_for("or [l]ater? ")
    resumed.type("r\n")
    resumed.wait_for("Why?")
    resumed.type("too short\n")
    resumed.wait_for("Not done: publish_report. Rejected by pat: too short")
    assert resumed.end() == 0


def test_somebody_else_may_decide_while_the_question_stands(
    terminal: Callable[..., Terminal], documents: Path, cli: Any, tmp_path: Path
) -> None:
    run = terminal("run", REQUEST, "--docs", str(documents), "--thread", "t")
    run.wait_for("or [l]ater? ")
    identifier = cli("approvals", "--json").json[0]["id"]
    assert cli("reject", identifier, "--reason", "no", "--as", "alex").code == 0
    run.type("a\n")
    run.wait_for("is already rejected by alex; nothing was changed")
    run.wait_for("Not done: publish_report. Rejected by alex: no")
    assert run.end() == 0
    assert not (tmp_path / "reports").exists()


def test_ctrl_c_at_the_question_prints_the_lines_that_answer_it(
    terminal: Callable[..., Terminal], documents: Path, query: Any
) -> None:
    run = terminal("run", REQUEST, "--docs", str(documents), "--thread", "t")
    run.wait_for("or [l]ater? ")
    run.interrupt_until("standfast approve apr-")
    assert run.end() == 130
    assert "Traceback" not in run.seen
    assert [("open",)] == query("select state from approvals")


def test_ctrl_c_at_work_stops_cleanly_and_the_printed_line_carries_on(
    terminal: Callable[..., Terminal], documents: Path, query: Any, cli: Any, openai_server: Any, eventually: Any
) -> None:
    openai_server.script(Reply(fail="hang"), Reply(text="There is nothing to publish."))
    server = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": f"{openai_server.url}/v1"}
    run = terminal("run", REQUEST, "--thread", "t", "--model", "openai:test", **server)
    eventually(lambda: bool(openai_server.requests()), SECONDS)
    run.interrupt()
    shown = run.wait_for("To carry on: standfast resume t")
    assert run.end() == 130
    assert "Traceback" not in shown + run.seen
    assert [(None, True)] == query("select lease_holder, due_at is not null from threads")

    resumed = terminal("resume", "t", "--json", **server)
    assert resumed.end() == 0
    assert "There is nothing to publish." in resumed.seen
