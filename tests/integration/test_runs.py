"""Runs as rows: an acceptance sent again, and what the end of a run closes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from standfast.checkpoint import errors
from standfast.checkpoint.lease import Lease, new_holder
from standfast.checkpoint.listing import Listing
from standfast.checkpoint.operations import Call
from standfast.checkpoint.statements import statements
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import NewRun, Run

Query = Callable[..., list[tuple[Any, ...]]]


def new_run(**changes: Any) -> NewRun:
    given: dict[str, Any] = {
        "thread_id": "t",
        "run_id": str(uuid.uuid4()),
        "graph": "g",
        "version": "1",
        "fingerprint": "",
        "input": None,
        "requested_by": "somebody",
        "vouched": False,
    }
    return NewRun(**{**given, **changes})


async def begun(store: Store, **changes: Any) -> tuple[Run, Lease]:
    run, lease = await store.threads.accept(new_run(**changes), lease_seconds=60)
    assert lease is not None
    return run, lease


def call(run: Run, effect: str, *, id: str = "op-1") -> Call:
    return Call(id, run.id, "tool", "send_letter", "", 1, 0, effect, "digest", {})  # type: ignore[arg-type]


@pytest.mark.guarantee("G3")
async def test_an_acceptance_sent_again_by_its_holder_gives_the_lease_that_the_lost_answer_told_of(
    store: Store,
) -> None:
    new = new_run()
    params = {
        **{name: getattr(new, name) for name in ("graph", "version", "fingerprint", "requested_by", "vouched")},
        **{
            name: getattr(new, name)
            for name in (
                "tenant",
                "verified_by",
                "model",
                "client_key",
                "input_digest",
                "on_busy",
                "deadline",
                "budget",
                "priority",
            )
        },
        **{"thread": "t", "owner": "o", "run": new.run_id, "collection": None, "input": b"", "settings": b""},
        **{"holder": new_holder(), "worker": "w", "seconds": 60.0},
    }
    accept = statements("threads")["accept"]
    first = await store.database.fetch_one(accept, params)
    again = await store.database.fetch_one(accept, params)
    by_another = await store.database.fetch_one(accept, {**params, "holder": new_holder()})

    assert first is not None and again is not None and by_another is not None  # noqa: PT018
    assert [("accepted", 1), ("again", 1), ("again", None)] == [
        (row["verdict"], row["epoch"]) for row in (first, again, by_another)
    ]


@pytest.mark.guarantee("G4")
async def test_an_attempt_that_began_as_at_most_once_is_not_repeated_because_a_deploy_calls_it_idempotent(
    store: Store,
) -> None:
    run, lease = await begun(store)
    assert "executing" == (await store.operations.begin(lease, call(run, "at_most_once"))).state
    assert "unknown" == (await store.operations.begin(lease, call(run, "idempotent"))).state


async def test_an_attempt_that_began_as_idempotent_is_repeated_though_a_deploy_calls_it_at_most_once(
    store: Store,
) -> None:
    run, lease = await begun(store)
    await store.operations.begin(lease, call(run, "idempotent"))
    again = await store.operations.begin(lease, call(run, "at_most_once"))
    assert ("executing", 2) == (again.state, again.attempt)


async def states(store: Store) -> dict[str, str]:
    return {one.id: one.state for one in await store.operations.list("t")}


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("state", ["cancelled", "failed", "needs_attention"])
async def test_a_run_that_ends_over_a_call_says_of_which_it_is_not_known_whether_it_took_effect(
    store: Store, query: Query, state: str
) -> None:
    run, lease = await begun(store)
    await store.operations.begin(lease, call(run, "at_most_once", id="letter"))
    await store.operations.begin(lease, call(run, "idempotent", id="report"))
    await store.threads.end(lease, run.id, state, reason="because")

    assert {"letter": "unknown", "report": "planned"} == await states(store)
    assert [("abandoned", True)] == query("select distinct state, ended_at is not null from attempts")
    reason = (await store.threads.run("t", run.id)).reason
    assert "because; it is not known whether send_letter (letter) took effect" == reason


async def test_a_run_that_stops_for_a_person_after_its_cancellation_is_cancelled_and_the_next_one_has_its_turn(
    store: Store,
) -> None:
    run, lease = await begun(store)
    queued, _ = await store.threads.accept(new_run(on_busy="interrupt"))
    for _ in range(2):  # sent again it changes nothing
        await store.threads.end(lease, run.id, "needs_attention", reason="it broke")

    ended = await store.threads.run("t", run.id)
    assert ("cancelled", "cancelled on request; it broke") == (ended.state, ended.reason)
    thread = await store.threads.get("t")
    assert (queued.id, True, "queued") == (thread.run_id, thread.due, thread.status)


async def test_a_queued_run_keeps_the_version_that_it_was_accepted_for(
    store: Store, bells: Callable[[], list[str]]
) -> None:
    run, lease = await begun(store)
    await store.threads.accept(new_run(version="2", fingerprint="two", on_busy="queue"))
    listed = await Listing(store.database).runs()
    assert [(2, "2"), (1, "1")] == [(one.number, one.version) for one in listed]
    await store.threads.end(lease, run.id, "succeeded")

    thread = await store.threads.get("t")
    assert ("2", "two") == (thread.version, thread.fingerprint)
    assert ["g@2"] == bells()
    assert [(2, "2"), (1, "1")] == [(one.number, one.version) for one in await Listing(store.database).runs()]


async def test_nothing_is_queued_behind_a_run_that_needs_attention(store: Store) -> None:
    run, lease = await begun(store)
    await store.threads.end(lease, run.id, "needs_attention", reason="it broke")
    with pytest.raises(errors.ThreadBusy, match="standfast retry t"):
        await store.threads.accept(new_run(on_busy="queue"))
    assert [run.id] == [one.id for one in await store.threads.runs("t")]


async def test_a_cancellation_tells_when_one_was_asked_for_before(store: Store) -> None:
    run, _ = await begun(store)
    first = await store.threads.request_cancel("t")
    again = await store.threads.request_cancel("t")
    assert first is not None and again is not None  # noqa: PT018
    assert (run.id, None) == (first.run_id, first.asked_at)
    assert (run.id, True) == (again.run_id, again.asked_at is not None)
