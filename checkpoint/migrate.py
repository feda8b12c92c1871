"""Brings a database's schema up to date: LangGraph's tables, its store's, and our own.

Invariant: each of our migrations and its record are one transaction, so a kill in the middle leaves either
all of one or nothing of it; any number of processes may start at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Final

import psycopg
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.store.postgres.aio import AsyncPostgresStore
from packaging.version import Version

from standfast.checkpoint import errors
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import (
    SCHEMA,
    Connection,
    check_server,
    connect,
    conninfo_of,
    require_session,
)

_LOCK: Final = 0x5374616E64666173  # "Standfas": one key for every process that migrates
_WAIT_SECONDS: Final = 120.0
# LangGraph's: each repeats the first column of its table's primary key, and costs every step a write.
_REDUNDANT_INDEXES: Final = (
    "drop index if exists checkpoints_thread_id_idx, checkpoint_blobs_thread_id_idx, checkpoint_writes_thread_id_idx"
)

_OTHERS: Final = ("langgraph-checkpoint-postgres",)
OF_OTHERS: Final = len(_OTHERS)  # steps of a migration that are not ours


@dataclass(frozen=True)
class Migration:
    """One numbered SQL file."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """All migrations that this release has, in order."""
    found = [
        Migration(int(entry.name[:3]), entry.name, entry.read_text(encoding="utf-8"))
        for entry in resources.files("standfast.checkpoint.migrations").iterdir()
        if entry.name.endswith(".sql")
    ]
    return sorted(found, key=lambda one: one.number)


async def migrate(url: str, *, report: Callable[[str], None] = lambda _: None) -> list[str]:
    """Apply what is missing and return the names of what was applied; up to date means an empty list.

    Needs the right to create only if something is missing. Raises `SchemaTooNew`, `DatabaseMisconfigured` without
    that right, and the errors of connecting.
    """
    async with await connect(conninfo_of(url)) as conn:
        await check_server(conn)
        await require_session(conn, conninfo_of(url))
        if await is_current(conn):
            return []
        await _take_lock(conn, report)
        if await is_current(conn):
            return []
        try:
            return [*await _third_parties(conn, report), *await _own(conn, report)]
        except psycopg.errors.InsufficientPrivilege as error:
            raise errors.DatabaseMisconfigured(
                f"the schema is not up to date, and the role {conn.info.user!r} may not mend it "
                f"({error.diag.message_primary}); run `standfast migrate` as the owner of the database"
            ) from error


async def is_current(conn: Connection) -> bool:
    """Whether nothing is missing.

    Raises `SchemaTooNew` if a newer release was here, `SchemaOutOfDate` if one with other migrations was.
    """
    cursor = await conn.execute("select to_regclass('standfast.migrations') is not null as known")
    row = await cursor.fetchone()
    if row is None or not row["known"]:
        return False
    cursor = await conn.execute("select number, component, version, sha256 from standfast.migrations")
    rows = await cursor.fetchall()
    known = {one.number: one for one in migrations()}
    done = {row["number"]: row["sha256"] for row in rows if row["component"] == "standfast"}
    if done and max(done) > max(known):
        raise errors.SchemaTooNew(
            f"the database has migration {max(done)}, this release knows {max(known)}; upgrade Standfast",
            number=max(done),
        )
    for number, sha256 in done.items():
        if known[number].sha256 != sha256:
            raise errors.SchemaOutOfDate(
                f"the database was migrated by another text of {known[number].name} than this release has "
                "(an unreleased version made it); use a fresh database",
                number=number,
            )
    versions = {row["component"]: row["version"] for row in rows if row["component"] != "standfast"}
    return done.keys() == known.keys() and not _behind(versions)


def _behind(versions: Mapping[str, str]) -> dict[str, str]:
    """What this process would bring up to date: a newer version than its own, of a rolling deploy, it leaves alone."""
    own = {name: metadata.version(name) for name in _OTHERS}
    return {
        name: version
        for name, version in own.items()
        if name not in versions or Version(versions[name]) < Version(version)
    }


async def _take_lock(conn: Connection, report: Callable[[str], None]) -> None:
    # Polled: a session that waits inside pg_advisory_lock holds a snapshot, and LangGraph's
    # CREATE INDEX CONCURRENTLY waits for every snapshot: the two would wait for each other.
    deadline = time.monotonic() + _WAIT_SECONDS
    told = False
    while True:
        cursor = await conn.execute("select pg_try_advisory_lock(%s) as taken", (_LOCK,))
        row = await cursor.fetchone()
        if row is not None and row["taken"]:
            return
        if not told:
            report("another process is migrating this database; waiting for it")
            told = True
        if time.monotonic() > deadline:
            raise errors.DatabaseUnavailable(
                f"another process has been migrating this database for over {_WAIT_SECONDS:g} s; see pg_locks"
            )
        await asyncio.sleep(0.05)


async def _third_parties(conn: Connection, report: Callable[[str], None]) -> list[str]:
    await conn.execute(f"create schema if not exists {SCHEMA}")
    await conn.execute(
        """create table if not exists standfast.migrations (
               component text not null, number integer not null, name text not null, version text not null,
               sha256 text not null, applied_at timestamptz not null default clock_timestamp(),
               primary key (component, number))"""
    )
    cursor = await conn.execute("select component, version from standfast.migrations where component <> 'standfast'")
    known = {row["component"]: row["version"] for row in await cursor.fetchall()}
    applied = []
    for component, version in _behind(known).items():
        report(f"{component} {version}")
        await AsyncPostgresSaver(conn).setup()
        await AsyncPostgresStore(conn).setup()
        await conn.execute(_REDUNDANT_INDEXES)
        await _mend_indexes(conn)
        reach("migrate.between")
        await conn.execute(
            """insert into standfast.migrations (component, number, name, version, sha256) values (%s, 0, %s, %s, '')
               on conflict (component, number) do update set version = excluded.version""",
            (component, component, version),
        )
        applied.append(f"{component} {version}")
    return applied


async def _mend_indexes(conn: Connection) -> None:
    """A killed CREATE INDEX CONCURRENTLY leaves an invalid index that IF NOT EXISTS takes for a good one."""
    cursor = await conn.execute(
        """select quote_ident(c.relname) as name from pg_index i join pg_class c on c.oid = i.indexrelid
            where not i.indisvalid and c.relnamespace = 'standfast'::regnamespace"""
    )
    for row in await cursor.fetchall():
        await conn.execute(f"reindex index {SCHEMA}.{row['name']}".encode())


async def _own(conn: Connection, report: Callable[[str], None]) -> list[str]:
    cursor = await conn.execute("select number from standfast.migrations where component = 'standfast'")
    done = {row["number"] for row in await cursor.fetchall()}
    applied = []
    for one in migrations():
        if one.number in done:
            continue
        report(one.name)
        async with conn.transaction():
            await conn.execute(one.sql.encode())
            reach("migrate.inside")
            await conn.execute(
                """insert into standfast.migrations (component, number, name, version, sha256)
                   values ('standfast', %s, %s, %s, %s)""",
                (one.number, one.name, metadata.version("standfast"), one.sha256),
            )
        applied.append(one.name)
    return applied
