"""A page of the documentation as what can be run: its blocks, and a shell that they are typed into.

Invariant: nothing on a page is skipped in silence. A block is run, written to its file, parsed, or, without a
language, a drawing; a block of any other kind is an error.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
USER: Final = "kim"
_SECONDS_A_COMMAND: Final = 100.0  # on a busy machine

_BLOCK: Final = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")

_REAPED: Final = re.compile(r"^bash: (?:line \d+: +)?\d+ (?:Killed|Terminated) ")  # what no terminal shows so


@dataclass(frozen=True)
class Block:
    """A fenced block: its language (empty for a drawing), the file that it is, if it is one, its text and its line."""

    language: str
    title: str | None
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """What is typed, and what the page says it prints."""

    typed: str
    printed: str


def pages() -> list[str]:
    """The README and every page below docs/, by their paths from the top; records of decisions are not for doing."""
    found = (path.relative_to(ROOT) for path in DOCS.rglob("*.md") if path.parent.name != "decisions")
    return ["README.md", *sorted(map(str, found))]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text()
    return [Block(one[1], one[2], one[3], text.count("\n", 0, one.start()) + 1) for one in _BLOCK.finditer(text)]


def links(page: str) -> Iterator[str]:
    """Where the page's links lead, pictures too, outside its blocks."""
    for one in _LINK.finditer(_BLOCK.sub("", (ROOT / page).read_text())):
        yield one[1] or one[2]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block: each `$ ` line with those that continue it, and what follows up to the next."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        length = next(n for n, line in enumerate(lines, 1) if not line.endswith("\\\n"))
        yield Command("".join(lines[:length]).strip(), "".join(lines[length:]))


class Shell:
    """One bash for a whole page, in a folder of its own, with the page's standfast on its path."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        programs = str(Path(sys.executable).parent)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STANDFAST_", "OPENAI_"))}
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            start_new_session=True,
            env={
                **kept,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "PYTHONUNBUFFERED": "1",  # so that both streams come in the order in which they were written
                "USER": USER,
                "LOGNAME": USER,
                "COLUMNS": "200",
                **environment,
            },
        )

    def type(self, command: str) -> tuple[int, str]:
        """The exit status and everything that was printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        mark = f"@@{secrets.token_hex(8)}"
        self._process.stdin.write(
            f"(exit ${{status:-0}})\n{{ {command}\n}} </dev/null\nstatus=$?; echo; echo {mark} $status\n"
        )
        self._process.stdin.flush()
        printed = ""
        patience = threading.Timer(_SECONDS_A_COMMAND, self._kill)
        patience.start()
        try:
            for line in self._process.stdout:
                if line.startswith(mark):
                    return int(line.split()[1]), printed.removesuffix("\n")
                if not _REAPED.match(line):
                    printed += line
        finally:
            patience.cancel()
        logs = "".join(f"\n{one.name}:\n{one.read_text()}" for one in sorted(self._folder.glob("*.log")))
        raise AssertionError(f"{command!r} did not end: {printed}{logs}")

    def _kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the shell and what it still runs in the background: all of its session."""
        with self._process, contextlib.suppress(ProcessLookupError):
            self._kill()


# What differs from run to run, as it stands on a page, and what may stand there instead.
_IDENTIFIER: Final = r"\b(?:thread|apr|op|msg|art|q)-[0-9a-f]{8,}"
_VARYING: Final = re.compile(
    "|".join(
        f"(?P<{name}>{pattern})"
        for name, pattern in {
            "lines": r"^ ?\[\.\.\.\]\n",
            "rest": r"\[\.\.\.\]",
            "identifier": _IDENTIFIER,
            "moment": r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:[+]00:00|Z| UTC)?",
            "day": r"\b[A-Z][a-z]+day, \d{4}-\d\d-\d\d",
            "time": r"\b\d\d:\d\d:\d\d(?:\.\d+)?",
            "seconds": r"\b\d+\.\d+ s\b",
            "worker": r"\b[\w-]+:\d{3,7}\b",
            "uuid": r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
            "hex": r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,}\b",
            "home": r"/home/kim\b",
        }.items()
    ),
    re.MULTILINE,
)
_INSTEAD: Final = {
    "lines": r"(?:.*\n)*?",
    "rest": r".*",
    "moment": r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:[+]00:00|Z| UTC)?",
    "day": r"[A-Z][a-z]+day, \d{4}-\d\d-\d\d",
    "time": r"\d\d:\d\d:\d\d(?:\.\d+)?",
    "seconds": r"\d+\.\d+ s",
    "worker": r"[\w.-]+:\d+",
    "uuid": r"[0-9a-f-]{36}",
    "hex": r"[0-9a-f]+",
    "home": r".*",
}


@dataclass
class Reader:
    """Compares what a page says with what was printed, and learns which identifier stands for which."""

    real: dict[str, str] = field(default_factory=dict)  # on the page -> in this run

    def translate(self, typed: str) -> str:
        """A command with the identifiers of this run."""
        return re.sub(_IDENTIFIER, lambda one: self.real.get(one[0], one[0]), typed)

    def compare(self, said: str, printed: str) -> None:
        """AssertionError unless what was printed is what the page says."""
        # The pages are written with the embedded server, where the system's user is proof enough.
        said, printed = _spaced(said), _spaced(printed.replace(" (on the caller's word)", ""))
        names: dict[str, str] = {}
        pattern = ""
        end = 0
        for one in _VARYING.finditer(said):
            pattern += re.escape(said[end : one.start()]) + self._instead(one, names)
            end = one.end()
        pattern += re.escape(said[end:])
        found = re.fullmatch(pattern, printed)
        assert found, f"the page says\n{textwrap.indent(said, '    ')}\nand this was printed\n" + textwrap.indent(
            printed, "    "
        )
        self.real |= {name: found[group] for name, group in names.items()}

    def _instead(self, one: re.Match[str], names: dict[str, str]) -> str:
        kind = str(one.lastgroup)
        if kind != "identifier":
            return _INSTEAD[kind]
        name = one[0]
        if name in self.real:
            return re.escape(self.real[name])
        if name in names:
            return f"(?P={names[name]})"
        names[name] = f"id{len(names)}"
        return f"(?P<{names[name]}>{name.partition('-')[0]}-[0-9a-f]+)"


def _spaced(text: str) -> str:
    """Columns are as wide as their widest value, which differs: runs of spaces count as one, empty lines as none."""
    return "".join(f"{re.sub(' +', ' ', line).strip()}\n" for line in text.splitlines() if line.strip())
