"""Carries a thread on and shows its progress; tells how to go on when it is interrupted."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from standfast.graph.cli.output import note
from standfast.graph.cli.progress import Progress
from standfast.graph.cli.session import Session
from standfast.graph.result import Result
from standfast.graph.runtime import AsyncRuntime

_WAITING: Final = ("standfast.following", "standfast.ledger")  # the logs that tell of waiting
Drive = Callable[[AsyncRuntime, Progress], Awaitable[Result]]


def drive(session: Session, work: Drive, progress: Progress, *, thread_id: str) -> Result:
    """Do `work`, which drives the thread. Ctrl-C ends it cleanly, and the line that carries on is printed."""

    async def inside(runtime: AsyncRuntime) -> Result:
        return await work(runtime, progress)

    try:
        with progress, _waiting_told():
            return session.run(inside)
    except KeyboardInterrupt:
        note(f"\nStopped; what is finished is kept. To carry on: {session.line(f'resume {thread_id}')}")
        raise


class _Told(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        note(f"{text[0].upper()}{text[1:]}.")


@contextlib.contextmanager
def _waiting_told() -> Iterator[None]:
    """Whom and what the drive waits for is said on stderr."""
    loggers = [(logging.getLogger(name), logging.getLogger(name).level) for name in _WAITING]
    handler = _Told(logging.INFO)
    for logger, _ in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in loggers:
            logger.removeHandler(handler)
            logger.setLevel(level)


def carry_on(session: Session, thread_id: str, *, follow: bool = True) -> Result:
    """Drive what is due on a thread, or follow whoever does."""

    async def work(runtime: AsyncRuntime, progress: Progress) -> Result:
        await take_graph_of(session, runtime, thread_id)
        return await runtime.acarry_on(thread_id, on_event=progress, follow=follow)

    return drive(session, work, Progress(), thread_id=thread_id)


async def take_graph_of(session: Session, runtime: AsyncRuntime, thread_id: str) -> None:
    """Let a graph that was named by `--graph` go by the name that the thread knows; say it if none fits."""
    thread = await runtime.store.threads.get(thread_id)
    if session.graph is not None:
        runtime.name = thread.graph  # the guard of deploys still refuses a graph that lacks what the thread needs
    elif thread.graph != runtime.name and thread.status in ("queued", "running", "waiting"):
        graph = thread.graph if ":" in thread.graph else "MODULE:ATTR"
        note(
            f"Thread {thread_id} belongs to graph {thread.graph!r}, which is not loaded here: a process that has it "
            f"carries it on, if one is there (Ctrl-C stops only the waiting). To drive it here, add --graph {graph}"
        )
