"""The pool outlives its connections and its server: no acknowledged commit is lost, no work is done twice."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from standfast.checkpoint import errors
from standfast.checkpoint.database import Connection, Database
from standfast.checkpoint.embedded import EmbeddedPostgres

Query = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, pool_size=5, retry_seconds=20)
    await database.open()
    yield database
    await database.close()


async def write(database: Database, key: str) -> None:
    """One unit of work: a key that was made before it, so that it may be sent again."""

    async def work(conn: Connection) -> None:
        await conn.execute(
            b"""with new as (insert into public.written (key) values (%s) on conflict do nothing returning 1)
                update public.counted set units = units + (select count(*) from new)""",
            (key,),
        )

    await database.run(work)


def make_tables(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("create table public.written (key text primary key)")
        conn.execute("create table public.counted (units bigint not null)")
        conn.execute("insert into public.counted values (0)")


@pytest.mark.guarantee("G1")
async def test_work_goes_on_when_every_connection_is_terminated(
    database: Database, database_url: str, query: Query
) -> None:
    make_tables(database_url)
    acknowledged: list[str] = []
    stop = asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            key = uuid.uuid4().hex
            await write(database, key)
            acknowledged.append(key)

    workers = [asyncio.create_task(work()) for _ in range(8)]
    for _ in range(5):
        before = len(acknowledged)
        async with asyncio.timeout(20):
            while len(acknowledged) < before + 20:
                await asyncio.sleep(0.01)
        query(
            """select pg_terminate_backend(pid) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid()"""
        )
    stop.set()
    await asyncio.gather(*workers)
    assert set(acknowledged) == {key for (key,) in query("select key from public.written")}
    assert [(len(acknowledged),)] == query("select units from public.counted")


@pytest.mark.guarantee("G1")
async def test_a_restart_of_the_server_loses_no_acknowledged_commit(open_directory: Path) -> None:
    server = EmbeddedPostgres(open_directory / f"restarted-{uuid.uuid4().hex[:8]}")
    url = server.acquire()
    make_tables(url)
    database = Database(url, pool_size=5, retry_seconds=60)
    await database.open()
    acknowledged: list[str] = []
    stop = asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            key = uuid.uuid4().hex
            await write(database, key)
            acknowledged.append(key)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    try:
        for _ in range(2):
            before = len(acknowledged)
            async with asyncio.timeout(60):
                while len(acknowledged) < before + 50:
                    await asyncio.sleep(0.01)
            assert await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.acquire)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*workers), 60)
        rows = await database.fetch(b"select key, (select units from public.counted) as units from public.written")
        assert set(acknowledged) == {row["key"] for row in rows}
        assert {len(acknowledged)} == {row["units"] for row in rows}
    finally:
        await database.close()
        await asyncio.to_thread(server.release)


@pytest.mark.guarantee("G1")
async def test_a_database_that_stays_away_is_reported_after_the_retries(open_directory: Path) -> None:
    server = EmbeddedPostgres(open_directory / f"away-{uuid.uuid4().hex[:8]}", settings={"fsync": "off"})
    database = Database(server.acquire(), pool_size=3, retry_seconds=2)
    await database.open()
    await database.fetch(b"select 1")
    await asyncio.to_thread(server.stop)
    began = time.monotonic()
    with pytest.raises(errors.StorageUnavailable, match="did not answer for 2 s") as raised:
        await database.fetch(b"select 1")
    assert 1.0 < time.monotonic() - began < 5.0
    assert raised.value.transient
    await database.close()
    await asyncio.to_thread(server.release)


async def test_a_full_pool_is_waited_for_and_named(database_url: str) -> None:
    database = Database(database_url, pool_size=1, retry_seconds=1)
    await database.open()
    async with database.reading():
        began = time.monotonic()
        with pytest.raises(errors.StorageUnavailable):
            await database.fetch(b"select 1")
        assert time.monotonic() - began < 4.0
    assert [{"one": 1}] == await database.fetch(b"select 1 as one")
    await database.close()


async def test_a_commit_whose_answer_was_lost_is_not_done_twice(
    database: Database, database_url: str, query: Query
) -> None:
    make_tables(database_url)
    attempts = 0

    async def work(conn: Connection) -> int:
        nonlocal attempts
        attempts += 1
        await conn.execute(b"insert into public.written (key) values ('k') on conflict do nothing")
        if attempts == 1:
            await conn.execute(b"commit")  # the commit arrives, and the connection dies before its answer does
            query("select pg_terminate_backend(%s, 5000)", conn.info.backend_pid)
        return attempts

    assert 2 == await database.run(work)
    assert [("k",)] == query("select key from public.written")


async def test_a_mistake_in_the_work_is_not_repeated(database: Database) -> None:
    attempts = 0

    async def work(conn: Connection) -> None:
        nonlocal attempts
        attempts += 1
        await conn.execute(b"select 1 / 0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        await database.run(work)
    assert 1 == attempts


async def test_a_deadlock_is_repeated_until_both_are_done(database: Database, database_url: str, query: Query) -> None:
    make_tables(database_url)
    query("insert into public.written values ('a'), ('b')")
    query("alter table public.written add column times int not null default 0")
    met = asyncio.Barrier(2)

    async def both(first: str, second: str) -> None:
        tried = False

        async def work(conn: Connection) -> None:
            nonlocal tried
            statement = b"update public.written set times = times + 1 where key = %s"
            await conn.execute(statement, (first,))
            if not tried:
                tried = True
                await met.wait()
            await conn.execute(statement, (second,))

        await database.run(work)

    await asyncio.gather(both("a", "b"), both("b", "a"))
    assert [("a", 2), ("b", 2)] == query("select key, times from public.written order by key")


def test_a_second_event_loop_is_refused_by_name(database_url: str) -> None:
    database = Database(database_url)
    runner = asyncio.Runner()
    runner.run(database.open())
    with pytest.raises(errors.WrongLoop, match="another event loop"):
        asyncio.run(database.fetch(b"select 1"))
    runner.run(database.close())
    runner.close()


async def test_work_after_the_close_is_refused_by_name(database_url: str) -> None:
    database = Database(database_url)
    await database.open()
    await database.close()
    with pytest.raises(errors.RuntimeClosed, match="open a new one"):
        await database.fetch(b"select 1")


async def test_a_close_in_the_middle_of_an_outage_ends_the_retries_by_name(open_directory: Path) -> None:
    server = EmbeddedPostgres(open_directory / f"closing-{uuid.uuid4().hex[:8]}", settings={"fsync": "off"})
    database = Database(server.acquire(), pool_size=3, retry_seconds=30)
    await database.open()
    await asyncio.to_thread(server.stop)
    waiting = asyncio.create_task(database.fetch(b"select 1"))
    await asyncio.sleep(0.3)  # into the retries; whenever the close comes, the outcome is the same
    await database.close()
    with pytest.raises(errors.RuntimeClosed):
        await asyncio.wait_for(waiting, 5)
    await asyncio.to_thread(server.release)


async def test_what_the_schema_lacks_is_named(database: Database) -> None:
    with pytest.raises(errors.SchemaOutOfDate, match="standfast migrate"):
        await database.fetch(b"select * from no_such_table")


@pytest.mark.guarantee("G1")
async def test_after_a_cancel_at_any_moment_what_is_acknowledged_is_committed(
    database_url: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg yields to the loop where it enters a pipeline if the process is busy; here always."""
    monkeypatch.setattr(psycopg.waiting, "MAX_BUSY_TIME", -1.0)
    make_tables(database_url)
    database = Database(database_url, pool_size=1, retry_seconds=20)
    await database.open()

    async def work(conn: Connection) -> None:
        for _ in range(3):
            await conn.execute(b"select 1")

    try:
        for turns in range(30):
            task = asyncio.create_task(database.run(work, pipeline=True))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await database.fetch_none(b"insert into public.written values (%s)", (f"{turns:02}",))
    finally:
        await database.close()
    assert [(f"{turns:02}",) for turns in range(30)] == query("select key from public.written order by key")
