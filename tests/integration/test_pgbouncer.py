"""Behind PgBouncer: by sessions everything works, by transactions the start says what is wrong."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from psycopg.conninfo import conninfo_to_dict

from standfast.checkpoint import errors
from standfast.checkpoint.migrate import migrate
from standfast.graph import Runtime, wait_for_event

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
pytestmark = pytest.mark.skipif(not Path(PROGRAM).exists(), reason="needs PgBouncer: apt-get install pgbouncer")
Pooler = Callable[..., str]


class Note(TypedDict, total=False):
    text: str


async def node(state: Note) -> Note:
    event = await wait_for_event("go", timeout=60)
    return {"text": "timed out" if event is None else str(event.payload)}


def graph() -> StateGraph[Note]:
    graph = StateGraph(Note)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph


@pytest.fixture
def pooler(database_url: str, tmp_path: Path, unused_tcp_port: int) -> Iterator[Pooler]:
    """`pooler("session")`: the URL of a PgBouncer before the test's database; its role has the search path."""
    direct = conninfo_to_dict(database_url)
    name = urlsplit(database_url).path.removeprefix("/")
    user, password = direct["user"], direct.get("password") or ""
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(f"alter database {name} set search_path = standfast, public")  # type: ignore[arg-type]
    started: list[subprocess.Popen[bytes]] = []
    # PgBouncer refuses root, and the server's socket may be its own account's alone.
    account = None
    if os.geteuid() == 0:
        host = str(direct["host"])
        account = pwd.getpwuid(os.stat(host).st_uid) if host.startswith("/") else pwd.getpwnam("nobody")

    def start(mode: str, *ignored: str) -> str:
        folder = tmp_path / "pooler"
        folder.mkdir()
        (folder / "users.txt").write_text(f'"{user}" "{password}"\n')
        (folder / "pgbouncer.ini").write_text(
            f"""
[databases]
{name} = host={direct["host"]} port={direct.get("port") or 5432} dbname={name} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {unused_tcp_port}
unix_socket_dir =
auth_type = plain
auth_file = {folder / "users.txt"}
pool_mode = {mode}
default_pool_size = 40
max_client_conn = 200
{"ignore_startup_parameters = " + ",".join(ignored) if ignored else ""}
"""
        )
        if account is not None:
            for path in (folder, *folder.iterdir()):
                os.chown(path, account.pw_uid, account.pw_gid)
            for path in (tmp_path, *list(tmp_path.parents)[:-2]):  # all below /tmp
                path.chmod(0o755)
        command = [PROGRAM, "-q", str(folder / "pgbouncer.ini")]
        started.append(subprocess.Popen(command, user=None if account is None else account.pw_uid))
        url = f"postgresql://{user}:{password}@127.0.0.1:{unused_tcp_port}/{name}"
        deadline = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(url, connect_timeout=2).close()
            except psycopg.OperationalError:
                assert started[-1].poll() is None, "PgBouncer did not start"
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return url

    yield start
    for one in started:
        one.send_signal(signal.SIGTERM)
        one.wait()


async def test_a_pooler_by_transactions_is_refused_at_the_start(pooler: Pooler) -> None:
    url = pooler("transaction", "options", "extra_float_digits")
    with pytest.raises(errors.DatabaseMisconfigured, match="transaction mode"):
        async with Runtime(graph(), database_url=url):
            pass
    with pytest.raises(errors.DatabaseMisconfigured, match="transaction mode"):
        await migrate(url)


async def test_a_pooler_that_does_not_take_our_options_is_named(pooler: Pooler) -> None:
    url = pooler("session")
    with pytest.raises(errors.DatabaseUnavailable, match="options"):
        async with Runtime(graph(), database_url=url):
            pass


async def test_by_sessions_workers_events_and_waits_work(pooler: Pooler) -> None:
    url = pooler("session", "options", "extra_float_digits")
    await migrate(url)
    async with Runtime(graph(), database_url=url, name="notes") as runtime:
        stop = asyncio.Event()
        work = asyncio.create_task(runtime.awork(stop=stop))
        await runtime.asubmit({}, thread_id="t")
        assert "waiting" == (await runtime.aresult("t", timeout=30)).status
        await runtime.aemit("go", "gone", id="1")
        async with asyncio.timeout(30):
            while (result := await runtime.aresult("t")).status != "succeeded":
                await asyncio.sleep(0.02)
        stop.set()
        await work
    assert "gone" == result.values["text"]
