"""The schema comes up whole, whoever starts at once, dies in the middle, or was here before."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from standfast.checkpoint import database, errors, migrate
from standfast.checkpoint.database import SCHEMA, Database, conninfo_of
from standfast.checkpoint.migrate import OF_OTHERS, migrations
from standfast.checkpoint.migrate import migrate as migrate_database

MIGRATE = """
import asyncio, os, signal, sys
from standfast.checkpoint import crashpoints
from standfast.checkpoint.migrate import migrate

die_at = sys.argv[2].split(":")
reached = 0
def hook(point):
    global reached
    if point == die_at[0]:
        reached += 1
        if reached == int(die_at[1]):
            os.kill(os.getpid(), signal.SIGKILL)
crashpoints.hook = hook
print(len(asyncio.run(migrate(sys.argv[1]))))
"""


def start(url: str, die_at: str = "-:1") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MIGRATE, url, die_at], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, complaint = process.communicate(timeout=100)
    return process.returncode, output.strip() or complaint


def run(url: str, sql: str, *params: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, options=f"-c search_path={SCHEMA},public") as conn:
        cursor = conn.execute(sql, params or None)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


def schema_of(url: str) -> list[tuple[Any, ...]]:
    """Every column, index, constraint and function of the schema, in words."""
    return run(
        url,
        """select 'column', table_name || '.' || column_name,
                  concat_ws(' ', data_type, is_nullable, column_default, generation_expression)
             from information_schema.columns where table_schema = 'standfast'
           union all
           select 'index', i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) || i.indisvalid
             from pg_index i join pg_class c on c.oid = i.indexrelid where c.relnamespace = 'standfast'::regnamespace
           union all
           select 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
             from pg_constraint where connamespace = 'standfast'::regnamespace and contype <> 'n'
           union all
           select 'function', oid::regprocedure::text, prosrc
             from pg_proc where pronamespace = 'standfast'::regnamespace
           order by 1, 2""",
    )


def test_eight_processes_that_start_at_once_all_succeed(
    server_url: str, empty_database_url: str, database_url: str
) -> None:
    expected = schema_of(database_url)
    for _ in range(2):
        outcomes = [ended(process) for process in [start(empty_database_url) for _ in range(8)]]
        total = str(len(migrations()) + OF_OTHERS)
        assert [(0, "0")] * 7 + [(0, total)] == sorted(outcomes)
        assert expected == schema_of(empty_database_url)
        run(empty_database_url, "drop schema standfast cascade")


@pytest.mark.parametrize("die_at", ["migrate.between:1", "migrate.inside:1"])
async def test_after_a_kill_in_the_middle_the_next_goes_on(
    empty_database_url: str, database_url: str, die_at: str
) -> None:
    killed = start(empty_database_url, die_at)
    assert -9 == ended(killed)[0]
    with pytest.raises(errors.SchemaOutOfDate, match="standfast migrate"):
        await require_thread_table(empty_database_url)
    assert [] != await migrate_database(empty_database_url)
    assert [] == await migrate_database(empty_database_url)
    assert schema_of(database_url) == schema_of(empty_database_url)


async def require_thread_table(url: str) -> None:
    store = Database(url, retry_seconds=1)
    await store.open()
    try:
        await store.fetch(b"select * from threads")
    finally:
        await store.close()


async def test_an_index_that_a_killed_build_left_invalid_is_mended(database_url: str) -> None:
    run(
        database_url,
        "update pg_index set indisvalid = false where indexrelid = 'standfast.store_prefix_idx'::regclass",
    )
    run(database_url, "delete from migrations where component = 'langgraph-checkpoint-postgres'")
    applied = await migrate_database(database_url)
    assert ["langgraph-checkpoint-postgres"] == [one.split()[0] for one in applied]
    assert [] == run(
        database_url,
        "select indexrelid::regclass::text from pg_index i join pg_class c on c.oid = i.indexrelid "
        "where c.relnamespace = 'standfast'::regnamespace and not indisvalid",
    )


async def test_a_schema_from_a_newer_release_is_refused_and_left_alone(database_url: str) -> None:
    run(
        database_url,
        "insert into migrations (component, number, name, version, sha256) values ('standfast', 999, 'x', '9', '')",
    )
    before = schema_of(database_url)
    with pytest.raises(errors.SchemaTooNew, match="999") as refused:
        await migrate_database(database_url)
    assert 999 == refused.value.number
    assert before == schema_of(database_url)


@pytest.mark.parametrize("table", ["checkpoint_migrations", "store_migrations"])
async def test_version_rows_that_were_deleted_are_made_again(database_url: str, table: str) -> None:
    before = run(database_url, f"select v from {table} order by v")
    schema = schema_of(database_url)
    run(database_url, f"delete from {table} where v >= (select max(v) from {table}) - 3")
    run(database_url, "delete from migrations where component = 'langgraph-checkpoint-postgres'")
    await migrate_database(database_url)
    assert before == run(database_url, f"select v from {table} order by v")
    assert schema == schema_of(database_url)


async def test_all_migrations_give_the_fresh_schema(empty_database_url: str, database_url: str) -> None:
    await migrate_database(empty_database_url)
    assert schema_of(database_url) == schema_of(empty_database_url)
    recorded = run(
        empty_database_url, "select name, sha256 from migrations where component = 'standfast' order by number"
    )
    assert [(one.name, one.sha256) for one in migrations()] == recorded
    numbers = [one.number for one in migrations()]
    assert sorted(set(numbers)) == numbers


# -- roles, servers and addresses


@pytest.fixture
def reader_url(server_url: str, database_url: str) -> Iterator[str]:
    """The database as a role that may read and write rows, and create nothing."""
    name = f"app_{urlsplit(database_url).path[1:]}"
    run(database_url, f"create role {name} login password 'secret-of-app'")
    run(database_url, f"grant usage on schema standfast to {name}")
    run(database_url, f"grant select on all tables in schema standfast to {name}")
    yield with_user(database_url, name, "secret-of-app")
    run(database_url, f"drop owned by {name}")
    run(database_url, f"drop role {name}")


def with_user(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}"))


async def test_a_role_without_the_right_to_create_opens_a_ready_schema(reader_url: str) -> None:
    assert [] == await migrate_database(reader_url)
    await require_thread_table(reader_url)


async def test_a_role_without_the_right_to_create_is_told_who_must_migrate(reader_url: str, database_url: str) -> None:
    run(database_url, "delete from migrations where component = 'langgraph-checkpoint-postgres'")
    with pytest.raises(errors.DatabaseMisconfigured, match="standfast migrate") as refused:
        await migrate_database(reader_url)
    assert "secret-of-app" not in str(refused.value)


async def test_a_newer_part_of_a_rolling_deploy_is_left_alone_and_an_older_one_brought_up_to_date(
    reader_url: str, database_url: str
) -> None:
    run(database_url, "update migrations set version = '99.0' where component = 'langgraph-checkpoint-postgres'")
    assert [] == await migrate_database(reader_url)
    run(database_url, "update migrations set version = '0.1' where component = 'langgraph-checkpoint-postgres'")
    with pytest.raises(errors.DatabaseMisconfigured):
        await migrate_database(reader_url)
    assert [
        f"langgraph-checkpoint-postgres {metadata.version('langgraph-checkpoint-postgres')}"
    ] == await migrate_database(database_url)


async def test_a_server_that_is_too_old_is_refused(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # No server below 15 can be had here: the bar is raised instead.
    monkeypatch.setattr(database, "MINIMUM_VERSION", 990000)
    with pytest.raises(errors.DatabaseTooOld, match="needs 15 or newer"):
        await migrate_database(database_url)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("postgresql://someone:hush-hush@127.0.0.1:1/nowhere", errors.DatabaseUnavailable),
        ("postgresql://someone:hush-hush@nowhere.invalid/db", errors.DatabaseUnavailable),
        ("postgresql://someone:hush-hush@[::1/db", errors.DatabaseMisconfigured),
        ("postgresql://someone:hush-hush@h/db?no_such_option=1", errors.DatabaseMisconfigured),
        ("hush-hush", errors.DatabaseMisconfigured),
        ("mysql://someone:hush-hush@h/db", errors.DatabaseMisconfigured),
    ],
)
async def test_an_address_that_does_not_work_is_one_sentence_without_the_password(
    url: str, error: type[errors.ConfigurationError]
) -> None:
    with pytest.raises(error) as refused:
        await migrate_database(url)
    assert "hush-hush" not in str(refused.value)
    assert 1 == len(str(refused.value).splitlines())


async def test_a_database_that_does_not_exist_is_named(server_url: str) -> None:
    missing = urlunsplit(urlsplit(server_url)._replace(path="/no_such_database"))
    with pytest.raises(errors.DatabaseUnavailable, match="no_such_database"):
        await migrate_database(missing)


async def test_a_wrong_password_is_named_and_not_shown(reader_url: str, database_url: str) -> None:
    wrong = reader_url.replace("secret-of-app", "not-the-password")
    if run(database_url, "select 1 from pg_hba_file_rules where auth_method = 'trust'"):
        pytest.skip("this server trusts everybody")
    with pytest.raises(errors.DatabaseUnavailable, match="password") as refused:
        await migrate_database(wrong)
    assert "not-the-password" not in str(refused.value)


@asynccontextmanager
async def pooler(url: str, directory: Path) -> AsyncIterator[str]:
    """A proxy that drops the start-up parameter `options`, as transaction poolers do."""
    params = psycopg.conninfo.conninfo_to_dict(url)
    host, port = str(params["host"]), int(params.get("port") or 5432)

    async def upstream() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.close()
        await sink.wait_closed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        while True:
            length = int.from_bytes(await reader.readexactly(4), "big")
            body = await reader.readexactly(length - 4)
            if body[:4] == (196608).to_bytes(4, "big"):
                break
            writer.write(b"N")  # no TLS, no GSS
        fields = body[4:].rstrip(b"\0").split(b"\0")
        kept = [pair for pair in zip(fields[::2], fields[1::2], strict=True) if pair[0] != b"options"]
        body = body[:4] + b"".join(name + b"\0" + value + b"\0" for name, value in kept) + b"\0"
        back, forth = await upstream()
        forth.write((len(body) + 4).to_bytes(4, "big") + body)
        await asyncio.gather(pump(reader, forth), pump(back, writer))

    serving: list[Any] = []
    server = await asyncio.start_unix_server(serve, directory / f".s.PGSQL.{port}")
    async with server:
        yield psycopg.conninfo.make_conninfo(url, host=str(directory), port=port)
        await asyncio.gather(*serving)


async def test_a_pooler_that_drops_the_search_path_is_refused_by_name(database_url: str, tmp_path: Path) -> None:
    async with pooler(database_url, tmp_path) as url:
        with pytest.raises(errors.DatabaseMisconfigured, match="search path"):
            await migrate_database(url)
        with pytest.raises(errors.DatabaseMisconfigured, match="search path"):
            await Database(url).open()


async def test_a_process_that_waits_for_another_says_so(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    async with await psycopg.AsyncConnection.connect(conninfo_of(empty_database_url), autocommit=True) as other:
        await other.execute("select pg_advisory_lock(%s)", (migrate._LOCK,))
        monkeypatch.setattr(migrate, "_WAIT_SECONDS", 0.3)
        with pytest.raises(errors.DatabaseUnavailable, match="pg_locks"):
            await migrate_database(empty_database_url, report=told.append)
    assert ["another process is migrating this database; waiting for it"] == told
