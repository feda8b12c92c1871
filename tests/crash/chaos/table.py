"""The table of docs/reliability.md, made of reports and dated."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg

from tests.crash.chaos.fire import Report

_PLACE: Final = re.compile(r"(?<=<!-- made by make chaos -->\n).*?(?=<!-- end -->)", re.DOTALL)
_COLUMNS: Final = ("seed", "threads", "done", "lost", "duplicated", "wrong", "stuck", "faults", "seconds")


def write(path: Path, reports: Sequence[Report]) -> None:
    """Put the table of these fires between the document's marks. ValueError if it has none."""
    text = path.read_text(encoding="utf-8")
    if not _PLACE.search(text):
        raise ValueError(f"{path} has no place for the table")
    path.write_text(_PLACE.sub(lambda _: table(reports), text), encoding="utf-8")


def table(reports: Sequence[Report]) -> str:
    """Markdown: what was measured when and on what, a row for each fire, and how often each fault came."""
    faults: dict[str, int] = {}
    for one in reports:
        for kind, count in one.kinds.items():
            faults[kind] = faults.get(kind, 0) + count
    lines = [
        f"Made on {datetime.now(UTC):%Y-%m-%d} on {os.cpu_count()} cores, psycopg {psycopg.__version__}.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{'---|' * len(_COLUMNS)}",
        *(f"| {' | '.join(str(getattr(one, column)) for column in _COLUMNS)} |" for one in reports),
        "",
        f"Faults: {', '.join(f'{kind} {count}' for kind, count in sorted(faults.items()))}. "
        f"People let {sum(one.put_aside for one in reports)} runs go on that five dead drivers in a row had parked.",
        "",
    ]
    return "\n".join(lines)
