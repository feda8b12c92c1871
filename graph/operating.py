"""What operators do: list what is there without reading any state, and move a run that does not move by itself.

Invariant: a list reads small columns only; whatever is changed is one compare-and-set, or happens under the lease.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from standfast.checkpoint import errors
from standfast.checkpoint.audit import Anchor, Entry, Verification
from standfast.checkpoint.budget import Budget
from standfast.checkpoint.completions import Completion
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.fleet import Fleet, Unserved, WorkerRow
from standfast.checkpoint.groups import Member
from standfast.checkpoint.lease import Lease, break_lease, claim, leave, release
from standfast.checkpoint.listing import Listing, OpenWait, RunRow
from standfast.checkpoint.run_events import RunEvent
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Status, Thread
from standfast.checkpoint.waits import Kind
from standfast.graph import deciding
from standfast.graph.accepting import Deadline, budget_of, deadline_of
from standfast.graph.auditing import exported
from standfast.graph.door import text_of, thread_id_of
from standfast.graph.identity import Identity
from standfast.graph.members import set_member
from standfast.graph.rows import Rows
from standfast.tools.approval_policy import ApprovalPolicy
from standfast.tools.operations import Registry
from standfast.tools.principals import Principal

_CANCELLED: Final = "cancelled on request"
FINAL: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


class Operators:
    """The operators' part of a runtime. Its lists tell of all graphs of one tenant, newest first."""

    _operations: Registry | None = None
    identity: Identity

    @property
    def policy(self) -> ApprovalPolicy:
        """Who decides about which calls, and who changes groups."""
        raise NotImplementedError

    @property
    def store(self) -> Store:
        """The rows of the open database."""
        raise NotImplementedError

    async def aprincipal(self, as_: Principal | None = None, *, token: str | None = None) -> Principal:
        """Who acts, as this runtime believes it."""
        raise NotImplementedError

    # -- lists

    async def athreads(
        self,
        *,
        state: Status | str | None = None,
        graph: str | None = None,
        limit: int = 50,
        before: datetime | None = None,
        tenant: str = "default",
    ) -> Sequence[Thread]:
        """The threads that changed last; the next page begins `before` the last one's `updated_at`."""
        listing = Listing(self.store.database)
        found = await listing.threads(state=_status(state), graph=graph, before=before, limit=limit, tenant=tenant)
        return Rows(Thread, found)

    async def aruns(
        self,
        *,
        state: Status | str | None = None,
        graph: str | None = None,
        thread_id: object = None,
        limit: int = 50,
        tenant: str = "default",
    ) -> Sequence[RunRow]:
        """The runs that were accepted last."""
        thread = None if thread_id is None else thread_id_of(thread_id)
        listing = Listing(self.store.database)
        found = await listing.runs(state=_status(state), graph=graph, thread_id=thread, limit=limit, tenant=tenant)
        return Rows(RunRow, found)

    async def aopen_waits(
        self,
        *,
        kind: Kind | None = None,
        graph: str | None = None,
        thread_id: object = None,
        limit: int = 50,
        tenant: str = "default",
    ) -> Sequence[OpenWait]:
        """What threads wait for: people, times and events; the longest wait first."""
        thread = None if thread_id is None else thread_id_of(thread_id)
        listing = Listing(self.store.database)
        found = await listing.waits(kind=kind, graph=graph, thread_id=thread, limit=limit, tenant=tenant)
        return Rows(OpenWait, found)

    async def aworkers(self) -> Sequence[WorkerRow]:
        """The worker processes that have been heard of within a day and have not said goodbye, oldest first."""
        return Rows(WorkerRow, await Fleet(self.store.database).workers())

    async def aunserved(self) -> Sequence[Unserved]:
        """Due runs that wait for a worker with their graph and version, while there is none."""
        return Rows(Unserved, await Fleet(self.store.database).unserved())

    # -- audit and groups

    async def aaudit(self, thread_id: object) -> Sequence[Entry]:
        """What the audit tells of one thread, oldest first; of a thread that was erased too."""
        return Rows(Entry, [one async for one in self.store.audit.entries(thread_id_of(thread_id))])

    async def aexport_audit(self, thread_id: object = None) -> AsyncIterator[dict[str, Any]]:
        """The audit of one thread, or of all, entry by entry with the values that it stands for; see `exported`."""
        async for one in exported(self.store, None if thread_id is None else thread_id_of(thread_id)):
            yield one

    async def averify_audit(self, *, expected: Anchor | None = None) -> Verification:
        """Recompute the whole audit; `expected` is an anchor that was kept elsewhere."""
        return await self.store.audit.verify(expected=expected)

    async def aanchor_audit(self) -> Anchor | None:
        """Anchor what is new in the audit, as workers do every minute; None if nothing is."""
        return await self.store.audit.anchor()

    async def aset_member(
        self,
        group: str,
        principal: str,
        *,
        member: bool = True,
        tenant: str = "default",
        as_: Principal | None = None,
        token: str | None = None,
    ) -> bool:
        """Put somebody into a group, or take him out; False if nothing changed by that.

        `as_` or `token` say who does it. With an authenticator only members of the policy's `group_admins` may, each
        in his own tenant. Raises `NotAuthenticated`, `NotPermitted`.
        """
        return await set_member(
            self.store,
            self.identity,
            self.policy,
            group,
            principal,
            member=member,
            tenant=tenant,
            as_=as_,
            token=token,
        )

    async def amembers(self, group: str | None = None, *, tenant: str = "default") -> Sequence[Member]:
        """Who is in one group, or in all."""
        return Rows(Member, await self.store.groups.list(group, tenant=tenant))

    # -- interventions

    async def acomplete(
        self,
        operation_id: str,
        result: Any = None,
        *,
        error: str | None = None,
        as_: Principal | None = None,
        token: str | None = None,
    ) -> None:
        """Tell the end of an operation that returned `Pending`: its result, or why it failed. Nothing is driven.

        The first to tell it counts. Raises `UnknownOperationId`, `UnstorableValue`, `AlreadyCompleted`, and
        `CompletedLate` if nobody waits for it any more; what was told is kept then, and changes nothing.
        """
        who = await self.aprincipal(as_, token=token)
        completion = Completion(operation_id, result, error, who.name, who.on_word, verified_by=who.verified_by)
        await self.store.operations.complete(completion, fit=partial(deciding.fitting, self._operations))
        reach("outcome.completed")

    async def aretry(
        self, thread_id: object, *, deadline: Deadline | None = None, budget: Budget | None = None
    ) -> Thread:
        """Make a run that needs attention, or has ended at its limit, due again: it goes on from its last step.

        `deadline` (seconds or a timedelta from now, or a datetime) and `budget` (which counts from the run's beginning)
        take the place of the run's own. What it has not finished gets its full number of attempts again. Raises
        `UnknownThread`, `AlreadyFinished`, `RunLimitReached` if it needs more of what it had, and `InvalidRequest` if
        it needs no attention.
        """
        thread = thread_id_of(thread_id)
        moment = await deadline_of(self.store, deadline)
        verdict = await self.store.threads.retry(thread, deadline=moment, budget=budget_of(budget))
        if verdict in ("deadline", "budget"):
            raise errors.RunLimitReached(
                f"the run of thread {thread!r} has ended at its {verdict}; nothing was changed. Give it more: "
                f"standfast retry {thread} --{verdict} ...",
                thread_id=thread,
                limit=verdict,
            )
        if verdict == "nothing":
            known = await self._unfinished(thread)
            raise errors.InvalidRequest(
                f"thread {thread!r} is {known.status}, it needs no attention; nothing was changed", thread_id=thread
            )
        return await self.store.threads.get(thread)

    async def arelease(self, thread_id: object) -> str:
        """Take the lease of a process that is known to be dead, so that another goes on now; returns who held it.

        A process that lives after all writes nothing more. Counts as a crash. Raises `UnknownThread`, and
        `InvalidRequest` if nobody holds the lease.
        """
        thread = thread_id_of(thread_id)
        known = await self.store.threads.get(thread)
        holder = await break_lease(self.store.database, thread)
        if holder is None:
            raise errors.InvalidRequest(
                f"nobody holds the lease of thread {thread!r}, it is {known.status}; nothing was changed",
                thread_id=thread,
            )
        return holder

    async def apark(self, thread_id: object, reason: str) -> None:
        """Put an unfinished run aside: it needs attention, for this reason, and stays so until it is retried.

        Its state, its questions and its timers are left as they are. Raises `UnknownThread`, `AlreadyFinished`,
        and `LeaseHeld` while a process drives it.
        """
        thread = thread_id_of(thread_id)
        why = text_of(reason, "reason")
        await self._unfinished(thread)
        lease = await claim(self.store.database, thread, seconds=10.0)
        try:
            await self._unfinished(thread)
        except errors.AlreadyFinished:  # it ended between the look and the claim
            await leave(self.store.database, lease)
            raise
        await self.aput_aside(lease, why)

    async def aput_aside(self, lease: Lease, reason: str) -> None:
        """End a drive before a person: under this lease, the thread's run needs attention from now on."""
        try:
            run_id = (await self.store.threads.get(lease.thread_id)).run_id
            await self.store.threads.end(lease, run_id, Status.NEEDS_ATTENTION, reason=reason)
        except BaseException:
            with contextlib.suppress(errors.StandfastError):
                await release(self.store.database, lease)
            raise

    async def aend_cancelled(self, lease: Lease, run_id: str) -> None:
        """End the thread's unfinished run as cancelled, under this lease; nothing of its graph or state is needed."""
        store, thread = self.store, lease.thread_id
        try:
            current = (await store.threads.get(thread)).run_id
            state, _ = await store.threads.standing(thread, run_id)
            if current == run_id and state not in FINAL:
                last = await store.run_events.last(thread, run_id)
                told = {"status": str(Status.CANCELLED), "reason": _CANCELLED}
                event = RunEvent(last + 1, lease.epoch, "run_end", (), told, None)
                riders = [store.run_events.append(thread, run_id, lease.epoch, [event])]
                await store.threads.end(lease, run_id, Status.CANCELLED, reason=_CANCELLED, riders=riders)
            elif current == run_id:
                await leave(store.database, lease)
            else:  # the next run has its turn
                await release(store.database, lease)
        except BaseException:
            with contextlib.suppress(errors.StandfastError):
                await release(store.database, lease)
            raise

    async def _unfinished(self, thread_id: str) -> Thread:
        known = await self.store.threads.get(thread_id)
        state, _ = (None, None) if known.run_id is None else await self.store.threads.standing(thread_id, known.run_id)
        if state in FINAL:
            raise errors.AlreadyFinished(
                f"the run of thread {thread_id!r} has ended ({state}); nothing was changed", thread_id=thread_id
            )
        return known


def _status(given: Status | str | None) -> Status | None:
    try:
        return None if given is None else Status(given)
    except ValueError as error:
        raise errors.InvalidRequest(f"there is no state {given!r}; there are {', '.join(Status)}") from error
