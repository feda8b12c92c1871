"""The outbox's part of a runtime: which channels it serves, what lies in the outbox, and what is sent again.

Invariant: whatever is listed tells of all graphs of the database; only a dispatcher delivers.
"""

from __future__ import annotations

from collections.abc import Sequence

from standfast.checkpoint import errors
from standfast.checkpoint.outbox import Delivery, Message, State
from standfast.checkpoint.store import Store
from standfast.graph.rows import Rows
from standfast.tools.channels import Channel
from standfast.tools.dispatcher import Dispatched, Dispatcher


class Outgoing:
    """Messages, from the side of those who operate it."""

    _channels: Sequence[Channel] = ()

    @property
    def store(self) -> Store:
        """The rows of the open database."""
        raise NotImplementedError

    @property
    def channels(self) -> Sequence[Channel]:
        """The channels that this runtime was given."""
        return self._channels

    async def adeliveries(
        self,
        *,
        state: State | None = None,
        thread_id: str | None = None,
        channel: str | None = None,
        limit: int = 50,
    ) -> Sequence[Delivery]:
        """How messages stand with their channels, the newest first; `state="dead"` is the dead-letter list."""
        found = await self.store.outbox.list(state=state, thread_id=thread_id, channel=channel, limit=limit)
        return Rows(Delivery, found)

    async def amessage(self, message_id: str) -> tuple[Message, Sequence[Delivery]]:
        """One message with its payload, and how it stands. Raises `UnknownMessage`."""
        return await self.store.outbox.get(message_id)

    async def aresend(self, message_id: str | None = None, *, channel: str | None = None) -> int:
        """Make a message's dead deliveries due again, or (None) all dead ones; how many.

        Each gets its full number of attempts, and comes after whatever of its key has been delivered since. Raises
        `UnknownMessage`, and `InvalidRequest` if the message has none.
        """
        if message_id is None:
            return await self.store.outbox.resend(channel=channel)
        await self.store.outbox.get(message_id)
        resent = await self.store.outbox.resend([message_id], channel=channel)
        if not resent:
            raise errors.InvalidRequest(f"message {message_id!r} has no dead delivery; nothing was changed")
        return resent

    async def adispatch(self) -> Dispatched:
        """Deliver what is due now to this runtime's channels, until nothing is due; what it came to."""
        dispatcher = Dispatcher(self.store.outbox, self._channels)
        await dispatcher.register()
        total = Dispatched()
        while (done := await dispatcher.dispatch()) != Dispatched():
            total = Dispatched(total.delivered + done.delivered, total.failed + done.failed, total.dead + done.dead)
        return total

    async def aforget_channel(self, name: str) -> None:
        """Drop a channel that nobody serves any more, with what it has not delivered."""
        await self.store.outbox.forget(name)
