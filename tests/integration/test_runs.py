"""Runs as rows: an acceptance sent again, and what the end of a run closes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from standfast.checkpoint.lease import Lease, claim, new_holder
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
        **{name: getattr(new, name) for name in ("tenant", "model", "client_key", "input_digest", "on_busy")},
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
