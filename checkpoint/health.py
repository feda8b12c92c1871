"""How a database stands: its server, and its schema against what this release needs. Nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass

from standfast.checkpoint.database import check_server, connect, conninfo_of
from standfast.checkpoint.migrate import is_current, migrations


@dataclass(frozen=True)
class Health:
    """`server_version` as Postgres numbers it (150004); `migration` is the newest applied, None without a schema."""

    server_version: int
    migration: int | None
    newest: int
    current: bool


async def database_health(url: str) -> Health:
    """Look at a database. Raises `DatabaseUnavailable`, `DatabaseTooOld`, `DatabaseMisconfigured`, `SchemaTooNew`."""
    async with await connect(conninfo_of(url)) as conn:
        await check_server(conn)
        current = await is_current(conn)
        migration = None
        cursor = await conn.execute("select to_regclass('standfast.migrations') is not null as known")
        row = await cursor.fetchone()
        if row is not None and row["known"]:
            cursor = await conn.execute(
                "select max(number) as newest from standfast.migrations where component = 'standfast'"
            )
            row = await cursor.fetchone()
            migration = None if row is None else row["newest"]
        return Health(conn.info.server_version, migration, migrations()[-1].number, current)
