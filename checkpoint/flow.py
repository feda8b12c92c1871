"""Limits that the whole fleet shares: how many at a time, how many within a time, how many may queue.

Invariant: a slot and a call within a rate are granted in one transaction under the thread's lease, by the database's
clock, so any number of workers together keep to a limit. What is held by a thread whose lease has run out does not
count. Where no limit is set, nothing is asked.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from standfast.checkpoint import errors
from standfast.checkpoint.database import Database
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.statements import statements

_SQL = statements("flow")
_FRESH_SECONDS: Final = 1.0
"""A limit that is set holds in every process after so many seconds."""
_KEY: Final = re.compile(r"(tenant|graph|operation|model):\S.{0,200}")


@dataclass(frozen=True)
class Limit:
    """The limit of one key: `tenant:NAME`, `graph:NAME`, `operation:NAME`, or `model:NAME`.

    A model is named as in `openai:gpt-5`; `model:openai` is for all of one provider. `concurrency`: how many are driven
    (of a tenant or graph) or called (of an operation or model) at a time. `rate` calls within any `per` seconds, of
    which `burst` may come at once. `queued`: how many due runs of a tenant or graph may wait for a worker.
    """

    key: str
    concurrency: int | None = None
    rate: int | None = None
    per: float | None = None
    burst: int | None = None
    queued: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not _KEY.fullmatch(self.key):
            raise errors.InvalidRequest(
                f"a limit is for tenant:NAME, graph:NAME, operation:NAME or model:NAME, not for {self.key!r}"
            )
        for name in ("concurrency", "rate", "burst", "queued"):
            value, least = getattr(self, name), 0 if name == "queued" else 1
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise errors.InvalidRequest(f"a limit's {name} is a whole number from {least} on, not {value!r}")
        if (self.rate is None) != (self.per is None) or (self.per is not None and self.per <= 0):
            raise errors.InvalidRequest("a rate is so many calls (rate) in so many seconds (per); give both")
        if self.burst is not None and (self.rate is None or self.burst > self.rate):
            raise errors.InvalidRequest("a burst is a part of a rate: how many of its calls may come at once")
        of_runs = self.key.startswith(("tenant:", "graph:"))
        if of_runs and self.rate is not None:
            raise errors.InvalidRequest(f"a rate is for operations and models, not for {self.key!r}")
        if not of_runs and self.queued is not None:
            raise errors.InvalidRequest(f"a bound on queued runs is for tenants and graphs, not for {self.key!r}")
        if self.concurrency is None and self.rate is None and self.queued is None:
            raise errors.InvalidRequest(
                f"nothing is limited for {self.key!r}: give concurrency, rate and per, or queued"
            )


@dataclass(frozen=True)
class LimitRow:
    """A limit that is set, and how much of its concurrency is `used` now."""

    limit: Limit
    used: int
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True)
class Refused:
    """No slot is free for `key`: try again after `wait` seconds, or when one is given back (None)."""

    key: str
    wait: float | None


class Flow:
    """The rows of limits and slots."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def limited(self, keys: Sequence[str]) -> list[str]:
        """Those of the keys that have a limit, as it stood at most a second ago."""
        if time.monotonic() - self._read_at > _FRESH_SECONDS:
            async with self._lock:
                if time.monotonic() - self._read_at > _FRESH_SECONDS:
                    self._keys = frozenset(row["key"] for row in await self._database.fetch(_SQL["limited"]))
                    self._read_at = time.monotonic()
        return [one for one in keys if one in self._keys]

    async def take(self, lease: Lease, operation_id: str, keys: Sequence[str]) -> Refused | None:
        """Take a slot of each key, or of none. Raises `LeaseLost`."""
        params = {"thread": lease.thread_id, "epoch": lease.epoch, "id": operation_id, "keys": list(keys)}
        row = await self._database.fetch_one(_SQL["take"], params)
        assert row is not None
        return None if row["granted"] else Refused(row["key"], row["wait"])

    async def give(self, lease: Lease, operation_id: str) -> None:
        """Give the operation's slots back; whoever has waited longest for one is woken."""
        await self._database.fetch_none(_SQL["give"], {"thread": lease.thread_id, "id": operation_id})

    async def set(self, limit: Limit, *, by: str) -> None:
        """Set the limit of a key, in place of what was set before."""
        burst = None if limit.rate is None else limit.burst or max(1, limit.rate // 10)
        params = {
            "key": limit.key,
            "concurrency": limit.concurrency,
            "rate": limit.rate,
            "per": limit.per,
            "burst": burst,
            "queued": limit.queued,
            "by": by,
        }
        await self._database.fetch_none(_SQL["set"], params)
        self._read_at = float("-inf")

    async def clear(self, key: str) -> bool:
        """Take the limit of a key away; False if it had none."""
        cleared = await self._database.fetch_one(_SQL["clear"], {"key": key}) is not None
        self._read_at = float("-inf")
        return cleared

    async def list(self) -> list[LimitRow]:
        """All limits, by key."""
        return [
            LimitRow(
                Limit(row["key"], row["concurrency"], row["rate"], row["per"], row["burst"], row["queued"]),
                row["used"],
                row["changed_at"],
                row["changed_by"],
            )
            for row in await self._database.fetch(_SQL["list"])
        ]
