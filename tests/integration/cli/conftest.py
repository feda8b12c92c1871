"""The command line, run as the real console script or in this process, on the test's database."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from standfast.graph.cli.app import run_app

REQUEST = "Compare what the licences ask of someone who ships modified files, and publish a report"
LICENCE = """Plain Licence

1. Conditions

You must cause any modified files to carry prominent notices stating that You changed the files. You must retain
all copyright notices in the files that You distribute.

2. Warranty

The files are provided without any warranty of any kind.
"""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The one line on stderr; AssertionError if there is more or less, or anything on stdout."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert self.out == ""
        return lines[0]


class Cli(Protocol):
    def __call__(self, *arguments: str, stdin: bytes = b"") -> Done: ...


class Script(Protocol):
    def __call__(
        self, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, **options: Any
    ) -> Done: ...


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A database that is away and an empty folder, no key, and none of the developer's own settings."""
    for name in list(os.environ):
        if name.startswith(("STANDFAST_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STANDFAST_DATABASE_URL", "postgresql://me:hunter2@127.0.0.1:1/db")
    monkeypatch.setenv("USER", "pat")
    monkeypatch.setenv("LOGNAME", "pat")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def environment(bare_environment: None, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with the test's database."""
    monkeypatch.setenv("STANDFAST_DATABASE_URL", database_url)


@pytest.fixture
def cli(environment: None, cli_alone: Cli) -> Cli:
    """Run a command line in this process, on the test's database."""
    return cli_alone


@pytest.fixture
def cli_alone(bare_environment: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command line in this process, without a database."""

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = run_app(arguments)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def script_path() -> str:
    """The console script beside this interpreter."""
    return str(Path(sys.executable).with_name("standfast"))


@pytest.fixture
def script(environment: None, script_path: str) -> Script:
    """Run the real console script in a process of its own."""

    def run(*arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, **options: Any) -> Done:
        done = subprocess.run(
            [script_path, *arguments],
            capture_output=True,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            timeout=60,
            check=False,
            **options,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A folder with one small licence."""
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "plain.txt").write_text(LICENCE)
    return folder


@pytest.fixture
def propose(cli: Cli, documents: Path) -> Callable[[str], str]:
    """Run a request up to the approval of its report; the approval's id."""

    def run(thread_id: str = "t") -> str:
        done = cli("run", REQUEST, "--docs", str(documents), "--thread", thread_id, "--as", "robin", "--json")
        assert done.code == 3, done.err
        return str(done.json["approvals"][0]["id"])

    return run


@pytest.fixture
def count(query: Callable[..., list[tuple[Any, ...]]]) -> Callable[[], dict[str, int]]:
    """How many rows each table of the schema has that a command could have written to."""

    def rows() -> dict[str, int]:
        tables = ("threads", "runs", "operations", "attempts", "approvals", "decisions", "waits", "checkpoints")
        return {table: int(query(f"select count(*) from {table}")[0][0]) for table in tables}

    return rows
