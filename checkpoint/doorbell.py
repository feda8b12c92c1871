"""The doorbell: tells a worker that one of its graphs has something due, and nothing more.

Invariant: a bell that is lost loses no work. Whoever is rung looks at the threads themselves
(standfast.checkpoint.lease.claim_next), and looks by himself every now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import psycopg

from standfast.checkpoint import errors
from standfast.checkpoint.database import connect

_AWAKE_SECONDS: Final = 60.0  # between two looks at a connection on which nothing is heard


async def listen(conninfo: str, graphs: Collection[str], ring: Callable[[], None]) -> None:
    """Call `ring` when one of these graphs (`graph@version`) has something due, and when this begins to listen.

    Until cancelled; a database that goes away raises `StorageUnavailable`.
    """
    try:
        async with await connect(conninfo) as conn:
            await conn.execute("listen standfast_due")
            ring()  # what came before was told to nobody
            while True:
                async for note in conn.notifies(timeout=_AWAKE_SECONDS):
                    if note.payload in graphs:
                        ring()
                await conn.execute("select 1")
    except (psycopg.Error, errors.DatabaseUnavailable) as error:
        raise errors.StorageUnavailable(f"the doorbell has lost its database: {error}") from error
