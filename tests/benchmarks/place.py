"""Where a benchmark runs: a fresh, migrated database on a server with fsync on."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import anyio
import psycopg

from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.checkpoint.migrate import migrate


@contextmanager
def fresh_database(server: str | None) -> Iterator[str]:
    """A database of its own on `server`, by default on an embedded one with default settings; dropped at the end."""
    with ExitStack() as stack:
        if server is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-bench-"))
            Path(directory).chmod(0o755)  # the embedded server's account must reach it
            server = stack.enter_context(_embedded(Path(directory) / "server"))
        name = f"bench_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute(f"create database {name}")
        url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        try:
            anyio.run(migrate, url)
            yield url
        finally:
            with psycopg.connect(server, autocommit=True) as conn:
                conn.execute(f"drop database {name} with (force)")


@contextmanager
def _embedded(directory: Path) -> Iterator[str]:
    server = EmbeddedPostgres(directory)
    try:
        yield server.acquire()
    finally:
        server.release()
