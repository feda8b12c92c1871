"""The dispatcher: takes what is due from the outbox and hands it to its channels.

Invariants: any number of dispatchers may serve the same channels; a delivery is claimed by one at a time, for longer
than its attempt may take. What is sent and not recorded, because the dispatcher died, is sent again with the same id.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from standfast.checkpoint import errors
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.outbox import Claimed, Outbox
from standfast.tools.channels import Channel

_POLL_SECONDS: Final = 0.5
_DROP_SECONDS: Final = 60.0
_MARGIN_SECONDS: Final = 15.0  # of a claim, over its channel's time-out: for recording how it ended
_AT_ONCE: Final = 20
_LOG = logging.getLogger("standfast.outbox")


@dataclass(frozen=True)
class Dispatched:
    """What one round came to: deliveries that were taken, that are tried again, and that are dead."""

    delivered: int = 0
    failed: int = 0
    dead: int = 0


class Dispatcher:
    """Delivers for some channels. Raises `InvalidRequest` for two of one name, or one without topics."""

    def __init__(self, outbox: Outbox, channels: Sequence[Channel]) -> None:
        self._outbox = outbox
        self._channels = {one.name: one for one in channels}
        if len(self._channels) != len(channels):
            raise errors.InvalidRequest("two channels have one name; give each its own")
        for one in channels:
            require_channel(one)
        self._seconds = max((one.timeout for one in channels), default=0.0) + _MARGIN_SECONDS

    async def register(self) -> None:
        """Make the channels known: what is written from now on reaches them."""
        for one in self._channels.values():
            await self._outbox.register(one.name, one.topics)

    async def run(self) -> None:
        """Register and deliver until cancelled; a database that is away is waited for."""
        loop = asyncio.get_running_loop()
        registered, drop_at = False, loop.time()
        while True:
            done = Dispatched()
            try:
                if not registered:
                    await self.register()
                    registered = True
                done = await self.dispatch()
                if loop.time() >= drop_at:
                    await self._outbox.drop_old()
                    drop_at = loop.time() + _DROP_SECONDS
            except errors.StandfastError as error:
                _LOG.warning("cannot dispatch: %s", error)
            except Exception:  # noqa: BLE001 - messages are delivered as long as the process lives
                _LOG.exception("dispatching failed")
            if done == Dispatched():
                await asyncio.sleep(_POLL_SECONDS)

    async def dispatch(self) -> Dispatched:
        """Attempt what is due now, at most so much at once as one claim takes."""
        claimed = await self._outbox.claim(list(self._channels), seconds=self._seconds, most=_AT_ONCE)
        states = await asyncio.gather(*(self._deliver(one) for one in claimed))
        return Dispatched(*(states.count(state) for state in ("delivered", "pending", "dead")))

    async def _deliver(self, claimed: Claimed) -> str:
        channel = self._channels[claimed.channel]
        try:
            async with asyncio.timeout(channel.timeout):
                await channel.send(claimed.message)
        except Exception as error:  # noqa: BLE001 - whatever a channel raises is a failure of this delivery
            return await self._failed(channel, claimed, error)
        reach("outbox.sent")
        await self._outbox.finish(claimed, "delivered")
        return "delivered"

    async def _failed(self, channel: Channel, claimed: Claimed, error: Exception) -> str:
        text = str(error) or type(error).__name__
        failure = error.message if isinstance(error, errors.DeliveryFailed) else f"{type(error).__name__}: {text}"
        data = error.data if isinstance(error, errors.DeliveryFailed) else {}
        message = claimed.message
        if data.get("permanent") or claimed.message.attempt >= channel.redelivery.attempts:
            _LOG.error("%s %s is dead to channel %s: %s", message.topic, message.id, channel.name, failure)
            await self._outbox.finish(claimed, "dead", failure=failure)
            return "dead"
        asked = float(data.get("retry_after") or 0.0)
        delay = channel.redelivery.delay(claimed.message.attempt, asked=asked, chance=random.random())  # noqa: S311
        _LOG.warning("%s %s to channel %s: %s", message.topic, message.id, channel.name, failure)
        await self._outbox.finish(claimed, "pending", failure=failure, delay=delay)
        return "pending"


def require_channel(one: Channel) -> None:
    """Refuse what cannot be a channel. Raises `InvalidRequest`."""
    if not isinstance(one.name, str) or not 0 < len(one.name) <= 255 or not one.name.isprintable():
        raise errors.InvalidRequest(f"a channel's name has 1 to 255 printable characters, not {one.name!r:.60}")
    topics = one.topics
    usable = not isinstance(topics, str) and len(topics) > 0
    if not usable or not all(isinstance(topic, str) and topic and "*" not in topic[:-1] for topic in topics):
        raise errors.InvalidRequest(
            f"channel {one.name!r} names whole topics, or beginnings that end with *, not {topics!r:.80}"
        )
    if one.timeout <= 0:
        raise errors.InvalidRequest(f"the timeout of channel {one.name!r} must be positive, not {one.timeout}")
