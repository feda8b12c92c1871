"""The files of one embedded server: its data directory, password, sockets and configuration.

Invariant: nothing outside `directory` is changed, except for a folder of sockets below /tmp when the path is
too long, or too odd, for a socket's address. Whoever calls `start` holds the locks of embedded.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import signal
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import psutil  # type: ignore[import-untyped, unused-ignore]

from standfast.checkpoint.binaries import Account, find_binaries
from standfast.checkpoint.errors import EmbeddedPostgresError

_SOCKET = ".s.PGSQL.5432"
_SOCKET_BYTES = 100  # sun_path holds 108 on Linux and 104 on macOS, the NUL included
_PLAIN = re.compile(r"[A-Za-z0-9/._ +=@~-]+")  # libpq, for one, splits a host at its commas
_LOG_BYTES = 10_000_000


@dataclass(frozen=True)
class Server:
    """A living postmaster of ours; `state` is its word: at first none, then starting, ready, stopping."""

    pid: int
    state: str

    def stop(self) -> None:
        """Ask for a fast shutdown: sessions are ended, everything is written."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)


class Cluster:
    """One directory: in it `data`, which is Postgres's own, `password`, and `run` for the socket."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.log = self.data / "server.log"

    @cached_property
    def account(self) -> Account:
        """Whom the server runs as."""
        return Account.serving(self.data)

    @cached_property
    def sockets(self) -> Path:
        """The folder of the socket, the same for every process."""
        near = self.directory / "run"
        if len(os.fsencode(near / _SOCKET)) <= _SOCKET_BYTES and _PLAIN.fullmatch(str(near)):
            return near
        digest = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        return Path("/tmp") / f"standfast-{digest}"  # noqa: S108  not TMPDIR, which differs between processes

    def version(self) -> int | None:
        """The major version of the data; None before there is any."""
        try:
            return int((self.data / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self.failure("its PG_VERSION is not a number: the data is damaged") from error

    def server(self) -> Server | None:
        """The server that lives here: no zombie, named postgres, at work in our data directory.

        A pid in postmaster.pid proves nothing: after a kill it is free for anybody to have.
        """
        try:
            lines = (self.data / "postmaster.pid").read_text(errors="replace").splitlines()
            process = psutil.Process(abs(int(lines[0])))
            if process.status() == psutil.STATUS_ZOMBIE or not process.name().startswith("postgres"):
                return None
            if self._working_directory(process) != self.data:
                return None
        except (FileNotFoundError, ValueError, IndexError, OverflowError, psutil.NoSuchProcess):
            return None
        return Server(process.pid, lines[7].strip() if len(lines) > 7 else "")

    def _working_directory(self, process: psutil.Process) -> Path:
        try:
            return Path(process.cwd())
        except psutil.AccessDenied:  # root in a container may not look; the server's own account may
            answer = self.account.run("readlink", f"/proc/{process.pid}/cwd", cwd=Path("/"))
            return Path(answer.stdout.removesuffix("\n"))

    def uri(self, database: str) -> str:
        """The URI of one database, password included."""
        password = (self.directory / "password").read_text()
        host = quote(str(self.sockets), safe="")
        # What is not named here, libpq takes from PGPORT and PGHOSTADDR.
        return f"postgresql://postgres:{password}@/{quote(database, safe='')}?host={host}&hostaddr=&port=5432"

    def prepare(self) -> None:
        """Make the directory; refuse one in which a server cannot be."""
        if (self.directory / "PG_VERSION").exists():
            raise self.failure("it is a data directory of Postgres, which this one would only hide")
        if "\n" in str(self.directory):
            raise self.failure("a line break in its name would break postmaster.pid")
        way = (*reversed(self.directory.parents), self.directory)
        for path in way:
            if not path.exists():
                path.mkdir(mode=0o711 if self.account.other else 0o700, exist_ok=True)
        if self.account.other and not any(self.directory.iterdir()):
            self.directory.chmod(0o711)
        if not self.account.reaches(self.directory):
            closed = next(path for path in way if not self.account.reaches(path))
            raise self.failure(f"root's server runs as {self.account.name!r}, which may not enter {str(closed)!r}")

    def start(self, claim: int, settings: Mapping[str, str]) -> int:
        """Start a server, after initdb if there is no data yet, and do not wait for it.

        It inherits the file `claim`. Returns the offset in its log at which its own lines begin.
        """
        binaries = self.account.usable(find_binaries(self.version()), self.directory)
        if self.version() is None:
            self._make(binaries, claim)
        self._make_sockets()
        for left in (self.data / "postmaster.pid", self.sockets / f"{_SOCKET}.lock", self.sockets / _SOCKET):
            left.unlink(missing_ok=True)
        values = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
            "port": "5432",
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        lines = [f"{name} = '{value}'\n" for name, value in (values | dict(settings)).items()]
        self._write(self.data / "standfast.conf", "".join(lines))
        if self._log_size() > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".old.log"))
        begins = self._log_size()
        # pg_ctl writes these paths into a shell's line: relative ones need no quoting.
        start = ("start", "-W", "-D", "data", "-l", "data/server.log")
        done = self.account.run(binaries / "pg_ctl", *start, cwd=self.directory, keep=claim)
        if done.returncode:
            raise self.failure(f"the server did not start: {cause(done.stderr)}")
        return begins

    def log_since(self, offset: int) -> str:
        """What the server has said since `start` returned that offset."""
        return self.log.read_bytes()[offset:].decode(errors="replace") if self.log.exists() else ""

    def _log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def failure(self, why: str) -> EmbeddedPostgresError:
        """The error for this directory."""
        return EmbeddedPostgresError(
            f"the embedded Postgres in {str(self.directory)!r} cannot be used: {why} (mend that, or choose"
            " another directory with STANDFAST_DATA_DIR, or a server with STANDFAST_DATABASE_URL)",
            directory=self.directory,
        )

    def _make(self, binaries: Path, claim: int) -> None:
        """Make the data directory whole or not at all: initdb into data.new, then one rename."""
        if self.data.exists() and any(self.data.iterdir()):
            raise self.failure("its `data` has no PG_VERSION: it is another program's, or damaged")
        staging, secret = self.directory / "data.new", self.directory / "password.new"
        self._discard(staging, secret)  # of an initdb that was killed
        try:
            staging.mkdir(mode=0o700)
            self.account.own(staging)
            self._write(secret, secrets.token_urlsafe(24))
            options = "-D data.new -U postgres -A scram-sha-256 --pwfile=password.new -E UTF8 --no-locale"
            done = self.account.run(binaries / "initdb", *options.split(), cwd=self.directory, keep=claim)
            if done.returncode:
                raise self.failure(f"initdb failed, and nothing of it is left: {cause(done.stderr)}")
            config = staging / "postgresql.conf"
            self._write(config, config.read_text() + "\ninclude 'standfast.conf'\n")
            _sync(secret, config)
            secret.rename(self.directory / "password")
            staging.rename(self.data)
            _sync(self.directory)  # a commit must not outlive the name that leads to it
        except BaseException:
            self._discard(staging, secret)
            raise

    def _write(self, path: Path, text: str) -> None:
        """A new file of the server's account; what stands in its place, a link perhaps, is not written to."""
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            if self.account.other:
                os.fchown(file.fileno(), self.account.uid, self.account.gid)
            file.write(text)

    @staticmethod
    def _discard(staging: Path, secret: Path) -> None:
        secret.unlink(missing_ok=True)
        if staging.exists():
            shutil.rmtree(staging)

    def _make_sockets(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.sockets.mkdir(mode=0o700)
        if self.sockets.lstat().st_uid == os.geteuid():
            self.account.own(self.sockets)
        found = self.sockets.lstat()  # below /tmp, anybody could have made it first
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != self.account.uid or found.st_mode & 0o077:
            raise self.failure(f"its folder of sockets {str(self.sockets)!r} is not the server's own: remove it")

    def remove_sockets(self) -> None:
        """Remove the folder of a server that has left; what a killed one left is for the next start."""
        with contextlib.suppress(OSError):
            self.sockets.rmdir()


def cause(output: str) -> str:
    """The line of a program's output that a person would point at."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"\b(error|FATAL|PANIC):", line)]
    return (told or lines[-1:] or ["it said nothing"])[0]


def _sync(*paths: Path) -> None:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
