"""Opens the database that is meant: the one given, the one configured, or the embedded server's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from standfast.checkpoint.database import Database
from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.checkpoint.migrate import migrate
from standfast.checkpoint.settings import Settings


@contextlib.asynccontextmanager
async def opened(database_url: str | None = None, *, settings: Settings | None = None) -> AsyncIterator[Database]:
    """An open, migrated database. Raises the `ConfigurationError`s; the embedded server is released at the end."""
    settings = settings or Settings()
    url = database_url or (settings.database_url.get_secret_value() if settings.database_url else None)
    async with contextlib.AsyncExitStack() as stack:
        if url is None:
            embedded = EmbeddedPostgres(None if settings.data_dir is None else settings.data_dir / "postgres")
            url = await asyncio.to_thread(embedded.acquire)
            stack.push_async_callback(asyncio.to_thread, embedded.release)
        await migrate(url)
        pooled = None if settings.pooled_url is None else settings.pooled_url.get_secret_value()
        database = Database(url, pooled_url=pooled, pool_size=settings.pool_size, retry_seconds=settings.retry_seconds)
        await database.open()
        stack.push_async_callback(database.close)
        yield database
