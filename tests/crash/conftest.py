"""Children that can be killed, and the servers that outlive them and count."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import at_database
from tests.crash.support.fleet import Forge
from tests.crash.support.processes import Nursery
from tests.servers.process import ServerProcess


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A process that forks children, each of which does one job of tests/crash/support/jobs.py."""
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    """A process that forks workers."""
    with Forge() as forge:
        yield forge


@pytest.fixture(scope="module")
def shared_database_url(server_url: str, template: str) -> Iterator[str]:
    """A migrated database for all threads of a module."""
    name = f"crash_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}")
    yield at_database(server_url, name)
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"drop database {name} with (force)")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The reports API as a process of its own; it deduplicates by key."""
    with ServerProcess("reports", tmp_path_factory.mktemp("reports") / "reports.jsonl") as server:
        yield server


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one short document."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "lighthouse.txt").write_text(
        "The lighthouse at Far Point was lit in 1871.\n\nIts keeper wrote a line into the log every night.\n"
    )
    return folder
