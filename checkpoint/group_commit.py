"""Commits of several threads that come at about the same time, sent as one transaction.

What a process's many drives commit one by one costs a round trip, a flush of the log, and two changes of process each.
Invariant: nothing is put down to a group that fails: each of its units is then sent alone, as it would have been
without one. A unit that comes while no other is under way is not held up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

_MOST: Final = 16  # units of a group: their threads are locked until the last one is written
_QUIET_TURNS: Final = 3  # turns of the loop without a newcomer after which a group is sent
_LOG = logging.getLogger("standfast.group_commit")
T = TypeVar("T")


@dataclass(eq=False)
class _Group(Generic[T]):
    """Units, and for each the future that tells its owner whether it was committed here."""

    units: list[tuple[T, asyncio.Future[bool]]] = field(default_factory=list)
    turns_left: int = _QUIET_TURNS
    sending: asyncio.Task[None] | None = None


class GroupCommit(Generic[T]):
    """Sends units of work `alone`, or `together` those that come while others are under way.

    Both return when all that they were given is committed. `together` is tried once, so it must not keep what it could
    not commit; `alone` may try again, and raises what is wrong with its unit.
    """

    def __init__(
        self, alone: Callable[[T], Awaitable[None]], together: Callable[[Sequence[T]], Coroutine[Any, Any, None]]
    ) -> None:
        self._alone = alone
        self._together = together
        self._under_way = 0
        self._gathering: _Group[T] | None = None

    async def commit(self, unit: T) -> None:
        """Return when the unit is committed; raise what is wrong with it."""
        self._under_way += 1
        try:
            if self._under_way == 1 or not await self._joined(unit):
                await self._alone(unit)
        finally:
            self._under_way -= 1

    async def _joined(self, unit: T) -> bool:
        """Whether the unit was committed with others."""
        loop = asyncio.get_running_loop()
        group = self._gathering
        if group is None:
            group = self._gathering = _Group()
            loop.call_soon(self._turn, group)
        place: tuple[T, asyncio.Future[bool]] = (unit, loop.create_future())
        group.units.append(place)
        group.turns_left = _QUIET_TURNS
        if len(group.units) == _MOST:
            self._close(group)
        try:
            return await place[1]
        except asyncio.CancelledError:
            if group.sending is None:
                group.units.remove(place)
            else:  # whoever is cancelled must not be committed behind his back: the others go alone
                if not group.sending.cancelling():  # a second cancel would cut its clean-up
                    group.sending.cancel()
                await asyncio.wait([group.sending])
            raise

    def _turn(self, group: _Group[T]) -> None:
        if group is not self._gathering:
            return
        group.turns_left -= 1
        if group.turns_left > 0:
            asyncio.get_running_loop().call_soon(self._turn, group)
        else:
            self._close(group)

    def _close(self, group: _Group[T]) -> None:
        self._gathering = None
        if len(group.units) > 1:
            group.sending = asyncio.get_running_loop().create_task(self._together([unit for unit, _ in group.units]))
            group.sending.add_done_callback(lambda sent: _tell(group, committed=_succeeded(sent)))
        else:
            _tell(group, committed=False)


def _succeeded(sent: asyncio.Task[None]) -> bool:
    if sent.cancelled():  # perhaps before it had begun
        return False
    error = sent.exception()
    if error is not None:
        _LOG.debug("a group of commits is sent one by one: %s", error)
    return error is None


def _tell(group: _Group[T], *, committed: bool) -> None:
    for _, place in group.units:
        if not place.done():
            place.set_result(committed)
