"""The two streams: results on stdout, notes on stderr.

Invariant: text that came from a model, a document or a database reaches a terminal with every control
character made visible, so that it can neither hide nor rewrite what a person decides about. A reader that
went away, and a terminal that cannot show a character, end nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence, Sized
from datetime import datetime
from typing import Any, TextIO

from standfast.graph.visible import counted as counted
from standfast.graph.visible import local_time as local_time
from standfast.graph.visible import plain as plain
from standfast.graph.visible import shortened as shortened


def prepare_streams() -> None:
    """A character that the terminal's encoding lacks is written as an escape, never an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def say(text: object = "") -> None:
    """One line, or several, of the result."""
    _write(sys.stdout, f"{plain(text)}\n")


def note(text: object = "") -> None:
    """One line of what is going on."""
    _write(sys.stderr, f"{plain(text)}\n")


def say_json(value: Any, *, indent: int | None = 2) -> None:
    """The result as JSON, on one line without `indent`; times are ISO 8601 with their offset."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(value, default=_encoded, indent=indent, ensure_ascii=not utf8)
    if utf8:
        text = re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)
    _write(sys.stdout, f"{text}\n")


def say_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows in columns, each as wide as it must be; the last column is cut to the terminal's width."""
    cells = [[plain(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(heading), *(len(row[at]) for row in cells)) for at, heading in enumerate(headings)]
    width = terminal_width() if is_terminal(sys.stdout) else None
    for row in [list(headings), *cells]:
        line = "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        _write(sys.stdout, f"{line if width is None else line[:width]}\n")


def note_cut(found: Sized, limit: int) -> None:
    """Say, after a list that is as long as it may be, that it may have been cut."""
    if len(found) == limit:
        note(f"\nThese are the first {limit:,}; there may be more: --limit")


def is_terminal(stream: TextIO) -> bool:
    """Whether a person is at the other end."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def terminal_width() -> int:
    """Columns: COLUMNS if set, else the terminal's."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    for stream in (sys.stdout, sys.stderr):
        try:
            return os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            continue
    return 80


def _encoded(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return repr(value)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:  # `| head` has seen enough; the exit code still tells how it went
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
