"""The recorder's numbers have no gaps and its events no losses, whatever becomes of their transactions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from standfast.checkpoint.errors import LeaseLost
from standfast.checkpoint.run_events import RunEvent
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Run, Settings
from standfast.graph.recorder import Recorder

Query = Callable[..., list[tuple[Any, ...]]]
pytestmark = pytest.mark.guarantee("G9")


class Recording:
    """A recorder that rides with a saver, and what it has shown."""

    def __init__(self, store: Store, driven: Any) -> None:
        self.store = store
        self.saver = driven.saver
        self.run = Run(
            thread_id=driven.lease.thread_id,
            id=str(uuid.uuid4()),
            number=1,
            state="open",
            reason=None,
            requested_by="somebody",
            vouched=True,
            model=None,
            collection_id=None,
            input=None,
            settings=Settings(),
            outcome=None,
            accepted_at=datetime.now(UTC),
            ended_at=None,
        )
        self.shown: asyncio.Queue[RunEvent] = asyncio.Queue()
        self.recorder = Recorder(
            store.run_events,
            driven.lease,
            self.run,
            last=0,
            flush=driven.saver.aflush,
            on_event=self.shown.put_nowait,
        )
        driven.saver.riders = self.recorder

    def say(self, text: str) -> None:
        self.recorder.add("token", ("node",), {"message": "m", "attempt": 1, "text": text})

    async def stored(self) -> list[RunEvent]:
        return await self.store.run_events.read(self.run.thread_id, self.run.id, after=0)


def told(events: list[RunEvent]) -> list[tuple[int, Any]]:
    return [(one.seq, one.data["text"] if one.kind == "token" else one.data) for one in events]


async def test_tokens_go_on_their_own_after_a_moment_and_again_after_a_close(store: Store, drive: Any) -> None:
    async with drive("t") as driven:
        recording = Recording(store, driven)
        for round_ in (1, 2):
            recording.say("a")
            recording.say("b")
            shown = await asyncio.wait_for(recording.shown.get(), 5)
            assert (round_, "ab") == (shown.seq, shown.data["text"])
            await recording.recorder.close()
        assert [(1, "ab"), (2, "ab")] == told(await recording.stored())


async def test_a_close_leaves_what_is_not_stored_to_the_next_transaction(store: Store, drive: Any) -> None:
    async with drive("t") as driven:
        recording = Recording(store, driven)
        recording.say("a")
        await recording.recorder.close()
        assert recording.recorder.pending
        recording.recorder.add("custom", (), 1)
        await recording.saver.aflush()
        assert [(1, "a"), (2, 1)] == told(await recording.stored())


async def test_what_is_told_during_a_commit_rides_with_the_next_one(
    store: Store, drive: Any, database_url: str
) -> None:
    async with drive("t") as driven:
        recording = Recording(store, driven)
        with psycopg.connect(database_url) as holder:
            holder.execute("select 1 from standfast.threads where id = 't' for update")
            recording.say("one ")
            flush = asyncio.create_task(recording.saver.aflush())
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not recording.recorder.pending, "the commit has not begun"
            recording.say("two ")
            recording.say("three")
            recording.recorder.add("custom", (), 4)
            assert recording.shown.empty(), "shown before it is stored"
        await flush
        await recording.saver.aflush()
        expected = [(1, "one "), (2, "two three"), (3, 4)]
        assert expected == told(await recording.stored())
        assert expected == told([recording.shown.get_nowait() for _ in range(3)])


async def test_what_a_commit_could_not_take_goes_unchanged_with_the_next(store: Store, drive: Any) -> None:
    async with drive("t") as driven:
        recording = Recording(store, driven)
        recording.say("one ")
        recording.recorder.take()
        recording.say("two")
        recording.recorder.restore()
        recording.say(" three")
        await recording.saver.aflush()
        assert [(1, "one "), (2, "two three")] == told(await recording.stored())
        assert [1, 2] == [recording.shown.get_nowait().seq for _ in range(2)]


async def test_what_was_stored_unheard_is_sent_again_as_it_was_and_what_came_after_it_beside_it(
    store: Store, drive: Any
) -> None:
    async with drive("t") as driven:
        recording = Recording(store, driven)
        recording.say("one ")
        [(statement, values)] = recording.recorder.take()
        await store.database.fetch_none(statement, values)  # committed, and its answer is lost
        recording.recorder.restore()
        recording.say("two")
        await recording.saver.aflush()
        recording.say("three")
        await recording.saver.aflush()
        assert [(1, "one "), (2, "two"), (3, "three")] == told(await recording.stored())
        assert [1, 2, 3] == [recording.shown.get_nowait().seq for _ in range(3)]


async def test_a_text_that_may_be_stored_already_does_not_grow(store: Store, drive: Any) -> None:
    async with drive("t") as driven:
        recording = Recording(store, driven)
        recording.say("one ")
        recording.recorder.take()
        recording.recorder.restore()
        recording.say("two")
        await recording.saver.aflush()
        assert [(1, "one "), (2, "two")] == told(await recording.stored())


async def test_a_flush_under_a_lost_lease_stores_and_shows_nothing(store: Store, drive: Any, query: Query) -> None:
    async with drive("t") as driven:
        recording = Recording(store, driven)
        query("update threads set epoch = epoch + 1")
        recording.say("late")
        flusher = None
        while flusher is None:
            await asyncio.sleep(0.01)
            flusher = recording.recorder._flusher
        await asyncio.wait_for(recording.recorder.close(), 5)
        assert driven.lease.lost is not None
        with pytest.raises(LeaseLost):
            await recording.saver.aflush()
        assert [] == await recording.stored()
        assert recording.shown.empty()
        recording.saver.riders = None


async def test_a_step_is_committed_though_its_event_cannot_be_stored(store: Store, drive: Any) -> None:
    async with drive("t") as driven:
        recording = Recording(store, driven)
        recording.recorder.add("custom", (), object())
        recording.recorder.add("custom", (), "\0 and \ud800")
        await recording.saver.aflush()
        events = await recording.stored()
        assert [1, 2] == [one.seq for one in events]
        assert ["unstorable"] == list(events[0].data)
