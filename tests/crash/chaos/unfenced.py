"""The fence taken out: no write checks the epoch, and no driver stops itself. What is found then, the fence prevents.

Claims stay what they are: one driver at a time takes a thread. The one who was stopped and goes on is what is let in.
"""

from __future__ import annotations

import os
from typing import Final

import psycopg

from standfast.checkpoint import errors
from standfast.checkpoint.lease import Lease

SWITCH: Final = "STANDFAST_CHAOS_UNFENCED"  # in the environment of a worker
_CHECK: Final = "and epoch = held"


def take_out_if_told() -> None:
    """In a worker that was told so: a lost lease is not noticed."""
    if SWITCH not in os.environ:
        return

    def lose(self: Lease, why: str) -> errors.LeaseLost:
        return errors.LeaseLost(f"nobody minds that {why}", thread_id=self.thread_id, epoch=self.epoch)

    Lease.lose = lose  # type: ignore[method-assign]
    Lease.require = lambda self: None  # type: ignore[method-assign]


def take_out_of(url: str) -> None:
    """In the database: every function that checks the epoch of whoever writes."""
    with psycopg.connect(url, autocommit=True) as conn:
        found = conn.execute(
            """select pg_get_functiondef(p.oid) from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                where n.nspname = 'standfast' and strpos(p.prosrc, %s) > 0""",
            (_CHECK,),
        ).fetchall()
        assert found, "no function checks the epoch any more in the words that are looked for here"
        for (definition,) in found:
            conn.execute(definition.replace(_CHECK, ""))
