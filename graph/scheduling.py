"""Schedules: added by a runtime, fired by the sweep of whichever worker looks first.

Invariant: what is due is decided from the schedule's row and the database's clock alone; exactly one run comes of a due
time, or none where the schedule says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Unpack, get_args

from standfast.checkpoint import errors
from standfast.checkpoint.budget import Budget
from standfast.checkpoint.schedules import CatchUp, Overlap, Schedule, Verdict
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import NewRun
from standfast.graph.accepting import Options, RepeatedOptions
from standfast.graph.door import graph_input
from standfast.graph.result import Result
from standfast.graph.rows import Rows
from standfast.graph.signatures import takes
from standfast.tools.cron import Cron
from standfast.tools.principals import Principal

LATE: Final = timedelta(minutes=1)
"""A time that is looked at later than this is missed, for a schedule that does not catch up."""
_MOST: Final = 100  # due times of one schedule that one sweep looks at
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Scheduling:
    """Schedules, from outside of any run."""

    @property
    def store(self) -> Store:
        """The rows of the open database."""
        raise NotImplementedError

    async def aprincipal(self, as_: Principal | None = None, *, token: str | None = None) -> Principal:
        """Who acts, as this runtime believes it."""
        raise NotImplementedError

    async def _new_run(self, request: Any, options: Options) -> NewRun:
        """The run to be accepted, of somebody who is known."""
        raise NotImplementedError

    @takes(RepeatedOptions, like=Options)
    async def aadd_schedule(
        self,
        name: str,
        cron: str,
        request: Any,
        *,
        timezone: str = "UTC",
        catch_up: CatchUp = "last",
        overlap: Overlap = "skip",
        deadline: float | timedelta | None = None,
        budget: Budget | None = None,
        priority: int = 0,
        **options: Unpack[RepeatedOptions],
    ) -> Schedule:
        """Submit a request to this graph at every time of `cron` (five fields), each as a new thread NAME-TIME.

        `catch_up` says what becomes of times while no worker ran: `skip` them, run the `last`, or `all`. `overlap`
        says what becomes of a time while an earlier run is unfinished: `skip` it, or `queue` it behind that one. At a
        change of the clocks see `standfast.tools.cron`. `deadline` is seconds, or a timedelta, from the submission of
        each run on, its time in the queue included; each run has a `budget` of its own, and `priority`. Options:
        `as_`, `token`, `documents`, `context`, `model`, `reports_dir`, `report`, as for `ainvoke`. Raises
        `InvalidRequest`.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise errors.InvalidRequest(
                f"a schedule's name has 1 to 100 letters, digits, dots, dashes and underscores, not {name!r:.60}"
            )
        if catch_up not in get_args(CatchUp) or overlap not in get_args(Overlap):
            raise errors.InvalidRequest(
                f"catch_up is skip, last or all, and overlap is skip or queue, not {catch_up!r} and {overlap!r}"
            )
        if isinstance(deadline, datetime):
            raise errors.InvalidRequest(
                "a schedule's deadline is seconds or a timedelta, from each run's submission on"
            )
        times = Cron(cron, timezone)
        said = Options(**options, deadline=deadline, budget=budget, priority=priority)
        who = await self.aprincipal(said.as_, token=said.token)
        new = await self._new_run(request, replace(said, as_=who, token=None))
        schedule = Schedule(
            tenant=new.tenant,
            name=name,
            graph=new.graph,
            version=new.version,
            fingerprint=new.fingerprint,
            cron=cron,
            zone=timezone,
            catch_up=catch_up,
            overlap=overlap,
            requested_by=new.requested_by,
            vouched=new.vouched,
            model=new.model,
            collection_id=new.collection_id,
            request=request,
            settings=new.settings,
            deadline=deadline if deadline is None or isinstance(deadline, timedelta) else timedelta(seconds=deadline),
            budget=new.budget,
            priority=new.priority,
            next_at=times.after(await self.store.database.clock()),
        )
        await self.store.schedules.add(schedule)
        return schedule

    async def aschedules(self, *, as_: Principal | None = None, token: str | None = None) -> Sequence[Schedule]:
        """The schedules of the caller's tenant, by name."""
        return Rows(Schedule, await self.store.schedules.list(tenant=await self._tenant(as_, token)))

    async def apause_schedule(self, name: str, *, as_: Principal | None = None, token: str | None = None) -> None:
        """Fire nothing until it is resumed. Raises `UnknownSchedule`."""
        await self.store.schedules.pause(name, tenant=await self._tenant(as_, token))

    async def aresume_schedule(self, name: str, *, as_: Principal | None = None, token: str | None = None) -> Schedule:
        """Go on with the next time from now; what came while it was paused is not caught up."""
        tenant = await self._tenant(as_, token)
        known = await self.store.schedules.get(name, tenant=tenant)
        if known.paused:
            next_at = Cron(known.cron, known.zone).after(await self.store.database.clock())
            await self.store.schedules.resume(name, next_at, tenant=tenant)
        return await self.store.schedules.get(name, tenant=tenant)

    async def aremove_schedule(self, name: str, *, as_: Principal | None = None, token: str | None = None) -> None:
        """Forget a schedule; its runs stay. Raises `UnknownSchedule`."""
        await self.store.schedules.remove(name, tenant=await self._tenant(as_, token))

    async def arun_schedule(self, name: str, *, as_: Principal | None = None, token: str | None = None) -> Result:
        """Submit the schedule's request now, beside its times, whoever asks; it follows the overlap.

        The result is `queued` with the new thread. Raises `UnknownSchedule`, and `ThreadBusy` if an earlier run is
        unfinished and the schedule skips then.
        """
        schedule = await self.store.schedules.get(name, tenant=await self._tenant(as_, token))
        now = (await self.store.database.clock()).replace(microsecond=0)
        verdict = await _fire(self.store, schedule, now, schedule.next_at, run=True)
        thread, run_id, _ = schedule.run_at(now)
        if verdict == "skipped":
            raise errors.ThreadBusy(
                f"an earlier run of schedule {name!r} is unfinished, and it skips then; nothing was started",
                thread_id=schedule.last_thread,
            )
        return Result(thread, run_id, (await self.store.threads.get(thread)).status)

    async def _tenant(self, as_: Principal | None, token: str | None) -> str:
        return (await self.aprincipal(as_, token=token)).tenant


async def fire_due(store: Store) -> list[Verdict]:
    """Look at every due time that has come, and submit what is to be submitted."""
    verdicts: list[Verdict] = []
    for found, now in await store.schedules.due():
        schedule = found
        for due, next_at, run in due_times(schedule, now):
            verdict = await _fire(store, schedule, due, next_at, run=run)
            verdicts.append(verdict)
            if verdict == "again":
                break
            schedule = replace(schedule, next_at=next_at)
    return verdicts


def due_times(schedule: Schedule, now: datetime) -> list[tuple[datetime, datetime, bool]]:
    """The times that have come, each with the next one, and whether it gets a run."""
    cron = Cron(schedule.cron, schedule.zone)
    came = [schedule.next_at]
    while (following := cron.after(came[-1])) <= now and (len(came) < _MOST or schedule.catch_up != "all"):
        came.append(following)
    if schedule.catch_up == "all":
        return [(due, came[place + 1] if place + 1 < len(came) else following, True) for place, due in enumerate(came)]
    run = schedule.catch_up == "last" or now - came[-1] <= LATE
    return [(came[-1], following, run)]


async def _fire(store: Store, schedule: Schedule, due: datetime, next_at: datetime, *, run: bool) -> Verdict:
    _, run_id, _ = schedule.run_at(due)
    given = graph_input(schedule.request, run_id, takes_messages=True)
    return await store.schedules.fire(schedule, due, next_at, given, run=run)
