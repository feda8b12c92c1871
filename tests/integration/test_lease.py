"""Leases: one holder at a time, epochs that only grow, renewal that needs no event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import id as id_clock

from standfast.checkpoint import errors
from standfast.checkpoint.database import Database
from standfast.checkpoint.lease import Lease, LeaseKeeper, break_lease, claim, new_holder, release, seed_clock
from standfast.checkpoint.statements import statements
from standfast.checkpoint.store import Store

Query = Callable[..., list[tuple[Any, ...]]]
SQL = statements("leases")

pytestmark = pytest.mark.guarantee("G3")


@pytest.fixture
def thread(add_thread: Callable[[str], str]) -> str:
    return add_thread("t")


@pytest.fixture
def keeper(store: Store) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(store.database.conninfo)
    yield keeper
    keeper.close()


async def until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_claim_is_refused_while_another_holds_the_thread(store: Store, thread: str) -> None:
    lease = await claim(store.database, thread, seconds=60)
    with pytest.raises(errors.LeaseHeld, match="driven by") as refused:
        await claim(store.database, thread, seconds=60)
    assert thread == refused.value.thread_id
    await release(store.database, lease)
    assert lease.epoch + 1 == (await claim(store.database, thread, seconds=60)).epoch


async def test_a_claim_of_an_unknown_thread_makes_none(store: Store, query: Query) -> None:
    with pytest.raises(errors.UnknownThread):
        await claim(store.database, "nobody", seconds=60)
    assert [(0,)] == query("select count(*) from threads")


async def test_a_lease_that_ran_out_is_taken_and_counted_as_a_crash(store: Store, thread: str, clock: Any) -> None:
    first = await claim(store.database, thread, seconds=60)
    clock.move(timedelta(seconds=59))
    with pytest.raises(errors.LeaseHeld):
        await claim(store.database, thread, seconds=60)
    clock.move(timedelta(seconds=2))
    second = await claim(store.database, thread, seconds=60)
    assert (first.epoch + 1, first.crashes + 1) == (second.epoch, second.crashes)


async def test_a_late_release_leaves_the_next_holder_alone(store: Store, thread: str, clock: Any) -> None:
    late = await claim(store.database, thread, seconds=60)
    clock.move(timedelta(seconds=61))
    await claim(store.database, thread, seconds=60)
    await release(store.database, late)
    with pytest.raises(errors.LeaseHeld):
        await claim(store.database, thread, seconds=60)


async def test_a_claim_whose_answer_was_lost_is_recognised(store: Store, thread: str) -> None:
    params = {"thread": thread, "holder": new_holder(), "worker": "w", "seconds": 60.0}
    first = await store.database.fetch_one(SQL["claim"], params)
    again = await store.database.fetch_one(SQL["claim"], params)
    assert first is not None
    assert first == again


async def test_a_restarted_worker_of_the_same_name_is_somebody_else(store: Store, thread: str, clock: Any) -> None:
    def params(holder: str) -> dict[str, Any]:
        return {"thread": thread, "holder": holder, "worker": "worker-1", "seconds": 60.0}

    before = await store.database.fetch_one(SQL["claim"], params(new_holder()))
    assert before is not None
    assert await store.database.fetch_one(SQL["claim"], params(new_holder())) is None
    clock.move(timedelta(seconds=61))
    after = await store.database.fetch_one(SQL["claim"], params(new_holder()))
    assert after is not None
    assert before["epoch"] + 1 == after["epoch"]


async def test_twenty_racers_have_one_winner_for_each_epoch(store: Store, thread: str) -> None:
    epochs: list[int] = []

    async def race() -> None:
        while len(epochs) < 30:
            try:
                lease = await claim(store.database, thread, seconds=60)
            except errors.LeaseHeld:
                continue
            epochs.append(lease.epoch)
            await release(store.database, lease)

    async with asyncio.timeout(60):
        await asyncio.gather(*(race() for _ in range(20)))
    assert list(range(1, len(epochs) + 1)) == epochs


async def test_a_renewal_needs_no_event_loop(store: Store, thread: str, keeper: LeaseKeeper) -> None:
    lease = await claim(store.database, thread, seconds=0.6)
    keeper.keep(lease)
    time.sleep(1.8)  # noqa: ASYNC251 - a node that blocks the loop for three times the lease
    lease.require()
    with pytest.raises(errors.LeaseHeld):
        await claim(store.database, thread, seconds=60)


async def test_a_renewal_that_is_refused_loses_the_lease(
    store: Store, thread: str, keeper: LeaseKeeper, query: Query
) -> None:
    lease = await claim(store.database, thread, seconds=0.6)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    lease.on_lost = lambda: loop.call_soon_threadsafe(told.set)
    query("update threads set epoch = epoch + 1, lease_holder = 'another'")
    keeper.keep(lease)
    await asyncio.wait_for(told.wait(), 10)
    with pytest.raises(errors.LeaseLost, match="refused"):
        lease.require()


async def test_a_driver_that_cannot_reach_the_database_loses_its_lease_in_time(store: Store, thread: str) -> None:
    lease = await claim(store.database, thread, seconds=0.6)
    away = LeaseKeeper("host=127.0.0.1 port=1 connect_timeout=1")
    away.keep(lease)
    await until(lambda: lease.lost is not None, seconds=3)
    away.close()
    assert "could not be confirmed" in str(lease.lost)


async def test_a_driver_whose_renewal_hangs_loses_its_lease_in_time(
    store: Store, thread: str, keeper: LeaseKeeper, database_url: str
) -> None:
    lease = await claim(store.database, thread, seconds=0.6)
    lost_after: list[float] = []
    lease.on_lost = lambda: lost_after.append(time.monotonic() - lease.confirmed)
    async with await psycopg.AsyncConnection.connect(database_url) as blocking:
        await blocking.execute("lock table standfast.threads in access exclusive mode")
        keeper.keep(lease)
        await until(lambda: lease.lost is not None, seconds=3)
    assert 0.6 < lost_after[0] < 1.2


async def test_a_lease_that_was_not_confirmed_in_time_is_not_relied_on(store: Store, thread: str) -> None:
    lease = await claim(store.database, thread, seconds=60)
    lease.confirmed -= 61  # the process was stopped for that long
    with pytest.raises(errors.LeaseLost, match="could not be confirmed"):
        lease.require()


async def test_a_failing_callback_does_not_end_the_keeper(
    store: Store, keeper: LeaseKeeper, add_thread: Callable[[str], str], query: Query
) -> None:
    def fail() -> None:
        raise RuntimeError("the loop of this driver is closed")

    doomed = await claim(store.database, add_thread("doomed"), seconds=0.6)
    doomed.on_lost = fail
    query("update threads set epoch = epoch + 1, lease_holder = 'another' where id = 'doomed'")
    keeper.keep(doomed)
    await until(lambda: doomed.lost is not None)
    lease = await claim(store.database, add_thread("kept"), seconds=0.6)
    keeper.keep(lease)
    confirmed = lease.confirmed
    await until(lambda: lease.confirmed > confirmed)


async def test_a_cancellation_is_noticed_by_the_holder_within_a_second(
    store: Store, thread: str, keeper: LeaseKeeper, query: Query
) -> None:
    lease = await claim(store.database, thread, seconds=60)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    lease.on_cancel = lambda: loop.call_soon_threadsafe(told.set)
    keeper.keep(lease)
    query("update threads set cancel_requested_at = standfast.now()")
    await asyncio.wait_for(told.wait(), 1.5)


async def test_a_claim_ends_the_stalled_transaction_that_holds_it_up(
    store: Store, thread: str, database_url: str, query: Query
) -> None:
    lease = await claim(store.database, thread, seconds=60)
    async with await psycopg.AsyncConnection.connect(database_url, options="-c search_path=standfast") as stalled:
        await stalled.execute("select assert_lease_1(%s, %s)", (thread, lease.epoch))
        query("update threads set lease_expires_at = standfast.now() - interval '1 second'")
        began = time.monotonic()
        taken = await claim(store.database, thread, seconds=60)
        assert 0.9 < time.monotonic() - began < 5
        assert lease.epoch + 1 == taken.epoch
        with pytest.raises(psycopg.OperationalError):
            await stalled.execute("select 1")


async def test_breaking_a_lease_ends_its_holders_stalled_transaction(
    store: Store, thread: str, database_url: str
) -> None:
    lease = await claim(store.database, thread, seconds=60)
    async with await psycopg.AsyncConnection.connect(database_url, options="-c search_path=standfast") as stalled:
        await stalled.execute("select assert_lease_1(%s, %s)", (thread, lease.epoch))
        async with asyncio.timeout(5):
            assert await break_lease(store.database, thread)
        with pytest.raises(psycopg.OperationalError):
            await stalled.execute("select 1")
    assert lease.epoch + 2 == (await claim(store.database, thread, seconds=60)).epoch


async def test_claims_that_fill_the_pool_still_end_the_stalled_transaction(
    add_thread: Callable[[str], str], database_url: str, query: Query
) -> None:
    database = Database(database_url, pool_size=2, retry_seconds=10)
    await database.open()
    threads = [add_thread(f"t{number}") for number in range(4)]
    leases = [await claim(database, thread, seconds=60) for thread in threads]
    stalled = await psycopg.AsyncConnection.connect(database_url, options="-c search_path=standfast")
    for lease in leases:
        await stalled.execute("select assert_lease_1(%s, %s)", (lease.thread_id, lease.epoch))
    query("update threads set lease_expires_at = standfast.now() - interval '1 second'")
    async with asyncio.timeout(8):
        taken = await asyncio.gather(*(claim(database, thread, seconds=60) for thread in threads))
    await stalled.close()
    assert [2] * 4 == [lease.epoch for lease in taken]
    await database.close()


async def test_a_renewal_goes_through_beside_an_open_fence(store: Store, thread: str, database_url: str) -> None:
    lease = await claim(store.database, thread, seconds=60)
    params = {"threads": [thread], "epochs": [lease.epoch], "seconds": 60.0}
    async with await psycopg.AsyncConnection.connect(database_url, options="-c search_path=standfast") as fenced:
        await fenced.execute("select assert_lease_1(%s, %s)", (thread, lease.epoch))
        renewed = await asyncio.wait_for(store.database.fetch(SQL["renew"], params), 3)
    assert [{"id": thread, "epoch": lease.epoch}] == renewed


def test_the_clock_of_ids_moves_forward_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_clock, "_last_v6_timestamp", None)
    older, newer = str(id_clock.uuid6()), str(id_clock.uuid6())
    monkeypatch.setattr(id_clock, "_last_v6_timestamp", None)
    seed_clock(newer)
    seeded = id_clock._last_v6_timestamp
    seed_clock(older)
    seed_clock(None)
    seed_clock("4f6e1f7e-0000-4000-8000-000000000000")  # not a time-ordered id
    assert seeded == id_clock._last_v6_timestamp
    assert newer < str(id_clock.uuid6())


def test_a_lease_is_lost_once() -> None:
    told: list[str] = []
    lease = Lease("t", 1, "h", 60, None, on_lost=lambda: told.append("lost"))
    first = lease.lose("one reason")
    assert first is lease.lose("another reason")
    assert ["lost"] == told
