"""Waiting that holds nothing: timers and events, from nodes and from operations.

A wait is an interrupt of the graph and a row. What is waited for is described in the interrupt's value, with
absolute times by the database's clock, and written down when the thread parks; the thread is then nobody's until
an event or the clock makes it due. LangGraph runs the node again from its top when the wait has ended: as with
every interrupt, what stands before it in a node should have no effect of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import rfc8785
from langgraph.config import get_config
from langgraph.types import interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.events import Event
from standfast.tools.drive import drive_of

KEY: Final = "standfast.waits"
Seconds = float | timedelta


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
class Ended:
    """How one wait ended: its event, or None when its time came."""

    position: int
    event: Event | None

    @property
    def timed_out(self) -> bool:
        return self.event is None


def timer(*, until: datetime | None = None, for_: Seconds | None = None) -> TimerWait:
    """A timer for `first_of` and `all_of`. Raises `InvalidRequest`."""
    if (until is None) == (for_ is None):
        raise errors.InvalidRequest("a timer takes either until= or for_=")
    if until is not None and until.tzinfo is None:
        raise errors.InvalidRequest("until= needs a time zone: a local time means another moment on every machine")
    after = None if for_ is None else _duration(for_, "for_")
    return TimerWait(until, after)


def event(name: str, *, match: Any = None, timeout: Seconds | None = None) -> EventWait:
    """An event for `first_of` and `all_of`: of this name and, if `match` is given, emitted with an equal match."""
    return EventWait(event_name(name), match, None if timeout is None else _duration(timeout, "timeout"))


async def sleep(*, until: datetime | None = None, for_: Seconds | None = None) -> None:
    """Wait for a time, in seconds or as a moment with a time zone. Nothing is held meanwhile."""
    await first_of(timer(until=until, for_=for_))


async def wait_for_event(name: str, *, match: Any = None, timeout: Seconds | None = None) -> Event | None:
    """Wait for an event and return it, or None when `timeout` seconds have passed.

    An event that was emitted before, within its time to live, counts, once for each thread.
    """
    return (await first_of(event(name, match=match, timeout=timeout))).event


async def first_of(*waits: TimerWait | EventWait) -> Ended:
    """Wait for the first of several; the others are withdrawn."""
    ended = [one for one in await _wait(waits, "first") if one is not None]
    return ended[0]


async def all_of(*waits: TimerWait | EventWait) -> list[Ended]:
    """Wait for all of several."""
    return [one for one in await _wait(waits, "all") if one is not None]


def event_name(name: str) -> str:
    """A usable event name. Raises `InvalidRequest`."""
    if not name or len(name) > 255 or not name.isprintable():
        raise errors.InvalidRequest(f"an event's name has 1 to 255 printable characters: {name[:40]!r}")
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


async def _wait(waits: Sequence[TimerWait | EventWait], quorum: Literal["first", "all"]) -> list[Ended | None]:
    if not waits:
        raise errors.InvalidRequest("there is nothing to wait for; give at least one wait")
    now = await drive_of(get_config()).clock()
    answer = interrupt({KEY: {"quorum": quorum, "waits": [_described(one, now) for one in waits]}})
    return _ended(answer)


def _described(wait: TimerWait | EventWait, now: datetime) -> dict[str, Any]:
    if isinstance(wait, TimerWait):
        until = wait.until or now + (wait.after or timedelta())
        return {"kind": "timer", "name": None, "match": None, "until": until}
    latest = None if wait.timeout is None else now + wait.timeout
    return {"kind": "event", "name": wait.name, "match": match_digest(wait.match), "until": latest}


def _ended(answer: Any) -> list[Ended | None]:
    if not isinstance(answer, Mapping) or KEY not in answer:
        raise errors.InvalidRequest("a wait for a time or an event was answered with something else")
    ended: list[Ended | None] = []
    for position, one in enumerate(answer[KEY]):
        happened = None if one is None or one["event"] is None else Event(**one["event"])
        ended.append(None if one is None else Ended(position, happened))
    return ended


def _duration(value: Seconds, what: str) -> timedelta:
    duration = value if isinstance(value, timedelta) else timedelta(seconds=value)
    if duration < timedelta(0):
        raise errors.InvalidRequest(f"{what} must not be negative, not {value}")
    return duration
