"""The one owner of the connection pool, and the way every statement reaches Postgres.

Invariant: each unit of work is one transaction whose ids were made before it, so it may be sent again. A
connection that dies under it is replaced and the work repeated; the SQL recognises a commit whose answer
was lost as its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncPipeline
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from standfast.checkpoint import errors, poolers
from standfast.checkpoint.crashpoints import reach, watched
from standfast.checkpoint.group_commit import GroupCommit
from standfast.checkpoint.sqlstates import Meaning, meaning_of

SCHEMA: Final = "standfast"
MINIMUM_VERSION: Final = 150000

_OURS: Final = {
    "search_path": f"{SCHEMA},public",
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "0",  # a claim that waits for a stalled transaction ends that one
    "standard_conforming_strings": "on",  # LangGraph's statements rely on it
}

Connection = AsyncConnection[DictRow]
Params = Sequence[Any] | Mapping[str, Any]
Statement = tuple[bytes, Any]  # and its parameters
Rider = Statement  # sent in somebody else's transaction
T = TypeVar("T")

_SQLSTATES: Final[dict[str, type[errors.StandfastError]]] = {
    "SF001": errors.LeaseLost,
    "SF002": errors.HeadMoved,
    "SF003": errors.NotGranted,
    "SF004": errors.OperationMismatch,
    "SF005": errors.UnknownArtifact,
    "SF009": errors.ForkMayOnlyRead,
}
_PATIENCE: Final = b"select set_config('lock_timeout', '100ms', true)"  # a group does not wait long for one of them
_MENDED_BY_TIME: Final[frozenset[Meaning]] = frozenset({"timeout", "unavailable", "conflict"})


class PooledConnection(AsyncConnection[DictRow]):
    """A connection that does not go back to its pool in the middle of a pipeline."""

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[AsyncPipeline]:
        """A pipeline as psycopg's; in autocommit what is sent up to its Sync is one transaction.

        Two ways out of psycopg's own leave something behind for a caller who is cancelled. Its Sync is sent whatever
        happens: who is cancelled, or fails before the server has failed, in the middle of his statements would commit
        the first of them. And who is cancelled on entering leaves a connection that looks idle and is still in pipeline
        mode: whoever gets it next is told that his statements are done, and they are never committed. Both are closed.
        """
        if self.info.pipeline_status is not PipelineStatus.OFF:  # within another one, which sees to it
            async with super().pipeline() as inner:
                yield inner
            return
        try:
            async with super().pipeline() as pipeline:
                try:
                    yield pipeline
                except BaseException as error:
                    if getattr(error, "sqlstate", None) is None:
                        await self.close()
                    raise
        finally:
            if not self.closed and self.info.pipeline_status is not PipelineStatus.OFF:
                await self.close()


class Database:
    """A pool on one database, bound to the event loop that opened it.

    `retry_seconds` is how long a unit of work outlasts a database that is away before it raises
    `StorageUnavailable`. With `pooled_url`, a pooler before the same database, each unit of work goes through that one;
    what needs a session (`conninfo`: to listen, to renew leases) does not.
    """

    def __init__(
        self, url: str, *, pooled_url: str | None = None, pool_size: int = 20, retry_seconds: float = 30.0
    ) -> None:
        self.conninfo = conninfo_of(url)
        self._pooled = None if pooled_url is None else conninfo_of(pooled_url)
        self._true_pids = False
        self._retry_seconds = retry_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._commits = GroupCommit(self.commit_alone, self._commit_together)
        self.pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            self._pooled or self.conninfo,
            connection_class=PooledConnection,
            kwargs={
                "autocommit": True,
                "prepare_threshold": 0 if self._pooled is None else None,  # the next transaction has another session
                "row_factory": dict_row,
            },
            min_size=1,
            max_size=pool_size,
            timeout=max(retry_seconds, 1.0),
            reconnect_timeout=5.0,
            open=False,
            name="standfast",
        )

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that opened it. Raises `RuntimeClosed` before that."""
        if self._loop is None:
            raise errors.RuntimeClosed("the database has not been opened")
        return self._loop

    async def open(self) -> None:
        """Connect. Raises `DatabaseUnavailable`, `DatabaseTooOld` or `DatabaseMisconfigured`."""
        self._loop = asyncio.get_running_loop()
        async with await connect(self.conninfo) as conn:
            await check_server(conn)
            self._true_pids = await require_session(conn, self.conninfo) and self._pooled is None
            if self._pooled is not None:
                async with await connect(self._pooled) as pooled:
                    await check_server(pooled)
                    await poolers.require_transactions(pooled, conn, where=describe(self._pooled))
        await self.pool.open(wait=True, timeout=30)

    async def close(self) -> None:
        """Close all connections; work that comes later is refused by name."""
        self._closed = True
        await self.pool.close()

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, pipeline: bool = False) -> T:
        """Do `work` in one transaction and return what it returns, repeating it when the connection dies.

        With `pipeline` the statements travel together; they still are one transaction. `work` must be fit to
        run again. Raises the typed errors that SQL raises, and `StorageUnavailable`.
        """

        async def once() -> T:
            async with self.pool.connection() as conn:
                if pipeline:
                    async with conn.pipeline():  # everything up to the sync is one transaction
                        return await work(conn)
                async with conn.transaction():
                    return await work(conn)

        return await self.again(once)

    async def commit(self, statements: Sequence[Statement]) -> None:
        """Execute statements that return nothing in one transaction, together with others that come at this moment.

        They must be fit to be sent again. Raises the typed errors that SQL raises, and `StorageUnavailable`.
        """
        self._require_open()
        await self._commits.commit(statements)

    async def commit_alone(self, statements: Sequence[Statement]) -> None:
        """The same, in a transaction of its own: for what takes long, or waits for others."""
        if len(statements) == 1 and not watched():  # a statement alone is a transaction
            await self.fetch_none(*statements[0])
            return

        async def work(conn: Connection) -> None:
            await _execute(conn, statements)
            reach("saver.fenced")

        await self.run(work, pipeline=True)

    async def _commit_together(self, units: Sequence[Sequence[Statement]]) -> None:
        async with self.pool.connection() as conn, conn.pipeline():
            await conn.execute(_PATIENCE)
            for statements in units:
                await _execute(conn, statements)
            reach("group.fenced")

    async def again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns, repeating it while the database is away, up to `retry_seconds`."""
        self._require_open()
        began = time.monotonic()
        delay = 0.0
        while True:
            try:
                return await attempt()
            except PoolClosed as error:
                raise errors.RuntimeClosed("the runtime has been closed; open a new one") from error
            except (psycopg.Error, PoolTimeout) as error:
                named = _translate(error)
                if named is not None:
                    raise named from error
                if not _repeatable(error):
                    raise
                if time.monotonic() - began + delay > self._retry_seconds:
                    raise errors.StorageUnavailable(
                        f"the database did not answer for {self._retry_seconds:g} s ({_first_line(error)}); "
                        "what was committed is kept, try again when it is back"
                    ) from error
            if delay == 0.0:
                await self.pool.check()  # the others of a killed pool are dead too: replace them at once
            await asyncio.sleep(delay)
            delay = min(1.0, delay * 2 or 0.05)

    async def fetch(self, statement: bytes, params: Params = ()) -> list[DictRow]:
        """All rows of one statement, in a transaction of its own."""

        async def once() -> list[DictRow]:
            async with self.pool.connection() as conn:  # autocommit: one statement is one transaction
                cursor = await conn.execute(statement, params, binary=True)
                return await cursor.fetchall()

        return await self.again(once)

    async def fetch_one(self, statement: bytes, params: Params = ()) -> DictRow | None:
        """The first row of one statement, if any."""
        rows = await self.fetch(statement, params)
        return rows[0] if rows else None

    async def pid_of(self, conn: Connection) -> int:
        """The backend of the transaction that `conn` is in: a pooler makes up the number that a client is told."""
        return conn.info.backend_pid if self._true_pids else await poolers.backend(conn)

    async def clock(self) -> datetime:
        """The time that all rows go by."""
        row = await self.fetch_one(b"select standfast.now() as now")
        assert row is not None
        return row["now"]  # type: ignore[no-any-return]

    async def fetch_none(self, statement: bytes, params: Params = ()) -> None:
        """Execute a statement that returns nothing, in a transaction of its own."""

        async def once() -> None:
            # Each step comes here: the pool's own context manager would add a lock and a look for a transaction.
            conn = await self.pool.getconn()
            try:
                await conn.execute(statement, params)
            finally:
                await self.pool.putconn(conn)

        await self.again(once)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """A connection for reads that cannot be repeated as a unit; errors come as they are."""
        self._require_open()
        async with self.pool.connection() as conn:
            yield conn

    def _require_open(self) -> None:
        if self._closed:
            raise errors.RuntimeClosed("the runtime has been closed; open a new one")
        if asyncio.get_running_loop() is not self._loop:
            raise errors.WrongLoop(
                "this runtime belongs to another event loop; open one per loop, or use its blocking methods"
            )


async def _execute(conn: Connection, statements: Sequence[Statement]) -> None:
    cursor = conn.cursor(binary=True)
    for statement, values in statements:
        await cursor.execute(statement, values)


async def connect(conninfo: str) -> Connection:
    """One connection outside any pool. Raises `DatabaseUnavailable`, naming the place but no password."""
    try:
        return await AsyncConnection.connect(
            conninfo, autocommit=True, row_factory=dict_row, connect_timeout=_timeout(conninfo)
        )
    except psycopg.OperationalError as error:
        raise errors.DatabaseUnavailable(
            f"cannot connect to Postgres at {describe(conninfo)}: {_first_line(error)}; "
            "check STANDFAST_DATABASE_URL and that the server runs"
        ) from error


async def check_server(conn: Connection) -> None:
    """Refuse a server that is too old, and a connection that does not find our schema first."""
    version = conn.info.server_version
    if version < MINIMUM_VERSION:
        raise errors.DatabaseTooOld(
            f"Postgres {version // 10000} at {describe(conn.info.dsn)} is too old; Standfast needs 15 or newer",
            version=version,
        )
    row = await (await conn.execute("select current_setting('search_path') as path")).fetchone()
    if row is None or row["path"].split(",")[0].strip() != SCHEMA:
        raise errors.DatabaseMisconfigured(
            f"the connection to {describe(conn.info.dsn)} does not keep the search path {SCHEMA!r}, which a pooler "
            f"drops; connect directly, or let the role have it: alter role ... set search_path = {SCHEMA}, public"
        )


async def require_session(conn: Connection, conninfo: str) -> bool:
    """Refuse a pooler by transactions; whether there is none at all. Raises `DatabaseMisconfigured`."""
    return await poolers.require_session(conn, lambda: connect(conninfo), where=describe(conninfo))


def describe(conninfo: str) -> str:
    """Where a connection goes, for messages: no password, no user."""
    try:
        parts = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        return "a URL that cannot be read"
    host = parts.get("host") or "localhost"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"{host}{port}/{parts.get('dbname') or parts.get('user') or ''}"


def conninfo_of(url: str) -> str:
    """The URL as a connection string that finds our schema. Raises `DatabaseMisconfigured`."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise errors.DatabaseMisconfigured(
            "the database URL cannot be read; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from error
    # Startup parameters, not `alter role ... set`: other programs of the same role keep their search path.
    options = " ".join(f"-c {name}={value}" for name, value in _OURS.items())
    options = f"{parts.get('options') or ''} {options}"
    parts.setdefault("application_name", "standfast")
    parts["client_encoding"] = "utf8"
    return make_conninfo(**{**parts, "options": options.strip()})  # type: ignore[arg-type]


def _timeout(conninfo: str) -> int:
    return int(conninfo_to_dict(conninfo).get("connect_timeout") or 10)


def _translate(error: Exception) -> errors.StandfastError | None:
    state = getattr(error, "sqlstate", None)
    if state in _SQLSTATES:
        return _SQLSTATES[state](_first_line(error))
    if state in ("53100", "53200", "54000"):
        return errors.StorageUnavailable(f"the database cannot store more: {_first_line(error)}")
    if state == "42501":
        return errors.StorageForbidden(
            f"the database's role lacks a right ({_first_line(error)}); grant it, or connect as the schema's owner. "
            "What was committed is kept"
        )
    if state in ("42P01", "42883", "3F000"):
        return errors.SchemaOutOfDate(f"the schema lacks something ({_first_line(error)}); run: standfast migrate")
    return None


def _repeatable(error: Exception) -> bool:
    if isinstance(error, psycopg.InterfaceError):  # the client saw the connection go
        return True
    return meaning_of(error) in _MENDED_BY_TIME


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
