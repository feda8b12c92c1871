"""What a node of your own does once and finds again: durable steps, and the moments and numbers that it takes.

Invariant: a result is in the ledger, under the thread's lease, before the node sees it; whoever runs the node again
(after a crash, or after an answer to a question in it) gets the recorded one. A step is known by its name, its place
(this task of this thread: another round of a loop is another place), its arguments, and how often the same has been
asked for in the node before.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import random as _random
import uuid as _uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

import anyio.to_thread
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel

from standfast.checkpoint import errors
from standfast.checkpoint.operations import Begun, Call
from standfast.tools.digests import call_digest
from standfast.tools.drive import Drive, drive_of
from standfast.tools.failures import classify, said
from standfast.tools.operations import Effect

_SCRATCHPAD: Final = "__pregel_scratchpad"  # LangGraph makes a new one for each execution of a node
_COUNTS: Final = "standfast.recorded"
_TAGGED: Final = (Decimal, datetime, date, _uuid.UUID)

P = ParamSpec("P")
T = TypeVar("T")


@overload
def durable_step(function: Callable[P, Awaitable[T]], /, *, name: str | None = None) -> Callable[P, Awaitable[T]]: ...
@overload
def durable_step(function: Callable[P, T], /, *, name: str | None = None) -> Callable[P, Awaitable[T]]: ...
@overload
def durable_step(*, name: str | None = None) -> Callable[[Callable[P, Any]], Callable[P, Awaitable[Any]]]: ...


def durable_step(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Make a function whose result is on disk when it returns, for use inside nodes of any graph under `Runtime`.

    As a decorator, or `await durable_step(fetch)(order)`. The result is an awaitable function with the same
    arguments; a blocking function runs on a thread. It is called again until it has returned once, so it must bear
    that: effects belong into operations. What it raises is raised, and recorded as a failed attempt; the next time it
    is called again. Arguments are what JSON has, dates, decimals, UUIDs and pydantic models. Raises `UnstorableValue`
    for other arguments before the call, and for a result that cannot be stored.
    """
    if function is None:
        return lambda given: durable_step(given, name=name)
    title = name or str(getattr(function, "__qualname__", type(function).__name__))
    signature = inspect.signature(function)
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    @functools.wraps(function)
    async def step(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()

        async def work() -> Any:
            if is_async:
                return await function(*args, **kwargs)
            return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs))

        drive, call = await _place(title, {key: _plain(value, key) for key, value in bound.arguments.items()})
        return await _once(drive, call, work)

    return step


async def now() -> datetime:
    """The time by the database's clock, recorded: the same whenever the node is run again."""
    drive, call = await _place("now", {})
    return cast("datetime", await _taken(drive, call, drive.clock))


async def random() -> float:
    """A random number from 0 up to 1, recorded: the same whenever the node is run again."""

    async def take() -> float:
        return _random.SystemRandom().random()

    return cast("float", await _taken(*await _place("random", {}), take))


async def uuid() -> _uuid.UUID:
    """A random UUID, recorded: the same whenever the node is run again, fit for a key."""

    async def take() -> _uuid.UUID:
        return _uuid.uuid4()

    return cast("_uuid.UUID", await _taken(*await _place("uuid", {}), take))


async def _place(name: str, arguments: Mapping[str, Any]) -> tuple[Drive, Call]:
    config = get_config()
    drive = drive_of(config)
    namespace = config["configurable"].get("checkpoint_ns", "")
    digest = call_digest(name, arguments)
    number = ordinal(config, digest)
    place = "\0".join((*await drive.lineage.origin(), namespace, digest, str(number), "step"))
    return drive, Call(
        id="step-" + hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:32],
        run_id=drive.run.id,
        kind="step",
        name=name,
        namespace=namespace,
        turn=0,
        index=number,
        effect=Effect.READ,
        digest=digest,
        arguments=arguments,
    )


def ordinal(config: RunnableConfig, digest: str) -> int:
    """How often this node has asked for the same before, in this execution; each call counts."""
    known = config["configurable"]
    scratchpad = known.get(_SCRATCHPAD)
    counts: tuple[Any, Counter[str]] | None = known.get(_COUNTS)
    if counts is None or counts[0] is not scratchpad:
        counts = known[_COUNTS] = scratchpad, Counter()
    counts[1][digest] += 1
    return counts[1][digest] - 1


async def _once(drive: Drive, call: Call, work: Callable[[], Awaitable[Any]]) -> Any:
    begun = await drive.operations.begin(drive.lease, call)
    if begun.state == "succeeded":
        return begun.result
    drive.lease.require()
    try:
        result = await work()
        sealed = drive.operations.seal_result(drive.lease, call.id, result)
    except (errors.LeaseLost, errors.StorageUnavailable):
        raise
    except GraphBubbleUp:  # it waits for something, and is called again when that has come
        await drive.operations.finish(drive.lease, call.id, begun.attempt, "waiting")
        raise
    except Exception as error:
        await drive.operations.finish(
            drive.lease,
            call.id,
            begun.attempt,
            "planned",
            failure_class=classify(error),
            failure_message=said(error),
        )
        raise
    await drive.operations.finish(drive.lease, call.id, begun.attempt, "succeeded", sealed_result=sealed)
    return result


async def _taken(drive: Drive, call: Call, take: Callable[[], Awaitable[Any]]) -> Any:
    """A value that costs nothing to take: it is recorded in one transaction."""

    async def effect(connection: Any, begun: Begun) -> Any:
        return await take()

    begun, value = await drive.operations.transact(drive.lease, call, effect)
    return value if begun.state == "executing" else begun.result


def _plain(value: Any, where: str) -> Any:
    """An argument as JSON, so that equal ones have equal digests in every process."""
    if isinstance(value, BaseModel):
        return {"$model": type(value).__name__, **value.model_dump(mode="json")}
    if isinstance(value, _TAGGED):
        return {f"${type(value).__name__}": str(value)}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise _unusable(value, where)
        return {key: _plain(one, where) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_plain(one, where) for one in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise _unusable(value, where)


def _unusable(value: Any, where: str) -> errors.UnstorableValue:
    return errors.UnstorableValue(
        f"the argument {where!r} of a durable step is of type {type(value).__name__}, which does not identify it in "
        "every process; pass text, numbers, lists and mappings of these, dates, decimals, UUIDs or pydantic models",
        path=where,
    )
