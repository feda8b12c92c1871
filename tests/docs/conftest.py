"""A page's run: its folder, its database, its names, and everything on it done from top to bottom."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import yaml
from packaging.requirements import Requirement

from tests.docs.pages import ROOT, USER, Block, Reader, Shell, blocks, commands

_LINES_FOR_CI: Final = ("pip install . && ", 'pip install -e ".[dev]" && ')
_ELSEWHERE: Final = re.compile(
    r"(?:docker|kubectl|sudo|langgraph|jupyter) |export STANDFAST_DATABASE_URL="
    r"|python -m (?:venv|tests\.benchmarks\.\w+) |\. \S+/activate$"
)
"""What makes an environment, names another database, measures for long, or is for another machine: it is only read."""


class Walk:
    """One page, done from top to bottom. `names` are what its Python sees; `shell` is where its commands go."""

    def __init__(self, page: str, folder: Path, database_url: str, shell: Shell) -> None:
        self.page = page
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "docs"}
        self.shell = shell
        self._reader = Reader()
        self._database_url = database_url

    def before(self, command: str) -> str:
        """Type something that the page takes for granted, and get what it printed."""
        status, printed = self.shell.type(command)
        assert status in (0, 3), printed
        return printed

    def stands_for(self, on_page: str, real: str) -> None:
        """An identifier of the page is that of something that was made before."""
        self._reader.real[on_page] = real

    def through(self) -> None:
        """Do what every block says."""
        for block in blocks(self.page):
            self._do(block)

    def _do(self, block: Block) -> None:
        where = f"{self.page}:{block.line}"
        if block.title is not None:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        match block.language:
            case "":
                return  # a drawing
            case "python" if block.title is not None:
                compile(block.text, where, "exec")
            case "python":
                exec(compile("\n" * block.line + block.text, str(ROOT / self.page), "exec"), self.names)
            case "console":
                self._type(block, where)
            case "sql":
                with psycopg.connect(self._database_url, autocommit=True) as connection:
                    connection.execute(re.sub(r"\bNAME\b", connection.info.dbname, block.text))  # type: ignore[call-overload]
            case "yaml":
                assert list(yaml.safe_load_all(block.text))
            case "toml":
                assert tomllib.loads(block.text)
            case "json":
                json.loads(block.text)
            case "ini":
                configparser.ConfigParser().read_string(f"[of the page]\n{block.text}")
            case _:
                raise AssertionError(f"{where}: nobody knows how to run a block of {block.language!r}")

    def _type(self, block: Block, where: str) -> None:
        if not block.text.startswith("$ "):
            for line in block.text.splitlines():
                assert line.startswith(_LINES_FOR_CI), f"{where}: {line!r} is neither a command nor one that CI runs"
            return
        for command in commands(block):
            first, *rest = shlex.split(command.typed, comments=True)
            if first == "pip":
                for one in rest[1:]:
                    _installable(one)
            elif _ELSEWHERE.match(command.typed):
                self._names_files_that_exist(command.typed, where)
            else:
                status, printed = self.shell.type(self._reader.translate(command.typed))
                try:
                    self._reader.compare(command.printed, printed)
                    refused = "standfast: " in command.printed
                    assert status in (0, 3) or refused, f"the status is {status}: {printed}"
                except AssertionError as error:
                    raise AssertionError(f"{where}: {command.typed}\n{error}") from None

    def _names_files_that_exist(self, typed: str, where: str) -> None:
        for word in shlex.split(typed, comments=True):
            path = word.replace(".", "/") + ".py" if word.startswith("tests.") else word
            if path.startswith(("docs/", "tests/")):
                assert (ROOT / path).exists(), f"{where}: there is no {word}"


def _installable(requirement: str) -> None:
    """AssertionError unless pip could make sense of it, and an extra of this project exists."""
    if requirement.startswith("-"):
        return
    if requirement.startswith("."):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(requirement.removeprefix(".").strip("[]").split(",")) - {""} <= set(extras)
        return
    Requirement(requirement)


@pytest.fixture
def walk(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Walk]]:
    """Begin a page: `walk("docs/tutorial.md", env={...})`, in a folder with the documents to try it on."""
    shells: list[Shell] = []

    def begin(page: str, env: Mapping[str, str] | None = None) -> Walk:
        for name in list(os.environ):
            if name.startswith(("STANDFAST_", "OPENAI_")):
                monkeypatch.delenv(name)
        (tmp_path / "notebooks").mkdir()
        shutil.copytree(ROOT / "notebooks" / "documents", tmp_path / "notebooks" / "documents")
        environment = {"STANDFAST_DATABASE_URL": database_url, "HOME": str(tmp_path), **(env or {})}
        for name, value in {**environment, "USER": USER, "LOGNAME": USER}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        shell = Shell(tmp_path, environment)
        shells.append(shell)
        return Walk(page, tmp_path, database_url, shell)

    yield begin
    for shell in shells:
        with shell:
            pass


@pytest.fixture
def undefined() -> Callable[[str, str], str]:
    """What ruff says of names that a page's Python uses and nobody defines."""

    def look(page: str, preamble: str) -> str:
        source = "\n".join(
            [preamble, *(one.text for one in blocks(page) if one.language == "python" and one.title is None)]
        )
        run = subprocess.run(
            [str(Path(sys.executable).with_name("ruff")), "check", "--isolated", "--select", "F821", "-"],
            input=source,
            capture_output=True,
            text=True,
        )
        return "" if run.returncode == 0 else run.stdout

    return look
