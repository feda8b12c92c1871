"""The classes of what real clients raise against real servers that fail."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import psycopg_pool
import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from standfast.nodes.models import ask
from standfast.tools.failures import Failure, FailureClass, classify, failure_of
from tests.servers.openai import OpenAIServer, Reply
from tests.servers.reports import ReportsServer
from tests.servers.scripted import Step, http_date

Query = Callable[..., list[tuple[object, ...]]]


async def raised(work: Callable[[], Awaitable[object]]) -> Failure:
    """The failure that `work` ends in."""
    try:
        await work()
    except BaseException as error:
        return failure_of(error)
    raise AssertionError("nothing was raised")


# -- a model's provider


async def asked(server: OpenAIServer, reply: Reply) -> Failure:
    server.script(reply)
    key = SecretStr("none")
    model = ChatOpenAI(model="m", base_url=server.base_url, api_key=key, max_retries=0, timeout=1.5)
    return await raised(lambda: ask(model, [], [HumanMessage("When is low water?")], {}, lambda _: None))


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize(
    ("expected", "reply"),
    [
        (FailureClass.RATE_LIMITED, {"status": 429}),
        (FailureClass.UNAVAILABLE, {"status": 500}),
        (FailureClass.UNAVAILABLE, {"status": 503}),
        (FailureClass.UNAUTHORISED, {"status": 401}),
        (FailureClass.TIMEOUT, {"fail": "hang"}),
        (FailureClass.TIMEOUT, {"delay_answer": 4.0}),
        (FailureClass.UNAVAILABLE, {"fail": "reset"}),
        (FailureClass.UNAVAILABLE, {"fail": "cut"}),
        (FailureClass.UNAVAILABLE, {"fail": "truncated"}),
        (FailureClass.UNAVAILABLE, {"fail": "malformed_json"}),
        (FailureClass.UNAVAILABLE, {"fail": "wrong_content_type"}),
        (FailureClass.UNAVAILABLE, {"fail": "empty_body"}),
    ],
    ids=lambda value: None if isinstance(value, FailureClass) else "-".join(map(str, value.values())),
)
async def test_a_models_failure_is_of_its_class(
    openai_server: OpenAIServer, expected: FailureClass, reply: dict[str, object], after: int
) -> None:
    given = {**reply, "after": after} if "fail" in reply else reply
    assert expected == (await asked(openai_server, Reply(text="Low water at nine.", **given))).kind  # type: ignore[arg-type]


async def test_a_models_retry_after_is_read(openai_server: OpenAIServer) -> None:
    assert 7.0 == (await asked(openai_server, Reply(status=429, retry_after=7))).retry_after
    until = (await asked(openai_server, Reply(status=429, retry_after=http_date(90)))).retry_after
    assert until is not None
    assert 88.0 <= until <= 92.0  # a date knows whole seconds only


# -- an HTTP API


@pytest.mark.parametrize(
    ("expected", "step"),
    [
        (FailureClass.RATE_LIMITED, Step(status=429)),
        (FailureClass.UNAVAILABLE, Step(status=503)),
        (FailureClass.CONFLICT, Step(status=409)),
        (FailureClass.INVALID, Step(status=422)),
        (FailureClass.UNAUTHORISED, Step(status=403)),
        (FailureClass.PERMANENT, Step(status=410)),
        (FailureClass.TIMEOUT, Step(fail="hang")),
        (FailureClass.UNAVAILABLE, Step(fail="reset")),
        (FailureClass.UNAVAILABLE, Step(fail="cut")),
        (FailureClass.PERMANENT, Step(fail="truncated", after=1)),  # properly ended, as far as HTTP can tell
        (FailureClass.PERMANENT, Step(fail="malformed_json")),
    ],
    ids=lambda value: None if isinstance(value, FailureClass) else str(value.status or value.fail),
)
async def test_an_apis_failure_is_of_its_class(
    reports_server: ReportsServer, expected: FailureClass, step: Step
) -> None:
    async def post() -> None:
        async with httpx.AsyncClient(timeout=1.5) as client:
            answer = await client.post(f"{reports_server.url}/reports", json={"title": "t"})
            answer.raise_for_status()
            answer.json()

    reports_server.script(step)
    assert expected == (await raised(post)).kind


# -- a database


@pytest.mark.parametrize(
    ("expected", "sql"),
    [
        (FailureClass.TIMEOUT, "set statement_timeout = 1; select pg_sleep(5)"),
        (FailureClass.CONFLICT, "do $$ begin raise serialization_failure; end $$"),
        (FailureClass.INVALID, "select 'x'::integer"),
        (FailureClass.INVALID, "create temp table t (id int primary key); insert into t values (1), (1)"),
        (FailureClass.UNAUTHORISED, "create role nobody_else; set role nobody_else; create schema theirs"),
        (FailureClass.PERMANENT, "selekt"),
        (FailureClass.PERMANENT, "select * from no_such_table"),
        (FailureClass.UNAVAILABLE, "select pg_terminate_backend(pg_backend_pid())"),
    ],
)
async def test_a_databases_refusal_is_of_its_class(database_url: str, expected: FailureClass, sql: str) -> None:
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(database_url) as conn:
            await conn.execute(sql.encode())

    assert expected == (await raised(work)).kind


async def test_a_database_where_nobody_listens_is_unavailable() -> None:
    failure = await raised(lambda: psycopg.AsyncConnection.connect("host=127.0.0.1 port=1 connect_timeout=2"))
    assert FailureClass.UNAVAILABLE == failure.kind


async def test_a_pool_without_a_free_connection_is_a_time_out(database_url: str) -> None:
    async with psycopg_pool.AsyncConnectionPool(database_url, min_size=1, max_size=1, timeout=0.05, open=False) as pool:
        await pool.wait()
        async with pool.connection():
            failure = await raised(pool.getconn)
    assert FailureClass.TIMEOUT == failure.kind


# -- the event loop and the operating system


async def test_the_event_loops_failures_are_of_their_class() -> None:
    async def too_slow() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    async def cancelled() -> None:
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(too_slow())

    assert FailureClass.TIMEOUT == (await raised(too_slow)).kind
    assert FailureClass.CANCELLED == (await raised(cancelled)).kind
    assert FailureClass.TIMEOUT == (await raised(group)).kind


@pytest.fixture
def empty_pipe() -> Iterator[int]:
    """The reading end of a pipe that never blocks and holds nothing."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    yield reader
    os.close(reader)
    os.close(writer)


def test_the_operating_systems_failures_are_of_their_class(tmp_path: Path, empty_pipe: int) -> None:
    for expected, work in (
        (FailureClass.PERMANENT, lambda: (tmp_path / "none").read_text()),
        (FailureClass.UNAVAILABLE, lambda: Path("/dev/full").write_text("x")),
        (FailureClass.UNAVAILABLE, lambda: socket.create_connection(("127.0.0.1", 1), timeout=1)),
        (FailureClass.UNAVAILABLE, lambda: socket.getaddrinfo("no-such-host.invalid", 80)),
        (FailureClass.UNAVAILABLE, lambda: os.read(empty_pipe, 1)),
    ):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - which one is the question
            work()
        assert expected == classify(caught.value)
