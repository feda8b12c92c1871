"""What an operation costs through the ledger, against one commit of one row."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from statistics import median
from typing import Any

import psycopg
from contenders import first, loop

from standfast.checkpoint.lease import claim
from standfast.checkpoint.operations import Call
from standfast.graph import Runtime
from standfast.tools.digests import call_digest
from standfast.tools.flow import Gate
from standfast.tools.ledger import Ledger
from standfast.tools.operations import Effect, Policy

COMMIT = b"insert into public.commits (value) values (%s)"
POLICY = Policy(Effect.IDEMPOTENT)


@dataclass(frozen=True)
class Costs:
    """Seconds for an operation that does nothing (its begin and its end are recorded), and for one commit."""

    operation: float
    commit: float


async def ledger_costs(url: str, operations: int) -> Costs:
    """Medians, the two taken in turn."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("create table public.commits (value text)")
    spent: dict[str, list[float]] = {"operation": [], "commit": []}
    async with Runtime(loop(), database_url=url, name="bench") as runtime:
        store = runtime.store
        thread = str(uuid.uuid4())
        run = await runtime.asubmit(first(), thread_id=thread)
        lease = await claim(store.database, thread, seconds=600)
        ledger = Ledger(store.operations, lease, Gate(store.flow, lease, store.database.clock, parks=True))
        for number in range(operations):
            began = time.perf_counter()
            await ledger.execute(_call(run.run_id, number), POLICY, _nothing)
            spent["operation"].append(time.perf_counter() - began)
            began = time.perf_counter()
            await store.database.fetch_none(COMMIT, ("x" * 200,))
            spent["commit"].append(time.perf_counter() - began)
    return Costs(median(spent["operation"]), median(spent["commit"]))


def _call(run_id: str, number: int) -> Call:
    arguments = {"customer": "C-1042", "amount": "129.50"}
    return Call(
        id=f"op-{number}",
        run_id=run_id,
        kind="tool",
        name="refund",
        namespace="",
        turn=number,
        index=0,
        effect="idempotent",
        digest=call_digest("refund", arguments),
        arguments=arguments,
    )


async def _nothing(attempt: int, connection: Any) -> dict[str, Any]:
    return {"attempt": attempt}
