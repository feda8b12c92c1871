"""Commits that are sent together stand and fall each by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest

from standfast.checkpoint import errors
from standfast.checkpoint.database import Database, Statement

Query = Callable[..., list[tuple[Any, ...]]]
THREADS = ["a", "b", "c", "d", "e"]


@pytest.fixture
async def database(database_url: str, query: Query, add_thread: Callable[[str], str]) -> AsyncIterator[Database]:
    query("create table public.written (key text)")
    query("create sequence public.turns")
    for thread in THREADS:
        add_thread(thread)
        query("update threads set epoch = 1 where id = %s", thread)
    database = Database(database_url, pool_size=5, retry_seconds=20)
    await database.open()
    yield database
    await database.close()


def unit(thread: str, *, epoch: int = 1, then: bytes | None = None) -> list[Statement]:
    statements: list[Statement] = [
        (b"select assert_lease_1(%s, %s)", (thread, epoch)),
        (b"insert into public.written values (%s)", (thread,)),
    ]
    return [*statements, *([] if then is None else [(then, ())])]


def transactions(query: Query) -> list[list[str]]:
    rows = query("select array_agg(key order by key) from public.written group by xmin::text order by min(key)")
    return [list(keys) for (keys,) in rows]


async def test_what_comes_at_once_is_one_transaction(database: Database, query: Query) -> None:
    await asyncio.gather(*(database.commit(unit(thread)) for thread in THREADS))

    assert [["a"], ["b", "c", "d", "e"]] == transactions(query)


@pytest.mark.guarantee("G3")
async def test_who_has_lost_his_lease_takes_nobody_along(database: Database, query: Query) -> None:
    ended = await asyncio.gather(
        *(database.commit(unit(thread, epoch=0 if thread == "c" else 1)) for thread in THREADS), return_exceptions=True
    )

    assert [None, None, errors.LeaseLost, None, None] == [one if one is None else type(one) for one in ended]
    assert [("a",), ("b",), ("d",), ("e",)] == query("select key from public.written order by key")


@pytest.mark.guarantee("G3")
async def test_a_thread_that_somebody_holds_does_not_hold_up_the_others(
    database: Database, database_url: str, query: Query
) -> None:
    with psycopg.connect(database_url) as holder:
        holder.execute("select from standfast.threads where id = 'c' for update")
        tasks = {thread: asyncio.create_task(database.commit(unit(thread))) for thread in THREADS}
        others = [task for thread, task in tasks.items() if thread != "c"]
        done, _ = await asyncio.wait(others, timeout=30)
        assert set(others) == done
        assert not tasks["c"].done()
        holder.rollback()

    await asyncio.wait_for(tasks["c"], 30)
    assert [(thread,) for thread in THREADS] == query("select key from public.written order by key")


@pytest.mark.guarantee("G1")
async def test_a_group_whose_connection_dies_is_written_once(database: Database, query: Query) -> None:
    dies_once = b"select case when nextval('public.turns') = 1 then pg_terminate_backend(pg_backend_pid()) end"

    await asyncio.gather(
        *(database.commit(unit(thread, then=dies_once if thread == "c" else None)) for thread in THREADS)
    )

    assert [(thread,) for thread in THREADS] == query("select key from public.written order by key")


async def test_a_statement_that_is_wrong_is_told_to_whose_it_is(database: Database, query: Query) -> None:
    ended = await asyncio.gather(
        *(database.commit(unit(thread, then=b"select 1 / 0" if thread == "d" else None)) for thread in THREADS),
        return_exceptions=True,
    )

    assert [None, None, None, psycopg.errors.DivisionByZero, None] == [one and type(one) for one in ended]
    assert [("a",), ("b",), ("c",), ("e",)] == query("select key from public.written order by key")


async def test_what_cannot_be_sent_takes_nothing_of_its_own_along(database: Database, query: Query) -> None:
    write = b"insert into public.written values (%s)"
    units = {thread: unit(thread) for thread in THREADS}
    units["c"].append((write, ("a NUL is not sent: \0",)))

    ended = await asyncio.gather(*(database.commit(one) for one in units.values()), return_exceptions=True)

    assert [None, None, psycopg.DataError, None, None] == [one and type(one) for one in ended]
    assert [("a",), ("b",), ("d",), ("e",)] == query("select key from public.written order by key")


class Cut(list[Statement]):
    """Statements whose sender is cancelled after the first two, in a process that has been busy for a moment."""

    def __init__(self, thread: str) -> None:
        super().__init__([*unit(thread), *unit(thread)])
        self.times = 0

    def __iter__(self) -> Iterator[Statement]:
        for number in range(len(self)):
            if number == 2 and self.times == 0:
                self.times += 1
                sender = asyncio.current_task()
                assert sender is not None
                sender.cancel()
                time.sleep(0.02)
            yield self[number]


async def test_who_is_cancelled_among_his_statements_has_committed_none_of_them(
    database: Database, query: Query
) -> None:
    with pytest.raises(asyncio.CancelledError):
        await database.commit(Cut("a"))

    assert [] == query("select key from public.written")


async def test_a_group_that_is_cancelled_among_its_statements_has_committed_none_of_them(
    database: Database, query: Query
) -> None:
    cut = Cut("c")

    await asyncio.gather(*(database.commit(cut if thread == "c" else unit(thread)) for thread in THREADS))

    assert 1 == cut.times
    assert [("a",), ("b",), ("c",), ("c",), ("d",), ("e",)] == query("select key from public.written order by key")
