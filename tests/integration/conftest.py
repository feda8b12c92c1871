"""A store on a fresh database, threads to lease, graphs driven by a saver under a lease, and a scripted agent."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from langgraph.graph.state import CompiledStateGraph

from standfast.checkpoint.database import Database
from standfast.checkpoint.lease import Lease, claim, release
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.settings import Settings
from standfast.checkpoint.store import Store
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.graph import DEFAULT_OPERATIONS, RetryPolicy, Runtime, build_agent
from standfast.graph.driver import Driver
from standfast.nodes.analysis import MODEL_RETRY
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel
from tests.servers.reports import ReportsServer

Graph = CompiledStateGraph[Any, Any, Any, Any]


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """The rows of the test's database, over a pool of the test's loop."""
    database = Database(database_url, pool_size=8, retry_seconds=10.0)
    await database.open()
    yield Store.over(database, TypeRegistry())
    await database.close()


@pytest.fixture
def add_thread(query: Callable[..., list[tuple[Any, ...]]]) -> Callable[[str], str]:
    """Make a thread's row, and nothing else of it."""

    def add(thread_id: str) -> str:
        query("insert into threads (id, graph, version, fingerprint) values (%s, 'g', '1', '')", thread_id)
        return thread_id

    return add


class Driven:
    """A saver under a lease, and graphs that store through it."""

    def __init__(self, saver: LeasedSaver, lease: Lease) -> None:
        self.saver = saver
        self.lease = lease

    def graph(self, compiled: Graph) -> Graph:
        mine: Graph = copy.copy(compiled)
        mine.checkpointer = self.saver
        return mine


@pytest.fixture
def drive(store: Store, add_thread: Callable[[str], str]) -> Callable[..., AbstractAsyncContextManager[Driven]]:
    """`async with drive(thread_id) as driven:` claims, and flushes and lets go at the end. Options are the saver's."""
    known: set[str] = set()

    @asynccontextmanager
    async def driving(thread_id: str, **options: Any) -> AsyncIterator[Driven]:
        if thread_id not in known:
            known.add(add_thread(thread_id))
        lease = await claim(store.database, thread_id, seconds=60)
        saver = LeasedSaver(store.database, store.sealer, lease, **options)
        try:
            yield Driven(saver, lease)
            await saver.aflush()
        finally:
            await release(store.database, lease)

    return driving


@pytest.fixture
def opened(database_url: str, reports_server: ReportsServer) -> Callable[..., Any]:
    """`async with opened(*operations, model=...) as runtime:` an agent with these beside the usual ones."""

    @asynccontextmanager
    async def opening(
        *operations: Any, model: Any = None, model_retry: RetryPolicy = MODEL_RETRY, **options: Any
    ) -> AsyncIterator[Runtime]:
        known = [*DEFAULT_OPERATIONS, *OPERATIONS, *operations]
        graph = build_agent(model=model or ScriptedModel(), operations=known, model_retry=model_retry)
        settings = Settings(reports_url=f"{reports_server.url}/reports")
        async with Runtime(graph, database_url=database_url, settings=settings, **options) as runtime:
            yield runtime

    return opening


@pytest.fixture
def by_hand() -> Callable[[Runtime, str], AbstractAsyncContextManager[tuple[Any, Any]]]:
    """`async with by_hand(runtime, thread) as (graph, config):` the runtime's own graph, driven by hand."""

    @asynccontextmanager
    async def driving(runtime: Runtime, thread: str) -> AsyncIterator[tuple[Any, Any]]:
        """The bare graph with our saver under the thread's lease, and the configuration of the thread's run."""
        store = runtime.store
        lease = await claim(store.database, thread, seconds=60)
        known = await store.threads.get(thread)
        assert known.run_id is not None
        run = await store.threads.run(thread, known.run_id)
        last = await store.run_events.last(thread, run.id)
        driver = Driver(
            store, runtime._graph, runtime._parts[1], lease, run, step_limit=100, last_event=last, policy=runtime.policy
        )
        driver._config["configurable"].pop("__pregel_strict_resume")
        try:
            yield driver._graph, driver._config
            await driver._saver.aflush()
        finally:
            await driver._events.close()
            await release(store.database, lease)

    return driving
