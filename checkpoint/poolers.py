"""Poolers between us and the server: what one is good for is found out by its behaviour.

Invariant: what needs a session (notifications, the renewal of leases, the lock of migrations) is never left to a pooler
that lends one for a transaction only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from standfast.checkpoint import errors

_LOOKS: Final = 3  # at what a pooler does with a second client
_DATABASE: Final = """select pg_catalog.pg_postmaster_start_time() as server, oid as database
                        from pg_catalog.pg_database where datname = pg_catalog.current_database()"""

Connection = AsyncConnection[DictRow]


async def require_session(conn: Connection, another: Callable[[], Awaitable[Connection]], *, where: str) -> bool:
    """Refuse a pooler that gives each transaction another backend: leases would be renewed and bells be heard nowhere.

    A pooler is known by the backend's number, which it makes up. It pools by transactions if the first client changes
    its backend by itself (servers in turn), or a second one is given it, or drives the first one away from it.
    Returns whether the number that `conn` was told is true, so that there is no pooler. Raises
    `DatabaseMisconfigured`.
    """
    pid = await backend(conn)
    if pid == conn.info.backend_pid:
        return True
    for _ in range(_LOOKS):
        async with await another() as other:
            if await _shared(conn, other, pid):
                raise errors.DatabaseMisconfigured(
                    f"{where} is a pooler in transaction mode: notifications, prepared statements and the lock of "
                    "migrations need a session of their own. Name the server itself as STANDFAST_DATABASE_URL; this "
                    "pooler may be STANDFAST_POOLED_URL beside it"
                )
    return False


async def require_transactions(pooled: Connection, direct: Connection, *, where: str) -> None:
    """Refuse a pooler that takes no transactions, or that leads to another database than `direct` does.

    Raises `DatabaseMisconfigured`.
    """
    try:
        async with pooled.transaction():
            there = await (await pooled.execute(_DATABASE)).fetchone()
    except psycopg.errors.ProtocolViolation as error:
        raise errors.DatabaseMisconfigured(
            f"{where} is a pooler in statement mode, which takes no transactions; pool by transactions or by sessions"
        ) from error
    if there != await (await direct.execute(_DATABASE)).fetchone():
        raise errors.DatabaseMisconfigured(
            f"STANDFAST_POOLED_URL leads to {where}, which is another database than STANDFAST_DATABASE_URL names; "
            "let both name the same one"
        )


async def backend(conn: Connection) -> int:
    """The process of the server that `conn` has now."""
    row = await (await conn.execute("select pg_catalog.pg_backend_pid() as pid", prepare=False)).fetchone()
    assert row is not None
    return int(row["pid"])


async def _shared(conn: Connection, other: Connection, pid: int) -> bool:
    """Whether the first client's backend changes, or is the second one's too while that is in a transaction."""
    for _ in range(2):  # of servers that are taken in turn, two questions that follow each other meet two
        if await backend(conn) != pid:
            return True
    try:
        async with other.transaction():
            return await backend(other) == pid or await backend(conn) != pid
    except psycopg.errors.ProtocolViolation:  # a pooler by statements takes no transaction
        return True
