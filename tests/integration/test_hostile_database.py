"""A database whose administrator has other plans: time-outs, a failover, settings that change how values look."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from standfast.graph import Runtime
from tests.conftest import at_database
from tests.crash.support.scripted_model import call, script
from tests.servers.reports import ReportsServer

Query = Callable[..., list[tuple[Any, ...]]]
Opened = Callable[..., contextlib.AbstractAsyncContextManager[Runtime]]
WORK = script([call("jot", text="a"), call("enter", text="b")], [call("note", text="ü → 1")], "the end")
SETTINGS = {
    "time-outs": {
        "statement_timeout": "2s",
        "lock_timeout": "20ms",
        "idle_in_transaction_session_timeout": "200ms",
        "idle_session_timeout": "300ms",
    },
    "isolation": {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"},
    "looks": {
        "datestyle": "German, DMY",
        "timezone": "Asia/Kathmandu",
        "intervalstyle": "sql_standard",
        "bytea_output": "escape",
        "extra_float_digits": "-10",
        "client_encoding": "LATIN1",
        "standard_conforming_strings": "off",
        "array_nulls": "off",
        "transform_null_equals": "on",
        "xmloption": "document",
    },
    "plans": {"enable_indexscan": "off", "enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"},
}


@pytest.fixture
def administer(database_url: str, query: Query) -> Callable[..., None]:
    """`administer(lock_timeout="1s")`: from the next connection on; None takes it back."""
    name = urlsplit(database_url).path.removeprefix("/")
    query("create table public.entries (text text not null)")

    def alter(**settings: str | None) -> None:
        with psycopg.connect(at_database(database_url, "postgres"), autocommit=True) as conn:
            for setting, value in settings.items():
                changed = f"set {setting} = '{value}'" if value else f"reset {setting}"
                conn.execute(f"alter database {name} {changed}".encode())

    return alter


def terminate(query: Query) -> None:
    query(
        """select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()"""
    )


@contextlib.asynccontextmanager
async def working(runtime: Runtime) -> AsyncIterator[None]:
    stop = asyncio.Event()
    work = asyncio.create_task(runtime.awork(stop=stop, grace=2.0))
    yield
    stop.set()
    await work


async def at_rest(runtime: Runtime, thread: str = "t") -> Any:
    """How the thread stands when nothing is due on it."""
    async with asyncio.timeout(60):
        while (result := await runtime.aresult(thread)).status in ("queued", "running"):
            await asyncio.sleep(0.05)
    return result


@pytest.mark.parametrize("kind", list(SETTINGS))
async def test_whatever_an_administrator_sets_the_end_is_the_same(
    opened: Opened, administer: Callable[..., None], query: Query, reports_server: ReportsServer, kind: str
) -> None:
    administer(**SETTINGS[kind])
    async with opened() as runtime, working(runtime):
        await runtime.asubmit(WORK, thread_id="t")
        waiting = await at_rest(runtime)
        assert "waiting" == waiting.status, waiting.reason
        await asyncio.sleep(1)  # the connections are idle for longer than they may be
        done = await runtime.aresume("t", approve=waiting.approvals[0].id)
        assert "succeeded" == done.status, done.reason
    assert "the end" == done.outcome["answer"]
    assert [("b",)] == query("select text from public.entries")
    assert 2 == len(reports_server.effects())


async def test_a_failover_to_a_server_that_only_reads_is_waited_for(
    opened: Opened, administer: Callable[..., None], query: Query, reports_server: ReportsServer
) -> None:
    """Between two servers connections lead to a standby: every write is refused until it is promoted."""
    async with opened(lease_seconds=2.0) as runtime, working(runtime):
        await runtime.asubmit(WORK, thread_id="t")
        waiting = await at_rest(runtime)
        administer(default_transaction_read_only="on")
        terminate(query)
        approving = asyncio.create_task(runtime.aresume("t", approve=waiting.approvals[0].id))
        await asyncio.sleep(4)
        assert not approving.done()
        administer(default_transaction_read_only=None)
        terminate(query)
        done = await approving
    assert ("succeeded", "the end") == (done.status, done.outcome["answer"])
    assert 2 == len(reports_server.effects())
