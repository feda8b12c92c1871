"""Events that come in from outside, for whichever threads wait for them.

Invariant: an event is durable when `aemit` returns, and counts once for its sender's id.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.events import DEFAULT_TTL, LONGEST_TTL, NewEvent
from standfast.checkpoint.store import Store
from standfast.tools.principals import Principal
from standfast.tools.waits import digest_of, event_name, match_digest


class Emitting:
    """Emits events."""

    @property
    def store(self) -> Store:
        """The rows of the open database."""
        raise NotImplementedError

    async def aprincipal(self, as_: Principal | None = None, *, token: str | None = None) -> Principal:
        """Who acts, as this runtime believes it."""
        raise NotImplementedError

    async def aemit(
        self,
        name: str,
        payload: Any = None,
        *,
        id: str,
        match: Any = None,
        ttl: timedelta = DEFAULT_TTL,
        as_: Principal | None = None,
        token: str | None = None,
    ) -> int | None:
        """Emit an event: durable when this returns, kept for `ttl` for waits that come later.

        `id` is the sender's: the same one twice is one event. Returns how many waits it ended, or None if it was
        emitted before. Raises `EventConflict` if the id was used for another event.
        """
        if not timedelta(0) < ttl <= LONGEST_TTL:
            raise errors.InvalidRequest(f"an event's time to live is positive and at most {LONGEST_TTL}, not {ttl}")
        who = await self.aprincipal(as_, token=token)
        new = NewEvent(
            id=event_name(id),
            name=event_name(name),
            match=match_digest(match),
            digest=digest_of([name, match, self.store.sealer.codec.encode(payload, where="payload").hex()], "match"),
            payload=payload,
            emitted_by=who.name,
            tenant=who.tenant,
            ttl=ttl,
        )
        return await self.store.events.emit(new)
