"""Fixtures that every folder uses: a real Postgres, a fresh migrated database for each test, a clock to move."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import anyio
import psycopg
import pytest

from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.checkpoint.migrate import migrate

pytest_plugins = ["tests.ordering", "tests.servers.fixtures", "tests.suspending"]


@pytest.fixture(scope="session")
def open_directory() -> Iterator[Path]:
    """A directory that the embedded server's account can reach; pytest's own are private to the user."""
    path = Path(tempfile.mkdtemp(prefix="standfast-tests-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def server_url(open_directory: Path) -> Iterator[str]:
    """A server of this test process: STANDFAST_TEST_DATABASE_URL, or an embedded one without fsync."""
    given = os.environ.get("STANDFAST_TEST_DATABASE_URL")
    if given:
        yield given
        return
    settings = {
        "fsync": "off",
        "synchronous_commit": "off",
        "max_connections": "300",
        # Dropping a database waits for every connection that has begun to authenticate; a cancelled one never ends.
        "authentication_timeout": "5s",
    }
    server = EmbeddedPostgres(open_directory / "server", settings=settings)
    yield server.acquire()
    server.release()


@pytest.fixture(scope="session", autouse=True)
def thawed() -> Iterator[None]:
    """At the end pytest collects what was frozen too, and tells what was never closed."""
    yield
    gc.unfreeze()


def at_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """A migrated database to be cloned."""
    name = f"template_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"create database {name}")
    anyio.run(migrate, at_database(server_url, name))
    yield name
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"drop database {name} with (force)")


@pytest.fixture
def database_url(server_url: str, template: str) -> Iterator[str]:
    """A fresh, migrated database."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}")
    gc.freeze()  # all that is there now: a collection that looks through every module takes longer than a test
    yield at_database(server_url, name)
    gc.collect()  # lets go of connections that a test cancelled while they were being made
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"drop database {name} with (force)")


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A fresh database without any schema."""
    name = f"empty_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"create database {name}")
    yield at_database(server_url, name)
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"drop database {name} with (force)")


class Clock:
    """The database's clock, frozen; every process that uses the database sees it."""

    def __init__(self, url: str) -> None:
        self._url = url
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("create table standfast.frozen_clock (at timestamptz not null)")
            conn.execute("insert into standfast.frozen_clock values (clock_timestamp())")
            conn.execute(
                """create or replace function standfast.now() returns timestamptz language sql volatile
                   as 'select at from standfast.frozen_clock'"""
            )

    def now(self) -> datetime:
        with psycopg.connect(self._url, autocommit=True) as conn:
            row = conn.execute("select at from standfast.frozen_clock").fetchone()
        assert row is not None
        return row[0]  # type: ignore[no-any-return]

    def move(self, by: timedelta) -> None:
        with psycopg.connect(self._url, autocommit=True) as conn:
            conn.execute("update standfast.frozen_clock set at = at + %s", (by,))


@pytest.fixture
def clock(database_url: str) -> Clock:
    """`database_url`'s clock, frozen at now; `clock.move(timedelta)` moves it."""
    return Clock(database_url)


@pytest.fixture
def query(database_url: str) -> Callable[..., list[tuple[object, ...]]]:
    """Run SQL on the test's database and get its rows."""

    def run(sql: str, *params: object) -> list[tuple[object, ...]]:
        with psycopg.connect(database_url, autocommit=True, options="-c search_path=standfast") as conn:
            cursor = conn.execute(sql, params)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def bells(database_url: str) -> Iterator[Callable[[], list[str]]]:
    """The bells, `graph@version`, that have been rung since they were asked for last."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("listen standfast_due")
        yield lambda: [note.payload for note in conn.notifies(timeout=0.2)]
