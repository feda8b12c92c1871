"""The fleet's part of a runtime: the limits that all workers share.

Invariant: what is set here stands in the database and holds for every process, whichever set it.
"""

from __future__ import annotations

from collections.abc import Sequence

from standfast.checkpoint.flow import Limit, LimitRow
from standfast.checkpoint.store import Store
from standfast.graph.rows import Rows
from standfast.tools.principals import Principal


class Steering:
    """What steers all processes of one database."""

    @property
    def store(self) -> Store:
        """The rows of the open database."""
        raise NotImplementedError

    async def aprincipal(self, as_: Principal | None = None, *, token: str | None = None) -> Principal:
        """Who acts, as this runtime believes it."""
        raise NotImplementedError

    async def aset_limit(self, limit: Limit, *, as_: Principal | None = None, token: str | None = None) -> None:
        """Set the limit of a key for the whole fleet, in place of the one before; it holds within a second."""
        await self.store.flow.set(limit, by=(await self.aprincipal(as_, token=token)).name)

    async def aclear_limit(self, key: str) -> bool:
        """Take the limit of a key away; False if it had none."""
        return await self.store.flow.clear(key)

    async def alimits(self) -> Sequence[LimitRow]:
        """All limits that are set, by key, and how much of each is used now."""
        return Rows(LimitRow, await self.store.flow.list())
