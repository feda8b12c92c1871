"""LangGraph's own stream of a drive in this process: its modes, its parts, its shapes.

Invariant: parts are copies of what happens, for whoever listens; a listener that is slow or gone holds nothing up,
and what is stored is the same with and without one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Final, Literal, get_args

from standfast.checkpoint import errors
from standfast.checkpoint.run_events import RunEvent

Mode = Literal["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"]
MODES: Final[frozenset[Mode]] = frozenset(get_args(Mode))
_END: Final = object()
_LOG = logging.getLogger("standfast.parts")


class Parts:
    """Hears of a drive's parts, and is iterated over. It can stand wherever a listener for events can.

    `stream_mode` and `subgraphs` mean what they mean in LangGraph's `astream`, with one difference: what is said
    inside a subgraph is left out without `subgraphs`; LangGraph would repeat it at the end. Raises `InvalidRequest`.
    """

    def __init__(self, stream_mode: Mode | Sequence[Mode], *, subgraphs: bool) -> None:
        self._alone = isinstance(stream_mode, str)
        self.modes: frozenset[Mode] = frozenset([stream_mode] if isinstance(stream_mode, str) else stream_mode)
        if not self.modes or not self.modes <= MODES:
            raise errors.InvalidRequest(
                f"stream_mode is one or more of {', '.join(sorted(MODES))}, not {stream_mode!r}"
            )
        self._subgraphs = subgraphs
        self._parts: asyncio.Queue[Any] = asyncio.Queue()
        self._gone = False

    def __call__(self, event: RunEvent) -> None:
        """The run's own events are for other listeners."""

    def hear(self, namespace: tuple[str, ...], mode: str, part: Any) -> None:
        """Take one part, if it is wanted."""
        if self._gone or mode not in self.modes:
            return
        if namespace and not self._subgraphs:
            return
        self.put(namespace, mode, part)

    def put(self, namespace: tuple[str, ...], mode: str, part: Any) -> None:
        """Give one part to the listener, in the shape that it asked for."""
        shaped: Any = part if self._alone else (mode, part)
        if self._subgraphs:
            shaped = (namespace, part) if self._alone else (namespace, mode, part)
        self._parts.put_nowait(shaped)

    def end(self) -> None:
        """Nothing comes any more."""
        self._parts.put_nowait(_END)

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            while (part := await self._parts.get()) is not _END:
                yield part
        finally:
            self._gone = True


class Listened:
    """The drives that are listened to. They outlive their listeners, and end with this."""

    def __init__(self) -> None:
        self._drives: set[asyncio.Task[Any]] = set()

    async def follow(self, drive: Coroutine[Any, Any, Any], parts: Parts) -> AsyncIterator[Any]:
        """Start a drive and yield its parts; raises what it raises."""
        task = asyncio.get_running_loop().create_task(drive)
        self._drives.add(task)
        task.add_done_callback(self._drives.discard)
        task.add_done_callback(lambda _: parts.end())
        try:
            async for part in parts:
                yield part
        except BaseException:
            task.add_done_callback(_log_failure)
            raise
        task.result()

    async def close(self) -> None:
        """Stop the drives that are under way; their threads stay due."""
        drives = set(self._drives)
        for one in drives:
            one.cancel()
        if drives:
            await asyncio.wait(drives)


def _log_failure(drive: asyncio.Task[Any]) -> None:
    if not drive.cancelled() and (error := drive.exception()) is not None:
        _LOG.warning("a drive whose listener has gone failed: %s", error)
