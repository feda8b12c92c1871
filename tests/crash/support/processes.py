"""The test's side of the nursery: orders go out, futures come back."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

_SECONDS_TO_STOP = 10.0


@dataclass(frozen=True)
class Ended:
    """How a child ended: the signal that killed it (0: none), and what it told before."""

    signal: int
    told: dict[str, Any] | None

    @property
    def value(self) -> Any:
        """What the job returned; AssertionError if it was killed or raised."""
        assert self.told is not None, f"the child was killed by signal {self.signal} and told nothing"
        assert "value" in self.told, self.told["traceback"]
        return self.told["value"]


class Nursery:
    """Children of a process that has everything imported. Orders are given from any thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        command = [sys.executable, str(Path(__file__).with_name("nursery.py")), str(directory)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Ended]] = {}
        self._reader = threading.Thread(target=self._read, name="nursery")
        self._reader.start()

    def start(self, job: str, **order: Any) -> Future[Ended]:
        """Have a child do `job` of tests/crash/support/jobs.py."""
        future: Future[Ended] = Future()
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = future
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": number, "job": job, **order}, default=str).encode() + b"\n")
            self._process.stdin.flush()
        return future

    def run(self, job: str, *, seconds: float = 60.0, **order: Any) -> Ended:
        """`start`, and wait for the end."""
        return self.start(job, **order).result(seconds)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            ended = json.loads(line)
            path = self.directory / f"{ended['id']}.json"
            told = json.loads(path.read_text()) if path.exists() else None
            self._waiting.pop(ended["id"]).set_result(Ended(ended["signal"], told))
        for future in self._waiting.values():
            future.set_exception(RuntimeError("the nursery has ended; see its standard error"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()


def wait_until_stopped(process: subprocess.Popen[str], where: str, *, seconds: float = 60.0) -> None:
    """Return when a process that stops itself there (SIGSTOP) has; AssertionError if it ends, or takes longer."""
    deadline = time.monotonic() + seconds
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert process.poll() is None, f"it ended before {where}"
        assert time.monotonic() < deadline, f"it never came to {where}"
        time.sleep(0.02)
