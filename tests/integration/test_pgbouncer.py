"""Behind PgBouncer: by sessions everything works, by transactions the start says what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row
from pydantic import SecretStr

from standfast.checkpoint import errors
from standfast.checkpoint.migrate import migrate
from standfast.checkpoint.poolers import require_session
from standfast.checkpoint.settings import Settings
from standfast.graph import Runtime, wait_for_event

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
pytestmark = pytest.mark.skipif(not Path(PROGRAM).exists(), reason="needs PgBouncer: apt-get install pgbouncer")
IGNORED = ("options", "extra_float_digits")
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

    def start(mode: str, *ignored: str, size: int = 40, in_turn: bool = False) -> str:
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
default_pool_size = {size}
max_client_conn = 200
server_round_robin = {int(in_turn)}
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
    url = pooler("transaction", *IGNORED)
    with pytest.raises(errors.DatabaseMisconfigured, match="transaction mode"):
        async with Runtime(graph(), database_url=url):
            pass
    with pytest.raises(errors.DatabaseMisconfigured, match="transaction mode"):
        await migrate(url)


async def test_a_pooler_that_takes_its_servers_in_turn_is_known_beside_a_client_that_is_busy(
    pooler: Pooler,
) -> None:
    """Of three servers the busy one takes one before the first look: at each, the turn is such that nothing shows."""
    url = pooler("transaction", *IGNORED, size=3, in_turn=True)
    with contextlib.ExitStack() as clients:
        for _ in range(3):
            clients.enter_context(psycopg.connect(url)).execute("select 1")
    looks = itertools.count()

    async def connected() -> AsyncConnection[DictRow]:
        return await AsyncConnection.connect(url, autocommit=True, row_factory=dict_row)

    async with await connected() as conn, await connected() as busy:

        async def another() -> AsyncConnection[DictRow]:
            if next(looks) == 0:
                await busy.execute("select 1")
            return await connected()

        with pytest.raises(errors.DatabaseMisconfigured, match="transaction mode"):
            await require_session(conn, another, where="here")


async def test_a_pooler_that_does_not_take_our_options_is_named(pooler: Pooler) -> None:
    url = pooler("session")
    with pytest.raises(errors.DatabaseUnavailable, match="options"):
        async with Runtime(graph(), database_url=url):
            pass


async def test_by_sessions_workers_events_and_waits_work(pooler: Pooler) -> None:
    url = pooler("session", *IGNORED)
    await migrate(url)
    async with Runtime(graph(), database_url=url, name="notes") as runtime:
        assert ["gone"] == await told(runtime, threads=1)


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_pooler_of_either_kind_carries_the_work_beside_the_servers_own_address(
    pooler: Pooler, database_url: str, mode: str
) -> None:
    settings = Settings(pooled_url=SecretStr(pooler(mode, *IGNORED)))
    async with Runtime(graph(), database_url=database_url, name="notes", settings=settings) as runtime:
        assert ["gone"] == await told(runtime, threads=1)


async def test_by_transactions_many_drives_share_few_connections(pooler: Pooler, database_url: str) -> None:
    settings = Settings(pooled_url=SecretStr(pooler("transaction", *IGNORED, size=2)))
    async with Runtime(graph(), database_url=database_url, name="notes", settings=settings) as runtime:
        assert ["gone"] * 30 == await told(runtime, threads=30)
        assert runtime.store.database.pool.get_stats()["pool_size"] > 2
        async with runtime.store.database.reading() as conn:  # a pooler makes up the number that a client is told
            assert await runtime.store.database.pid_of(conn) != conn.info.backend_pid


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("way", ["session", "pooled"])
async def test_behind_a_pooler_too_a_stalled_transaction_gives_way_to_a_claim(
    pooler: Pooler, database_url: str, way: str
) -> None:
    url = pooler("session" if way == "session" else "transaction", *IGNORED)
    settings = Settings() if way == "session" else Settings(pooled_url=SecretStr(url))
    async with Runtime(
        graph(), database_url=url if way == "session" else database_url, name="notes", settings=settings
    ) as runtime:
        await runtime.asubmit({}, thread_id="t")
        with psycopg.connect(database_url) as stalled:
            stalled.execute("select from standfast.threads where id = 't' for update")
            async with asyncio.timeout(30):
                assert "waiting" == (await runtime.aresume("t")).status
            with pytest.raises(psycopg.OperationalError):
                stalled.execute("select")


async def test_a_pooler_before_another_database_is_refused(
    pooler: Pooler, database_url: str, empty_database_url: str
) -> None:
    settings = Settings(pooled_url=SecretStr(pooler("transaction", *IGNORED)))
    await migrate(empty_database_url)
    with pytest.raises(errors.DatabaseMisconfigured, match="another database"):
        async with Runtime(graph(), database_url=empty_database_url, settings=settings):
            pass


async def test_a_pooler_by_statements_is_refused_beside_the_server_too(pooler: Pooler, database_url: str) -> None:
    settings = Settings(pooled_url=SecretStr(pooler("statement", *IGNORED)))
    with pytest.raises(errors.DatabaseMisconfigured, match="statement mode"):
        async with Runtime(graph(), database_url=database_url, settings=settings):
            pass


async def told(runtime: Runtime, *, threads: int) -> list[str]:
    """What runs come to that wait for an event, with a worker beside them."""
    names = [f"t{number}" for number in range(threads)]
    stop = asyncio.Event()
    work = asyncio.create_task(runtime.awork(stop=stop))
    await asyncio.gather(*(runtime.asubmit({}, thread_id=name) for name in names))
    for name in names:
        assert "waiting" == (await runtime.aresult(name, timeout=60)).status
    await runtime.aemit("go", "gone", id="1")
    texts = []
    async with asyncio.timeout(60):
        for name in names:
            while (result := await runtime.aresult(name)).status != "succeeded":
                await asyncio.sleep(0.02)
            texts.append(result.values["text"])
    stop.set()
    await work
    return texts
