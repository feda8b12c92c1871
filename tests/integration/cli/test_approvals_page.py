"""What docs/approvals.md shows is what happens when it is typed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

PAGE: Final = Path(__file__).parents[3] / "docs" / "approvals.md"
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
IDS: Final = re.compile(r"apr-[0-9a-f]{16}")
TIMES: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def blocks(kind: str) -> list[str]:
    return [text for one, text in BLOCK.findall(PAGE.read_text()) if one == kind]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each command of the page with the lines that it prints there."""
    for block in blocks("console"):
        for typed in block.removeprefix("$ ").split("\n$ "):
            command, *lines = typed.splitlines()
            yield command, [one for one in lines if one not in ("", "[...]")]


class Ids:
    """Ids of the page as they are here: each is learned from the line that shows it first."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def here(self, text: str) -> str:
        return IDS.sub(lambda found: self._known[found.group()], text)

    def learn(self, line: str, printed: list[str]) -> bool:
        """Whether the line was printed, with the ids that are known, and any for those that are not."""
        pattern = re.escape(TIMES.sub("TIME", IDS.sub(lambda found: self._known.get(found.group(), "NEW"), line)))
        matching = re.compile(pattern.replace("TIME", TIMES.pattern).replace("NEW", f"({IDS.pattern})"))
        found = next(filter(None, map(matching.fullmatch, printed)), None)
        if found is not None and found.groups():
            [new] = {one for one in IDS.findall(line) if one not in self._known}
            self._known[new] = found.group(1)
        return found is not None


@pytest.fixture
def till(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files."""
    (tmp_path / "till.py").write_text(blocks("python")[0])
    (tmp_path / "policy.yaml").write_text(blocks("yaml")[0])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "till", raising=False)
    return tmp_path


@pytest.mark.timeout(120)
def test_what_is_typed_prints_what_the_page_shows(cli: Any, till: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = Ids()
    for command, lines in commands():
        program, *arguments = shlex.split(ids.here(command))
        if program == "export":
            monkeypatch.setenv(*arguments[0].split("=", 1))
            continue
        done = cli(*arguments)
        printed = [one.rstrip() for one in (done.out + done.err).splitlines()]
        for line in lines:
            assert ids.learn(line.rstrip(), printed), f"{command}: no line {line!r} in\n" + "\n".join(printed)


def test_the_pages_python_runs(cli: Any, till: Path) -> None:
    scope: dict[str, Any] = {"__name__": "page"}
    for block in blocks("python"):
        exec(compile(block, "approvals.md", "exec", dont_inherit=True), scope)
