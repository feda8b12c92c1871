"""A database whose administrator has other plans: time-outs, a failover, settings that change how values look."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from standfast.checkpoint import errors
from standfast.checkpoint.settings import Settings
from standfast.graph import DEFAULT_OPERATIONS, Runtime, build_agent
from tests.conftest import at_database
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel, call, script
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


@pytest.fixture
def role(administer: Callable[..., None], database_url: str, query: Query) -> Iterator[str]:
    """A role that owns nothing and may use all that there is."""
    name = f"user_of_{urlsplit(database_url).path.removeprefix('/')}"
    query(f"create role {name} login password 'secret'")
    query(f"grant usage on schema standfast to {name}; grant all on public.entries to {name}")
    for things in ("tables", "sequences", "functions"):
        query(f"grant all on all {things} in schema standfast to {name}")
    yield name
    query(f"drop owned by {name}; drop role {name}")


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


@pytest.mark.parametrize("table", ["attempts", "checkpoint_writes", "approvals"])
async def test_a_right_that_is_missing_parks_no_run_whose_work_goes_on_when_it_is_granted(
    administer: Callable[..., None],
    database_url: str,
    query: Query,
    reports_server: ReportsServer,
    caplog: pytest.LogCaptureFixture,
    role: str,
    table: str,
) -> None:
    query(f"revoke insert, update on {table} from {role}")
    graph = build_agent(model=ScriptedModel(), operations=[*DEFAULT_OPERATIONS, *OPERATIONS])
    settings = Settings(reports_url=f"{reports_server.url}/reports")
    url = make_conninfo(database_url, user=role, password="secret")
    async with Runtime(graph, database_url=url, settings=settings) as runtime, working(runtime):
        await runtime.asubmit(WORK, thread_id="t")
        async with asyncio.timeout(30):
            while not any(f"permission denied for table {table}" in one.message for one in caplog.records):
                await asyncio.sleep(0.05)
        query(f"grant insert, update on {table} to {role}")
        waiting = await at_rest(runtime)
        assert "waiting" == waiting.status, waiting.reason
        done = await runtime.aresume("t", approve=waiting.approvals[0].id)
    assert ("succeeded", "the end") == (done.status, done.outcome["answer"])
    assert 2 == len(reports_server.effects())


async def test_who_lacks_a_right_is_told_which(
    administer: Callable[..., None], database_url: str, query: Query, role: str
) -> None:
    query(f"revoke insert on threads from {role}")
    url = make_conninfo(database_url, user=role, password="secret")
    async with Runtime(build_agent(model=ScriptedModel()), database_url=url) as runtime:
        with pytest.raises(errors.StorageForbidden, match="table threads"):
            await runtime.asubmit("anything", thread_id="t")
