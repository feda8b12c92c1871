"""Worker processes to be killed: `standfast worker` in children that are forked from a process with everything
imported, so that a new worker costs a fork and not four seconds of imports.

`python tests/crash/support/fleet.py` reads orders, lines of JSON `{"arguments", "environment", "log"}`, and answers
each with the child's pid, then with `[pid, exit code]` (negative: the signal) of each child that has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

if __name__ == "__main__":  # run as a file: this folder gives way to the root that the imports start from
    sys.path[0] = str(Path(__file__).resolve().parents[3])

_PR_SET_PDEATHSIG = 1
_PATIENCE_SECONDS = 30.0
GRAPHS = "tests.crash.support.work_graphs"


class Forge:
    """The process that has everything imported, and `modules` too. Orders are given from one thread.

    `env`: what its environment has besides, from its start on.
    """

    def __init__(self, *modules: str, env: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, str(Path(__file__)), *modules]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(env or {})}
        )
        self._changed = threading.Condition()
        self._started: list[int] = []
        self._ended: dict[int, int] = {}
        self._reader = threading.Thread(target=self._read, name="forge")
        self._reader.start()

    def fork(self, **order: Any) -> int:
        """The pid of a child that does the order."""
        assert self._process.stdin is not None
        with self._changed:
            number = len(self._started)
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            assert self._changed.wait_for(lambda: len(self._started) > number, _PATIENCE_SECONDS)
            return self._started[number]

    def wait(self, pid: int, seconds: float) -> int:
        """The exit code of a child, negative for a signal; AssertionError if it does not end."""
        with self._changed:
            assert self._changed.wait_for(lambda: pid in self._ended, seconds), f"{pid} did not end in {seconds} s"
            return self._ended[pid]

    def alive(self, pid: int) -> bool:
        with self._changed:
            return pid not in self._ended

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._changed:
                if isinstance(told, int):
                    self._started.append(told)
                else:
                    self._ended[told[0]] = told[1]
                self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE_SECONDS)
        self._reader.join()
        self._process.stdout.close()


class Worker:
    """One worker process. Its log is text on stderr, in a file."""

    def __init__(self, forge: Forge, pid: int, log: Path) -> None:
        self._forge = forge
        self.pid = pid
        self._log = log

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def alive(self) -> bool:
        return self._forge.alive(self.pid)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> float:
        """SIGKILL; the moment before it."""
        now = time.time()
        self.signal(signal.SIGKILL)
        return now

    def wait(self, seconds: float = _PATIENCE_SECONDS) -> int:
        """The exit code, negative for a signal; AssertionError if it does not end."""
        return self._forge.wait(self.pid, seconds)


class Fleet:
    """Starts workers on one database, and kills those that are left at the end."""

    def __init__(self, forge: Forge, url: str, folder: Path, *, lease: float) -> None:
        self._forge = forge
        self._folder = folder
        self._environment = {"STANDFAST_DATABASE_URL": url, "STANDFAST_LEASE_SECONDS": str(lease)}
        self._workers: list[Worker] = []

    def worker(self, *graphs: str, name: str | None = None, ready: bool = True, **options: Any) -> Worker:
        """Start a worker for graphs of work_graphs, each served under its function's name."""
        arguments = ["worker", *(part for one in graphs for part in ("--graph", f"{one}={GRAPHS}:{one}"))]
        for option, value in {"name": name, **options}.items():
            if value is not None:
                arguments += [f"--{option.replace('_', '-')}", str(value)]
        log = self._folder / f"worker-{len(self._workers)}.log"
        pid = self._forge.fork(arguments=arguments, environment=self._environment, log=str(log))
        worker = Worker(self._forge, pid, log)
        self._workers.append(worker)
        if ready:
            _until(lambda: "serves" in worker.log or not worker.alive)
            assert worker.alive, worker.log
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            if worker.alive:
                worker.kill()
                worker.wait()


def _until(condition: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- in the process that forks


def main() -> None:
    from standfast.graph.cli import worker  # noqa: F401 - imported here, not in each child
    from tests.crash.support import work_graphs

    assert work_graphs.__name__ == GRAPHS
    for module in sys.argv[1:]:
        importlib.import_module(module)
    children: set[int] = set()
    unread = b""
    while True:
        if select.select([0], [], [], 0.01 if children else None)[0]:
            piece = os.read(0, 65536)
            if not piece:
                break
            *lines, unread = (unread + piece).split(b"\n")
            for line in lines:
                pid = _fork(**json.loads(line))
                children.add(pid)
                _tell(pid)
        for pid, status in _ended(children):
            _tell([pid, os.waitstatus_to_exitcode(status)])
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _ended(children: set[int]) -> Iterator[tuple[int, int]]:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        children.discard(pid)
        yield pid, status


def _tell(told: Any) -> None:
    os.write(1, json.dumps(told).encode() + b"\n")


def _fork(arguments: Sequence[str], environment: dict[str, str], log: str) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    with contextlib.suppress(BaseException):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.environ.update(environment)
            from standfast.graph.cli.app import run_app

            code = run_app(arguments)
    os._exit(code)


if __name__ == "__main__":
    main()
