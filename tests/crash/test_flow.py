"""Several worker processes keep one receiver's limits together, as the receiver's own log shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from standfast.checkpoint.settings import Settings
from standfast.graph import Limit, Runtime
from tests.crash.support import work_graphs
from tests.crash.support.fleet import Fleet, Forge
from tests.crash.support.scripted_model import call, script
from tests.servers.fixtures import Eventually

pytestmark = pytest.mark.guarantee("G8")
THREADS, CALLS = 6, 3
SECONDS = 0.05  # that the receiver takes for a call


class Receiver(ThreadingHTTPServer):
    """Takes calls and logs how many are under way, and when each came."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self._changed = threading.Lock()
        self.under_way = 0
        self.most = 0
        self.came: list[float] = []
        self.keys: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def begin(self, key: str) -> None:
        with self._changed:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.came.append(time.monotonic())
            self.keys.append(key)

    def end(self) -> None:
        with self._changed:
            self.under_way -= 1

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Call(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.begin(self.headers["Idempotency-Key"])
        time.sleep(SECONDS)
        self.server.end()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def fleet(forge: Forge, database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(forge, database_url, tmp_path, lease=6.0) as fleet:
        yield fleet


@pytest.fixture
def runtime(database_url: str, receiver: Receiver) -> Iterator[Runtime]:
    settings = Settings(reports_url=receiver.url)
    with Runtime(work_graphs.calling(), database_url=database_url, name="calling", settings=settings) as runtime:
        yield runtime


def submit(runtime: Runtime, threads: int = THREADS) -> list[str]:
    names = [f"t{number}" for number in range(threads)]
    for name in names:
        calls = [call("jot", text=f"{name} {number}") for number in range(CALLS)]
        runtime.submit(script(calls), thread_id=name)
    return names


def to_the_end(runtime: Runtime, names: list[str], eventually: Eventually) -> None:
    def ended() -> bool:
        return {str(one.status) for one in runtime.threads(limit=100)} == {"succeeded"}

    eventually(ended, 90)
    assert len(names) == len(runtime.threads(limit=100))


def test_workers_together_make_no_more_calls_at_a_time_than_the_limit(
    runtime: Runtime, fleet: Fleet, receiver: Receiver, eventually: Eventually
) -> None:
    runtime.set_limit(Limit("operation:jot", concurrency=2))
    names = submit(runtime)
    workers = [fleet.worker("calling", name=f"w{number}") for number in range(3)]
    eventually(lambda: len(receiver.came) >= 5, 60)
    workers[0].kill()
    to_the_end(runtime, names, eventually)
    assert 1 <= receiver.most <= 2
    assert THREADS * CALLS == len(set(receiver.keys))


def test_workers_together_keep_one_rate(
    runtime: Runtime, fleet: Fleet, receiver: Receiver, eventually: Eventually
) -> None:
    rate, per, burst = 10, 1.0, 2
    runtime.set_limit(Limit("operation:jot", rate=rate, per=per, burst=burst))
    names = submit(runtime)
    for number in range(3):
        fleet.worker("calling", name=f"w{number}")
    to_the_end(runtime, names, eventually)
    spacing = per / (rate - burst)
    came = sorted(receiver.came)
    # A call may come late, and the next one not: the first may have been `late` on its way.
    late = 2 * per
    assert THREADS * CALLS == len(came)
    assert [] == [n for n, at in enumerate(came, 1) if n > burst + (at - came[0] + late) / spacing]
    assert came[-1] - came[0] >= (len(came) - burst) * spacing - late


def test_without_a_limit_the_same_workers_make_more_calls_at_a_time(
    runtime: Runtime, fleet: Fleet, receiver: Receiver, eventually: Eventually
) -> None:
    names = submit(runtime)
    for number in range(3):
        fleet.worker("calling", name=f"w{number}")
    to_the_end(runtime, names, eventually)
    assert 2 < receiver.most
