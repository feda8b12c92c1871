"""Reads the named SQL statements of `checkpoint/sql/*.sql`.

A file holds statements, each headed by `-- name: identifier`. They are handed to psycopg as bytes: none is
ever assembled from strings.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_HEAD = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def statements(noun: str) -> dict[str, bytes]:
    """All statements of `checkpoint/sql/{noun}.sql` by name."""
    text = (resources.files("standfast.checkpoint.sql") / f"{noun}.sql").read_text(encoding="utf-8")
    parts = _HEAD.split(text)
    return {name: body.strip().encode() for name, body in zip(parts[1::2], parts[2::2], strict=True)}
