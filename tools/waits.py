"""Waiting that holds nothing: timers and events, from nodes and from operations.

A wait is an interrupt of the graph and a row. What is waited for is described in the interrupt's value, with
absolute times by the database's clock, and written down when the thread parks; the thread is then nobody's until
an event or the clock makes it due. LangGraph runs the node again from its top when the wait has ended: as with
every interrupt, what stands before it in a node should have no effect of its own.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import rfc8785
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.config import get_config
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.child import Child
from standfast.checkpoint.events import Event
from standfast.tools.drive import drive_of
from standfast.tools.ledger import refuse_to_wait
from standfast.tools.parking import SCRATCHPAD, WAITS

Seconds = float | timedelta
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC)  # what both Python and Postgres can hold, in every time zone


@dataclass(frozen=True)
class TimerWait:
    """A time to wait for: `until`, or `after` some seconds."""

    until: datetime | None = None
    after: timedelta | None = None


@dataclass(frozen=True)
class EventWait:
    """An event to wait for, at most for `timeout`."""

    name: str
    match: Any = None
    timeout: timedelta | None = None


@dataclass(frozen=True)
class ChildWait:
    """The end of a child thread to wait for, at most for `timeout`."""

    child: Child
    timeout: timedelta | None = None


AnyWait = TimerWait | EventWait | ChildWait


@dataclass(frozen=True)
class Ended:
    """How one wait ended: its event, or the status that its child ended with; neither when its time came."""

    position: int
    event: Event | None
    child: str | None = None

    @property
    def timed_out(self) -> bool:
        return self.event is None and self.child is None


def timer(*, until: datetime | None = None, for_: Seconds | None = None) -> TimerWait:
    """A timer for `first_of` and `all_of`. Raises `InvalidRequest`."""
    if (until is None) == (for_ is None):
        raise errors.InvalidRequest("a timer takes either until= or for_=")
    if for_ is not None:
        return TimerWait(after=duration(for_, "for_"))
    if not isinstance(until, datetime) or until.utcoffset() is None:
        raise errors.InvalidRequest(
            f"until= is a datetime with a time zone, not {until!r}: a local time means another moment elsewhere"
        )
    try:
        return TimerWait(until.astimezone(UTC))
    except OverflowError as error:
        raise errors.InvalidRequest(f"until= is out of range: {until!r}") from error


def event(name: str, *, match: Any = None, timeout: Seconds | None = None) -> EventWait:
    """An event for `first_of` and `all_of`: of this name and, if `match` is given, emitted with an equal match."""
    return EventWait(event_name(name), match, None if timeout is None else duration(timeout, "timeout"))


async def sleep(*, until: datetime | None = None, for_: Seconds | None = None) -> None:
    """Wait for a time, in seconds or as a moment with a time zone. Nothing is held meanwhile.

    Raises `InvalidRequest`, and `WaitRefused` in an operation that must not be called twice; so do all waits.
    """
    await first_of(timer(until=until, for_=for_))


async def wait_for_event(name: str, *, match: Any = None, timeout: Seconds | None = None) -> Event | None:
    """Wait for an event and return it, or None when `timeout` seconds have passed.

    An event that was emitted before, within its time to live, counts, once for each thread.
    """
    return (await first_of(event(name, match=match, timeout=timeout))).event


@contextmanager
def from_the_top(config: RunnableConfig) -> Iterator[None]:
    """Let what is called inside find the ends of its waits from the first one on.

    LangGraph counts a node's interrupts through; an operation that is tried again in the same node would
    otherwise wait again for what has come.
    """
    known = config.get("configurable", {})
    scratchpad = known.get(SCRATCHPAD)
    if scratchpad is None:
        yield
        return
    fresh = replace(scratchpad, interrupt_counter=itertools.count().__next__)
    token = var_child_runnable_config.set({**config, "configurable": {**known, SCRATCHPAD: fresh}})
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


async def first_of(*waits: AnyWait) -> Ended:
    """Wait for the first of several; the others are withdrawn."""
    ended = [one for one in await _wait(waits, "first") if one is not None]
    return ended[0]


async def all_of(*waits: AnyWait) -> list[Ended]:
    """Wait for all of several."""
    return [one for one in await _wait(waits, "all") if one is not None]


def event_name(name: str) -> str:
    """A usable event name. Raises `InvalidRequest`."""
    if not isinstance(name, str) or not name or len(name) > 255 or not name.isprintable():
        raise errors.InvalidRequest(f"an event's name and id have 1 to 255 printable characters, not {name!r:.60}")
    return name


def match_digest(match: Any) -> str | None:
    """What stands in the rows for a match: equal matches have equal digests. Raises `InvalidRequest`."""
    return None if match is None else digest_of(match, "match")


def digest_of(value: Any, what: str) -> str:
    """The digest of a JSON value. Raises `InvalidRequest`."""
    try:
        return hashlib.sha256(rfc8785.dumps(value)).hexdigest()
    except (rfc8785.CanonicalizationError, RecursionError) as error:
        raise errors.InvalidRequest(f"{what} must be JSON: {error}") from error


async def _wait(waits: Sequence[AnyWait], quorum: Literal["first", "all"]) -> list[Ended | None]:
    if not waits:
        raise errors.InvalidRequest("there is nothing to wait for; give at least one wait")
    refuse_to_wait()
    now = await drive_of(get_config()).clock()
    answer = interrupt({WAITS: {"quorum": quorum, "waits": [_described(one, now) for one in waits]}})
    return _ended(answer)


def _described(wait: AnyWait, now: datetime) -> dict[str, Any]:
    if isinstance(wait, TimerWait):
        until = _later(now, wait.after or timedelta()) if wait.until is None else max(wait.until, now)
        return {"kind": "timer", "name": None, "match": None, "until": _within(until)}
    latest = None if wait.timeout is None else _later(now, wait.timeout)
    if isinstance(wait, ChildWait):
        return {"kind": "child", "name": wait.child.thread_id, "match": None, "until": latest}
    request = None if wait.match is None else {"match": wait.match}  # for people: what is compared is the digest
    return {"kind": "event", "name": wait.name, "match": match_digest(wait.match), "until": latest, "request": request}


def _later(now: datetime, by: timedelta) -> datetime:
    try:
        return _within(now + by)
    except OverflowError as error:
        raise errors.InvalidRequest(f"a wait of {by} ends after the last day that can be stored") from error


def _within(moment: datetime) -> datetime:
    if moment > _LATEST:
        raise errors.InvalidRequest(f"a wait until {moment} ends after the last day that can be stored")
    return moment


def _ended(answer: Any) -> list[Ended | None]:
    if not isinstance(answer, Mapping) or WAITS not in answer:
        raise errors.InvalidRequest("a wait for a time or an event was answered with something else")
    ended: list[Ended | None] = []
    for position, one in enumerate(answer[WAITS]):
        happened = None if one is None or one["event"] is None else Event(**one["event"])
        ended.append(None if one is None else Ended(position, happened, one.get("child")))
    return ended


def duration(value: Seconds, what: str) -> timedelta:
    """Seconds as a timedelta that is not negative. Raises `InvalidRequest`."""
    try:
        duration = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.InvalidRequest(f"{what} must be seconds or a timedelta, not {value!r}") from error
    if duration < timedelta(0):
        raise errors.InvalidRequest(f"{what} must not be negative, not {value}")
    return duration
