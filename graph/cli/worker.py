"""`standfast worker`: a process of the fleet, to be run by systemd, Kubernetes, or a person.

SIGTERM and the first Ctrl-C drain it; the second Ctrl-C ends it at once, and its leases run out by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from standfast.checkpoint import errors
from standfast.graph import logs
from standfast.graph.builder import build_agent, registry_of
from standfast.graph.cli.exits import INTERRUPTED, SUCCEEDED
from standfast.graph.cli.session import DEFAULT_NAME, Session, load_channels, load_graph, session
from standfast.graph.runtime import AsyncRuntime
from standfast.graph.worker import Worker, WorkerOptions
from standfast.tools.channels import Channel
from standfast.tools.operations import Registry
from standfast.tools.policy_file import policies_for

_VERSION = "1"
_CLOSING_SECONDS = 5.0


@dataclass(frozen=True)
class _Place:
    """One `--graph`: what it is known as, and where it is imported from."""

    name: str
    version: str
    takes_over: Sequence[str]
    graph: Any


def worker(
    database: str | None,
    graphs: Sequence[str],
    *,
    concurrency: int,
    grace: float,
    name: str | None,
    health_file: Path | None,
    health_port: int | None,
    log: Literal["text", "json"],
    channels: str | None = None,
) -> int:
    """Work until a signal. The exit code at the end."""
    logs.configure(log)
    options = WorkerOptions(concurrency, grace, name, health_file, health_port)
    places = [_place(one) for one in graphs] or [_Place(DEFAULT_NAME, _VERSION, (), build_agent())]
    channels_given = load_channels(channels)
    loop = asyncio.new_event_loop()
    with session(database) as current:
        _collect_seldom()
        ended = loop.run_until_complete(_work(current, places, options, channels_given))
    if not ended:
        logging.shutdown()
        os._exit(SUCCEEDED)  # the interpreter would wait for threads in which a step is still at work
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    return SUCCEEDED


async def _work(
    current: Session, places: Sequence[_Place], options: WorkerOptions, channels: Sequence[Channel] | None
) -> bool:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, _interrupted, stop)
    registries = [registry_of(one.graph) or Registry() for one in places]
    file = current.settings.policy_file
    policies = [None] * len(places) if file is None else policies_for(file, registries)
    runtimes = [
        AsyncRuntime(
            one.graph,
            database_url=current.url,
            name=one.name,
            version=one.version,
            takes_over=one.takes_over,
            settings=current.settings,
            channels=channels,
            policy=policy,
        )
        for one, policy in zip(places, policies, strict=True)
    ]
    stack = contextlib.AsyncExitStack()
    first = await stack.enter_async_context(runtimes[0])
    try:
        for other in runtimes[1:]:
            other.join(first)
        return await Worker(runtimes, options, stop=stop).run()
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await stack.aclose()


def _collect_seldom() -> None:
    """Leave what is loaded to itself, and look for cycles less often: measured, a seventh of a busy worker's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _interrupted(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(INTERRUPTED)
    stop.set()


def _place(given: str) -> _Place:
    """`[NAME[@VERSION[,OLDER...]]=]MODULE:ATTR`; by default a graph is known by its place, as `run --graph` does it.

    Threads of the older versions are taken over: whoever names them says that this code can continue them.
    """
    known_as, equals, place = given.rpartition("=")
    name, at, versions = known_as.partition("@")
    version, *older = versions.split(",")
    if (equals and not name) or (at and not all([version, *older])):
        raise errors.InvalidRequest(f"--graph takes [NAME[@VERSION[,OLDER...]]=]MODULE:ATTR, not {given!r}")
    return _Place(name or place, version or _VERSION, older, load_graph(place))
