"""Directories that root's server can reach, and processes that hold a server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from standfast.checkpoint.embedded import EmbeddedPostgres

PG15 = Path("/usr/lib/postgresql/15/bin")

# A process that holds the server: tells in lines of JSON what happens, and does what it reads.
HOLDER = r"""
import ctypes, json, os, sys, time
from pathlib import Path
from standfast.checkpoint.embedded import EmbeddedPostgres

def tell(**what):
    print(json.dumps(what), flush=True)

if os.environ.get("SUBREAPER"):
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: the server becomes our child, unreaped
server = EmbeddedPostgres(Path(sys.argv[1]), log=lambda text: tell(waits=text))
try:
    uri = server.acquire()
except Exception as error:
    tell(failed=f"{type(error).__name__}: {error}")
    sys.exit(1)
tell(uri=uri, pid=server.status().pid)
for line in sys.stdin:
    match line.strip():
        case "release":
            server.release()
            tell(released=True)
        case "fork":
            child = os.fork()
            if child == 0:
                server.release()
                time.sleep(600)
            tell(child=child)
        case "fork and exit":
            child = os.fork()
            if child == 0:
                sys.exit()
            tell(status=os.waitpid(child, 0)[1])
        case "exit":
            break
"""


class Holder:
    """One such process."""

    def __init__(self, directory: Path, *, prefix: tuple[str, ...] = (), **environment: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", HOLDER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    def told(self, key: str) -> Any:
        """Read on until it tells this; fail if it tells of a failure, or ends."""
        return self._read(key)[key]

    def ready(self) -> tuple[str, int]:
        """The URI and the server's pid, once it holds."""
        told = self._read("uri")
        return told["uri"], told["pid"]

    def _read(self, key: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told: dict[str, Any] = json.loads(line)
            if key in told:
                return told
            assert "failed" not in told, told
        raise AssertionError(f"ended ({self.process.wait()}) without telling {key!r}")

    def do(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def exit(self) -> None:
        self.do("exit")
        assert self.process.wait(30) == 0, "did not exit cleanly"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A folder that every account reaches: pytest's own is closed to the server of root."""
    memory = Path("/dev/shm")  # each test copies 40 MB
    fits = memory.exists() and shutil.disk_usage(memory).free > 2**30
    usable = fits and not os.statvfs(memory).f_flag & os.ST_NOEXEC
    path = Path(tempfile.mkdtemp(prefix="standfast-test-", dir=memory if usable else None))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def seeds() -> dict[str, Path]:
    return {}


@pytest.fixture
def place(ground: Path) -> Iterator[Path]:
    """A folder of the test's own; no server outlives it."""
    path = Path(tempfile.mkdtemp(dir=ground))
    path.chmod(0o755)
    yield path
    for data in path.rglob("data"):
        if (data / "PG_VERSION").exists():
            EmbeddedPostgres(data.parent).stop()
    shutil.rmtree(path)


@pytest.fixture(params=["wheel", "15"])
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs over the wheel's release and over PostgreSQL 15."""
    monkeypatch.delenv("STANDFAST_PG_BIN", raising=False)
    if request.param == "15":
        if not PG15.exists():
            pytest.skip(f"no PostgreSQL 15 in {PG15}")
        monkeypatch.setenv("STANDFAST_PG_BIN", str(PG15))
    return str(request.param)


@pytest.fixture
def seed(ground: Path, seeds: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    """A stopped server's directory, to be copied."""
    release = request.getfixturevalue("release") if "release" in request.fixturenames else "wheel"
    if release not in seeds:
        directory = ground / f"seed-{release}"
        with EmbeddedPostgres(directory) as server, psycopg.connect(server.uri()) as connection:
            connection.execute("create table claim (n int)")
            connection.execute("insert into claim values (1)")
        seeds[release] = directory
    return seeds[release]


@pytest.fixture
def directory(place: Path, seed: Path) -> Path:
    """The directory of a server that has run before: one row in the table `claim`."""
    subprocess.run(["cp", "-a", seed, place / "pg"], check=True)
    return place / "pg"


@pytest.fixture
def hold() -> Iterator[Callable[..., Holder]]:
    """Start holders; none outlives the test."""
    holders: list[Holder] = []

    def start(directory: Path, **options: Any) -> Holder:
        holders.append(Holder(directory, **options))
        return holders[-1]

    yield start
    for holder in holders:
        holder.close()
