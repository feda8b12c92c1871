"""A crowd: a database with many threads, most of which wait."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

Crowd = Callable[..., None]


@pytest.fixture(scope="session")
def crowd() -> Crowd:
    """`crowd(url, threads, long=0)` fills a fresh database; `long`: the rows of each kind that thread t-1 has."""
    text = Path(__file__).with_name("crowd.sql").read_text()
    statements = [one.strip().encode() for one in re.split(r"^-- name: \w+\n", text, flags=re.MULTILINE)[1:]]

    def fill(url: str, threads: int, *, long: int = 0) -> None:
        with psycopg.connect(url, autocommit=True, options="-c search_path=standfast") as conn:
            with conn.transaction():
                conn.execute("set local session_replication_role = replica")  # no triggers, no foreign keys
                for statement in statements:
                    conn.execute(statement, {"threads": threads, "long": long})
            conn.execute("vacuum analyze")

    return fill
