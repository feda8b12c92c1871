"""The gate before an attempt: it begins when the fleet's limits allow it.

Invariant: what waits at the gate holds a worker for a moment only; then its thread parks, until a time or until
somebody gives a slot back. Nothing has been begun meanwhile, so no attempt and no time-out counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from standfast.checkpoint import errors
from standfast.checkpoint.flow import Flow, Refused
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.operations import Call
from standfast.tools.parking import park_for_slot

_PATIENCE: Final = 1.5  # seconds that a drive may sleep at the gate
_FIRST_LOOK: Final = 0.02
_BACKSTOP: Final = 10.0  # seconds after which a parked thread looks by itself


class Gate:
    """The gate of one drive. `parks`: whoever drives lets the thread go for a long wait."""

    def __init__(self, flow: Flow, lease: Lease, clock: Callable[[], Awaitable[datetime]], *, parks: bool) -> None:
        self._flow = flow
        self._lease = lease
        self._clock = clock
        self._parks = parks

    async def keys(self, call: Call) -> list[str]:
        """The limits that a call is under."""
        return await self._flow.limited(keys_of(call))

    @contextlib.asynccontextmanager
    async def passed(self, call: Call, keys: list[str]) -> AsyncIterator[None]:
        """Hold a slot of each of the keys; parks the thread if none comes free soon."""
        await self._pass(call, keys)
        try:
            yield
        finally:
            # Not given back, it counts until the lease ends.
            with contextlib.suppress(errors.StandfastError):
                await asyncio.shield(self._flow.give(self._lease, call.id))

    async def _pass(self, call: Call, keys: list[str]) -> None:
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + _PATIENCE, _FIRST_LOOK
        while (refused := await self._flow.take(self._lease, call.id, keys)) is not None:
            wait = pause if refused.wait is None else refused.wait
            if self._parks and loop.time() + wait > until:
                await self._park(call, refused)
            # Two that were refused together do not come again together.
            await asyncio.sleep(min(wait, _PATIENCE) * random.uniform(1.0, 1.25))  # noqa: S311
            pause = min(2 * pause, 0.25)
            self._lease.require()

    async def _park(self, call: Call, refused: Refused) -> None:
        wait = _BACKSTOP if refused.wait is None else refused.wait
        park_for_slot(refused.key, call.id, until=await self._clock() + timedelta(seconds=wait))


def keys_of(call: Call) -> list[str]:
    """The keys that may limit a call: of a model also its provider's."""
    if call.kind == "tool":
        return [f"operation:{call.name}"]
    if call.kind == "model":
        return list(dict.fromkeys([f"model:{call.name}", f"model:{call.name.split(':', 1)[0]}"]))
    return []
