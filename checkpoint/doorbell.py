"""The doorbell: procrastinate carries "thread X may have something due" to worker processes, and nothing more.

Invariant: losing a job loses no work. Whoever is rung looks at the thread's own rows; bells that were lost are
rung again by the sweep (standfast.checkpoint.fleet).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ConnectorException

from standfast.checkpoint import errors

TASK: Final = "drive"
_POLL_SECONDS: Final = 0.2  # a backstop for notifications that are lost

OnRing = Callable[[str], Awaitable[None]]


class Doorbell:
    """Listens for the bells of some graphs and answers each by `on_ring(thread_id)`, `concurrency` at a time."""

    def __init__(self, conninfo: str, queues: Sequence[str], on_ring: OnRing, *, concurrency: int) -> None:
        self._queues = list(queues)
        self._concurrency = concurrency
        self._app = App(connector=PsycopgConnector(conninfo=conninfo, min_size=1, max_size=4))

        async def drive(thread_id: str) -> None:
            await on_ring(thread_id)

        self._app.task(name=TASK)(drive)

    async def listen(self) -> None:
        """Answer until cancelled; a database that is away raises `StorageUnavailable`."""
        try:
            async with self._app.open_async():
                await self._app.run_worker_async(
                    queues=self._queues,
                    concurrency=self._concurrency,
                    fetch_job_polling_interval=_POLL_SECONDS,
                    abort_job_polling_interval=3600.0,
                    install_signal_handlers=False,
                    delete_jobs="always",
                    shutdown_graceful_timeout=0.0,
                )
        except (TimeoutError, ConnectorException) as error:
            raise errors.StorageUnavailable(f"the doorbell has lost its database: {error}") from error
