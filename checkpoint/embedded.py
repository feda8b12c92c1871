"""The embedded Postgres: one server per directory, shared by any number of processes, stopped by the last.

For a first try and for one machine; production names its own server in STANDFAST_DATABASE_URL.
Three `flock`s in the directory carry all agreement between processes, because the kernel forgets a killed
process, and a list of pids does not:

    lock     exclusive, around init, start and stop
    users    shared, while in use: the reference count
    server   exclusive, inherited by initdb and by the server: held as long as one of their processes lives

Invariant: only the holder of `lock` and `server` starts initdb or a server, or removes what a dead one left.
So no two servers meet in one data directory, whoever is killed, and whenever.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import platformdirs
import psycopg

from standfast.checkpoint.cluster import Cluster, cause
from standfast.checkpoint.errors import EmbeddedPostgresError

if sys.platform != "win32":
    import fcntl

DATABASE = "standfast"

_POLL = 0.02  # seconds


@dataclass(frozen=True)
class EmbeddedStatus:
    """What is in a directory; `version` is the major version of its data, `pid` the running server's."""

    directory: Path
    running: bool
    in_use: bool
    pid: int | None
    version: int | None


class EmbeddedPostgres:
    """The server of one directory: `acquire` starts or joins it, `release` lets go, the last to go stops it.

    The default directory is `postgres` in STANDFAST_DATA_DIR, else in the user's data directory, for root in
    /var/lib/standfast. `start_timeout`, in seconds, bounds every wait; `log` hears of those over a second.
    `settings`, for tests only, are further lines of postgresql.conf for the next start. An object holds the
    server at most once. Do not fork while holding it; a child that was holds nothing until it acquires. Every
    method raises EmbeddedPostgresError, which says what to do.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        start_timeout: float = 60.0,
        log: Callable[[str], None] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise EmbeddedPostgresError(
                "the embedded Postgres does not run on Windows yet: set STANDFAST_DATABASE_URL to a server"
            )
        home = Path("/var/lib/standfast") if os.geteuid() == 0 else platformdirs.user_data_path("standfast")
        chosen = directory or Path(os.environ.get("STANDFAST_DATA_DIR") or home) / "postgres"
        self.directory = chosen.expanduser().resolve()
        self._cluster = Cluster(self.directory)
        self._timeout = start_timeout
        self._log = log or logging.getLogger(__name__).info
        self._settings = dict(settings or {})
        self._users: int | None = None  # the open file with our shared lock
        self._holder = 0  # the process that took it

    def acquire(self) -> str:
        """Start the server or join it; returns the URI of its database `standfast`, made if missing."""
        with self._explained():
            self._cluster.prepare()
            with self._locked():
                self._hold()
                try:
                    self._ensure_running()
                    self._ensure_database()
                except EmbeddedPostgresError:
                    self._let_go()  # without a stop: a recovery longer than our patience goes on
                    raise
                except BaseException:
                    self._leave()
                    raise
        return self.uri()

    def release(self) -> None:
        """Let go; the last holder stops the server. Does nothing without a hold, or in a forked child."""
        if self._users is not None and self._holder == os.getpid():
            try:
                with self._explained(), self._locked():
                    self._leave()
            finally:
                self._let_go()

    def stop(self) -> bool:
        """Stop the server even if it is in use; True if it ran."""
        with self._explained():
            if not (self.directory / "lock").exists():
                return False
            with self._locked():
                (self.directory / "kept").unlink(missing_ok=True)
                return self._shut_down()

    def keep(self) -> None:
        """While holding it: the last to leave lets the server run, until `stop`."""
        with self._explained(), self._file("kept"):
            pass

    def status(self) -> EmbeddedStatus:
        """What is there now; starts and makes nothing."""
        with self._explained():
            server, in_use = self._cluster.server(), False
            if (self.directory / "users").exists():
                with self._file("lock") as lock, self._file("users") as users:
                    in_use = not (_flock(lock) and _flock(users))
            pid = None if server is None else server.pid
            return EmbeddedStatus(self.directory, server is not None, in_use, pid, self._cluster.version())

    def uri(self, database: str = DATABASE) -> str:
        """The URI of one of its databases, with the password, whether or not the server runs."""
        with self._explained():
            return self._cluster.uri(database)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _ensure_running(self) -> None:
        """Wait for a ready server; start one when no process of an earlier one, or of initdb, is left."""
        wait, log_from = self._patience(), None
        while True:
            if server := self._cluster.server():
                if server.state == "ready":
                    return
                wait(f"the server, which is {server.state or 'starting'} (after a crash it recovers first)")
                continue
            with self._file("server") as claim:
                if _flock(claim) and not self._cluster.server():
                    if log_from is not None:
                        raise self._cluster.failure(
                            f"the server did not start: {cause(self._cluster.log_since(log_from))},"
                            f" says its log {str(self._cluster.log)!r}"
                        )
                    log_from = self._cluster.start(claim, self._settings)
                    wait = self._patience()
            left = "the processes of an earlier server or initdb to end"
            wait(left if log_from is None else "the server to start")

    def _ensure_database(self) -> None:
        uri = self._cluster.uri("postgres")
        with psycopg.connect(uri, autocommit=True, connect_timeout=10) as connection:
            known = connection.execute("select 1 from pg_database where datname = %s", [DATABASE])
            if known.fetchone() is None:
                connection.execute("create database standfast")

    def _shut_down(self) -> bool:
        """Stop the server, and wait until its last process is gone; True if there was one."""
        wait, told = self._patience(), 0
        while True:
            if server := self._cluster.server():
                if told != server.pid:
                    server.stop()
                    told = server.pid
            else:
                with self._file("server") as claim:
                    if _flock(claim):
                        self._cluster.remove_sockets()
                        return told != 0
            wait("the server to stop")

    def _hold(self) -> None:
        """Take the shared lock, and with it the promise to stop the server as the last."""
        if self._holder != os.getpid():  # also in a forked child, which has its parent's open file
            self._let_go()
        if self._users is None:
            with self._file("users") as users:
                fcntl.flock(users, fcntl.LOCK_SH)
                self._users, self._holder = os.dup(users), os.getpid()
            atexit.register(self.release)

    def _leave(self) -> None:
        """Under `lock`: stop the server if nobody else holds it, and let go."""
        try:
            if self._users is not None and not (self.directory / "kept").exists() and _flock(self._users):
                self._shut_down()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._users is None:
            return
        if self._holder == os.getpid():
            fcntl.flock(self._users, fcntl.LOCK_UN)  # a forked child may have the file open
        os.close(self._users)
        self._users = None
        atexit.unregister(self.release)

    @contextlib.contextmanager
    def _file(self, name: str) -> Iterator[int]:
        file = os.open(self.directory / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield file
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        wait = self._patience()
        with self._file("lock") as lock:
            while not _flock(lock):
                wait("another process that starts or stops the server")
            try:
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # as in _let_go

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = f" ({error.filename!r})" if error.filename else ""
            raise self._cluster.failure(f"{error.strerror or error}{place}") from error
        except psycopg.Error as error:
            raise self._cluster.failure(f"the server runs, but not as expected: {error}") from error

    def _patience(self) -> Callable[[str], None]:
        """A function for one wait: it sleeps a little, says what it waits for, and gives up in the end."""
        began, told = time.monotonic(), ""

        def wait(what: str) -> None:
            nonlocal told
            waited = time.monotonic() - began
            if waited > self._timeout:
                raise self._cluster.failure(f"{self._timeout:g} s were not enough for {what}; try again")
            if waited > 1 and what != told:
                self._log(f"Postgres in {str(self.directory)!r}: waiting for {what}")
                told = what
            time.sleep(_POLL)

        return wait


def _flock(file: int) -> bool:
    """Take an exclusive lock, or say that somebody else has one."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
