"""What the README and the docs tell people to type can be typed. What it does then, tests/docs look at."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FENCED = re.compile(r"^```[a-z]*(?: [^\n]*)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|&& |\$ )standfast ((?:[a-z]+ ?)+)", re.MULTILINE)
DOCS = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))
GROUPS = ("artifacts", "audit", "db", "groups", "limits", "outbox", "schedules")


def commands(text: str) -> Iterator[tuple[str, ...]]:
    """The commands of the fenced blocks, such as ("run",) or ("db", "start")."""
    for block in FENCED.findall(text):
        for words in COMMAND.findall(block):
            first, *rest = words.split()
            yield (first, *rest[:1]) if first in GROUPS else (first,)


def test_every_command_in_the_readme_and_the_docs_exists(root: Path) -> None:
    named = {words for path in (root / "README.md", *DOCS) for words in commands(path.read_text())}
    assert {("run",), ("audit", "verify"), ("groups", "add")} <= named
    script = str(Path(sys.executable).parent / "standfast")
    for words in sorted(named):
        run = subprocess.run([script, *words, "--help"], capture_output=True, text=True)
        assert 0 == run.returncode, f"standfast {' '.join(words)}: {run.stderr}"


@pytest.mark.parametrize("which", ["first", "test"])
def test_the_line_that_ci_reads_out_of_the_readme_is_there_once(root: Path, which: str) -> None:
    run = subprocess.run([sys.executable, str(root / ".ci" / "readme_line.py"), which], capture_output=True, text=True)
    assert 0 == run.returncode, run.stderr
    assert run.stdout.startswith("pip install ")
