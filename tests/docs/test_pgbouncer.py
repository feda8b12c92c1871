"""The page about PgBouncer and its configuration in docs/deploy, tried with a real one before an empty database."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from standfast.checkpoint import errors
from standfast.checkpoint.migrate import migrate
from standfast.graph import Runtime, build_agent

ROOT: Final = Path(__file__).parents[2]
PGBOUNCER: Final = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
ROLE: Final = "standfast_pooled"
PASSWORD: Final = "change me"

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")


@pytest.fixture
def pooled(
    empty_database_url: str, open_directory: Path, eventually: Callable[..., None]
) -> Iterator[Callable[[str], str]]:
    """`pooled("session")`: the URL of an empty database through a PgBouncer in that mode."""
    there = conninfo_to_dict(empty_database_url)
    name = str(there["dbname"])
    page = (ROOT / "docs" / "how-to" / "pgbouncer.md").read_text()
    (statements,) = re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    statements = re.sub(r"database standfast\b", f"database {name}", statements)
    processes: list[subprocess.Popen[bytes]] = []

    def start(mode: str) -> str:
        with psycopg.connect(empty_database_url, autocommit=True) as connection:
            connection.execute(statements)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        directory = open_directory / f"pgbouncer-{port}"
        directory.mkdir()
        (directory / "userlist.txt").write_text(f'"{ROLE}" "{PASSWORD}"\n')
        text = (ROOT / "docs" / "deploy" / "pgbouncer.ini").read_text()
        for old, new in {
            r"^standfast = .*$": f"{name} = host={there['host']} port={there['port']}",
            r"^listen_port = .*$": f"listen_port = {port}\nunix_socket_dir =",
            r"^auth_file = .*$": f"auth_file = {directory}/userlist.txt",
            r"^auth_type = .*$": "auth_type = plain",  # the server's own way differs with who runs the tests
            r"^pool_mode = .*$": f"pool_mode = {mode}",
        }.items():
            text, times = re.subn(old, new, text, flags=re.MULTILINE)
            assert 1 == times, old
        (directory / "pgbouncer.ini").write_text(text)
        # It refuses to be root's, and must reach the server's socket.
        host = str(there["host"])
        owner = os.stat(host).st_uid if host.startswith("/") else pwd.getpwnam("nobody").pw_uid
        user = {"user": owner} if os.geteuid() == 0 else {}
        assert PGBOUNCER is not None
        command = [PGBOUNCER, "--quiet", str(directory / "pgbouncer.ini")]
        processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL, **user))  # type: ignore[call-overload]
        eventually(lambda: _listens(port), 20.0)
        return f"postgresql://{ROLE}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/{name}"

    yield start
    for process in processes:
        process.kill()
        process.wait()
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(f"drop owned by {ROLE} cascade; drop role {ROLE}")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_what_the_page_says_works_by_sessions(pooled: Callable[[str], str], tmp_path: Path) -> None:
    document = ROOT / "notebooks" / "documents" / "bsd-3-clause.txt"
    url = pooled("session")
    for command in ("migrate", "doctor"):
        typed = [Path(sys.executable).with_name("standfast"), command]
        run = subprocess.run(typed, env={**os.environ, "STANDFAST_DATABASE_URL": url}, capture_output=True, text=True)
        assert 0 == run.returncode, run.stdout + run.stderr
    with Runtime(build_agent(), database_url=url) as runtime:
        waiting = runtime.invoke(
            "Compare what the licences ask, and publish a report",
            thread_id="t",
            documents=[document],
            model="offline",
            reports_dir=tmp_path,
        )
        done = runtime.resume("t", approve=waiting.approvals[0].id)
        told = [one.kind for one in runtime.stream("t")]
    assert ("waiting", "succeeded") == (waiting.status, done.status)
    assert "run_end" == told[-1]


@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_another_mode_is_refused_by_name(pooled: Callable[[str], str], mode: str) -> None:
    with pytest.raises(errors.DatabaseMisconfigured, match="pooler"):
        await migrate(pooled(mode))
