"""The rows of schedules: what is submitted, at which times, and what became of the last one.

Invariant: a due time is looked at once, in the transaction that moves the schedule on and makes the run, if there is
to be one; whichever worker does it, and whoever dies meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID, uuid5

from psycopg.rows import DictRow

from standfast.checkpoint import errors
from standfast.checkpoint.budget import Budget
from standfast.checkpoint.database import Database
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements
from standfast.checkpoint.telemetry import traceparent
from standfast.checkpoint.threads import Settings, settings_dict

_SQL = statements("schedules")
_RUNS = UUID("6f1f2a53-9c7e-5d0e-8a39-6b1b1a0f6f1d")  # the names of runs that schedules make
_SEALED: Final = ("request", "settings", "budget")

CatchUp = Literal["skip", "last", "all"]
Overlap = Literal["skip", "queue"]
Verdict = Literal["fired", "queued", "skipped", "missed", "again"]


@dataclass(frozen=True)
class Schedule:
    """A schedule. `next_at` is its next due time; `last_verdict` says what became of the one at `last_at`.

    `deadline` and `budget` are of each of its runs, which have `priority` among the due ones.
    """

    tenant: str
    name: str
    graph: str
    version: str
    fingerprint: str
    cron: str
    zone: str
    catch_up: CatchUp
    overlap: Overlap
    requested_by: str
    vouched: bool
    model: str | None
    collection_id: str | None
    request: Any
    settings: Settings
    next_at: datetime
    deadline: timedelta | None = None
    budget: Budget | None = None
    priority: int = 0
    paused: bool = False
    last_at: datetime | None = None
    last_verdict: Verdict | None = None
    last_thread: str | None = None

    def run_at(self, due: datetime) -> tuple[str, str, str]:
        """Thread, run and client key of a due time: the same whoever makes them."""
        key = f"schedule:{self.name}:{due:%Y-%m-%dT%H:%M:%SZ}"
        return f"{self.name}-{due:%Y%m%dT%H%M%SZ}", str(uuid5(_RUNS, f"{self.tenant}\0{key}")), key


class Schedules:
    """The rows of schedules."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def add(self, new: Schedule) -> None:
        """Keep a new schedule. Raises `InvalidRequest` if there is one of this name."""
        at = ("schedules", new.tenant, new.name)
        params = {
            **{key: value for key, value in vars(new).items() if key not in _SEALED},
            "collection": new.collection_id,
            "request": self._sealer.seal(new.request, at=(*at, "request"), where="request"),
            "settings": self._sealer.seal(settings_dict(new.settings), at=(*at, "settings"), where="settings"),
            "budget": self._sealed_budget(new.budget, at=at),
        }
        if await self._database.fetch_one(_SQL["add"], params) is None:
            raise errors.InvalidRequest(
                f"there is a schedule {new.name!r} already; remove it first: standfast schedules remove {new.name}"
            )

    async def due(self, *, most: int = 50) -> list[tuple[Schedule, datetime]]:
        """Schedules whose next time has come, the longest due first, each with the time that it is."""
        rows = await self._database.fetch(_SQL["due"], {"most": most})
        return [(self._schedule(row), row["now"]) for row in rows]

    async def list(self, *, tenant: str = "default") -> list[Schedule]:
        """The schedules of a tenant, by name."""
        return [self._schedule(row) for row in await self._database.fetch(_SQL["list"], {"tenant": tenant})]

    async def get(self, name: str, *, tenant: str = "default") -> Schedule:
        """One schedule. Raises `UnknownSchedule`."""
        row = await self._database.fetch_one(_SQL["get"], {"tenant": tenant, "name": name})
        if row is None:
            raise _unknown(name)
        return self._schedule(row)

    async def pause(self, name: str, *, tenant: str = "default") -> None:
        """Fire nothing until it is resumed. Raises `UnknownSchedule`."""
        await self._set(name, tenant, paused=True, next_at=None)

    async def resume(self, name: str, next_at: datetime, *, tenant: str = "default") -> None:
        """Go on from `next_at`. Raises `UnknownSchedule`."""
        await self._set(name, tenant, paused=False, next_at=next_at)

    async def _set(self, name: str, tenant: str, *, paused: bool, next_at: datetime | None) -> None:
        params = {"name": name, "tenant": tenant, "paused": paused, "next_at": next_at}
        if await self._database.fetch_one(_SQL["pause"], params) is None:
            raise _unknown(name)

    async def remove(self, name: str, *, tenant: str = "default") -> None:
        """Forget a schedule; its runs stay. Raises `UnknownSchedule`."""
        if await self._database.fetch_one(_SQL["remove"], {"name": name, "tenant": tenant}) is None:
            raise _unknown(name)

    async def fire(self, schedule: Schedule, due: datetime, next_at: datetime, given: Any, *, run: bool) -> Verdict:
        """Look at one due time and move on to `next_at`; with `run` it gets one, with the input `given`."""
        thread, run_id, key = schedule.run_at(due)
        at = ("runs", thread, run_id)
        settings = replace(schedule.settings, traceparent=traceparent(run_id))  # each run is a trace of its own
        params = {
            "tenant": schedule.tenant,
            "name": schedule.name,
            "found_at": schedule.next_at,
            "due": due,
            "next_at": next_at,
            "key": key,
            "thread": thread if run else None,
            "run": run_id,
            "input": self._sealer.seal(given, at=(*at, "input"), where="request"),
            "settings": self._sealer.seal(settings_dict(settings), at=(*at, "settings")),
            "budget": self._sealed_budget(schedule.budget, at=at),
        }
        row = await self._database.fetch_one(_SQL["fire"], params)
        assert row is not None
        verdict: Verdict = row["verdict"]
        return verdict

    def _sealed_budget(self, budget: Budget | None, *, at: tuple[str, ...]) -> bytes | None:
        return None if budget is None else self._sealer.seal(budget.as_stored(), at=(*at, "budget"), where="budget")

    def _schedule(self, row: DictRow) -> Schedule:
        at = ("schedules", row["tenant"], row["name"])
        known = {key: row[key] for key in Schedule.__dataclass_fields__ if key not in _SEALED}
        budget = row["budget"]
        return Schedule(
            **known,
            request=self._sealer.unseal(row["request"], at=(*at, "request")),
            settings=Settings(**self._sealer.unseal(row["settings"], at=(*at, "settings"))),
            budget=None if budget is None else Budget.of_stored(self._sealer.unseal(budget, at=(*at, "budget"))),
        )


def _unknown(name: str) -> errors.UnknownSchedule:
    return errors.UnknownSchedule(f"there is no schedule {name!r}; see: standfast schedules list", schedule=name)
