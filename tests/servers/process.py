"""A test server as a process of its own, which outlives the clients that a test kills.

Invariant: the process ends with its `stop`, its `kill` or the test run, however that ends: its standard input
is a pipe from there.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, Self
from urllib.request import Request, urlopen

from tests.servers.scripted import read_log

SECONDS_TO_START = 20.0
SECONDS_TO_STOP = 5.0


class ServerProcess:
    """`tests/servers/<name>.py` as a process.

    A server that is started again on the same log and port goes on as the same receiver.
    """

    def __init__(self, name: Literal["openai", "reports"], log: Path, *options: str, port: int = 0) -> None:
        self.log = log
        command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), "--while-stdin"]
        command += ["--log", str(log), "--port", str(port), *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.url = _first_line(self._process)
        except BaseException:
            self.kill()
            raise

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def script(self, *steps: Mapping[str, Any]) -> None:
        """Append steps, as the JSON objects of `POST /script`; HTTPError if one is wrong."""
        request = Request(f"{self.url}/script", json.dumps(steps).encode(), method="POST")
        with urlopen(request, timeout=SECONDS_TO_STOP):
            pass

    def requests(self) -> list[dict[str, Any]]:
        """The log's lines about requests."""
        return read_log(self.log, "request")

    def effects(self) -> list[dict[str, Any]]:
        """The log's lines about effects."""
        return read_log(self.log, "effect")

    def stop(self) -> None:
        """End the process in an orderly way; CalledProcessError if it failed, a kill if it does not end."""
        _stream(self._process.stdin).close()
        try:
            status = self._process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        _stream(self._process.stdout).close()
        if status != 0:
            raise subprocess.CalledProcessError(status, self._process.args)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
        _stream(self._process.stdin).close()
        _stream(self._process.stdout).close()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.stop()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _first_line(process: subprocess.Popen[str]) -> str:
    stdout = _stream(process.stdout)
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        ready = selector.select(SECONDS_TO_START)
    line = stdout.readline().strip() if ready else ""
    if not line:
        raise RuntimeError(f"{process.args!r} printed no URL within {SECONDS_TO_START} s; see its standard error")
    return line
