"""Blocking work on a thread, which nothing can stop: after a cancel it goes on, and its end is recorded as late.

Invariant: how it ends is told once, as a completion from the attempt itself. It counts where somebody still wants to
know (nobody has told another end, and the run goes on); else it is kept with its attempt, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import anyio.to_thread

from standfast.checkpoint import errors
from standfast.checkpoint.completions import Completion
from standfast.checkpoint.operations import Operations
from standfast.checkpoint.plain_text import storable_text
from standfast.tools.failures import said

WHO: Final = "the attempt itself"
Outlive = Callable[[asyncio.Future[Any]], None]
"""Is given work that goes on although nobody waits for it."""

_LOG = logging.getLogger("standfast.late")
_under_way: set[asyncio.Task[None]] = set()


async def on_a_thread(work: Callable[[], Any], outlive: Outlive) -> Any:
    """Do `work` on a thread and return what it returns; cancelled, it is handed to `outlive`."""
    running = asyncio.ensure_future(anyio.to_thread.run_sync(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.cancelled():
            outlive(running)
        raise


def record_late(operations: Operations, operation_id: str, attempt: int, running: asyncio.Future[Any]) -> None:
    """Record how the work of an attempt ends, whenever that is; if this process ends before, its log says so."""
    task = asyncio.ensure_future(_record(operations, operation_id, attempt, running))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)


async def _record(operations: Operations, operation_id: str, attempt: int, running: asyncio.Future[Any]) -> None:
    result, failure = None, None
    try:
        result = await running
    except asyncio.CancelledError:
        _LOG.warning("attempt %d of operation %s is still at work while its process ends", attempt, operation_id)
        raise
    except Exception as error:  # noqa: BLE001 - whatever it raises, it has ended
        failure = storable_text(said(error))
    try:
        await operations.complete(Completion(operation_id, result, failure, WHO, False, attempt))
    except (errors.CompletedLate, errors.AlreadyCompleted):
        pass  # it is recorded
    except errors.StandfastError as error:
        _LOG.warning("the late end of operation %s, attempt %d, was not recorded: %s", operation_id, attempt, error)
