"""Looking back, and going on from there on a new thread.

Invariant: a thread's past is never written. A fork is a new thread with a run of its own; what was done in the source's
run is answered from the ledger, new effects need a word and approvals of their own.
"""

from __future__ import annotations

import contextlib
import copy
import uuid
from collections.abc import Mapping
from typing import Any

from langgraph.errors import InvalidUpdateError
from langgraph.types import StateSnapshot

from standfast.checkpoint import errors
from standfast.checkpoint.budget import Budget
from standfast.checkpoint.forks import NewFork
from standfast.checkpoint.lease import Lease, LeaseKeeper, release
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Status
from standfast.graph.accepting import Deadline, budget_of, deadline_of
from standfast.graph.changed import Graph
from standfast.graph.deployed import Deployed
from standfast.graph.door import thread_id_of
from standfast.graph.history import Diff, History, compare, read_history
from standfast.graph.identity import Identity
from standfast.graph.result import Result
from standfast.graph.servable import require_fields, state_fields
from standfast.tools.principals import Principal

At = object | tuple[object, str | None]
"""A thread's newest state, or (thread, checkpoint): one that it had."""


class TimeTravel:
    """The part of a runtime that looks at checkpoints. A checkpoint may be named by the beginning of its id."""

    identity: Identity

    @property
    def store(self) -> Store:
        """The rows of the open database."""
        raise NotImplementedError

    @property
    def deployed(self) -> Deployed:
        """Which threads this code may drive."""
        raise NotImplementedError

    @property
    def lease_seconds(self) -> float:
        """How long a silent driver keeps its thread."""
        raise NotImplementedError

    @property
    def _parts(self) -> tuple[Store, LeaseKeeper, Any]:
        raise NotImplementedError

    def _over(self, saver: LeasedSaver) -> Graph:
        raise NotImplementedError

    async def astate(self, thread_id: object, *, at: str | None = None, whole: bool = False) -> StateSnapshot:
        """The thread's state, now or `at` a checkpoint, as LangGraph shows it.

        Nothing large is loaded: an `Artifact` stands for a text or bytes over the threshold, in a message the line
        that names it. With `whole` all values are as the nodes see them.
        Raises `UnknownThread` and `UnknownCheckpoint`.
        """
        thread = thread_id_of(thread_id)
        await self.store.threads.get(thread)
        return await self._snapshot(
            thread, None if at is None else await self.store.forks.checkpoint(thread, at), whole
        )

    async def _snapshot(self, thread_id: str, checkpoint_id: str | None, whole: bool) -> StateSnapshot:
        where: Any = {"thread_id": thread_id}
        if checkpoint_id is not None:
            where["checkpoint_id"] = checkpoint_id
        store = self.store
        saver = LeasedSaver(store.database, store.sealer, artifacts=store.artifacts, shows=not whole)
        return await self._over(saver).aget_state({"configurable": where})

    async def ahistory(self, thread_id: object, *, limit: int | None = None, before: str | None = None) -> History:
        """The thread's checkpoints, newest first, without their values: `astate(at=...)` has those of one.

        The next page begins `before` the last one's id. Raises `UnknownThread` and `UnknownCheckpoint`.
        """
        thread = thread_id_of(thread_id)
        await self.store.threads.get(thread)
        if before is not None:
            before = await self.store.forks.checkpoint(thread, before)
        return await read_history(self.store, thread, before=before, limit=limit)

    async def adiff(self, before: At, after: At) -> Diff:
        """What differs between two states, of one thread or of two. Raises as `astate` does."""
        first, second = [one if isinstance(one, tuple) else (one, None) for one in (before, after)]
        return compare(await self.astate(first[0], at=first[1]), await self.astate(second[0], at=second[1]))

    async def afork(
        self,
        thread_id: object,
        *,
        at: str | None = None,
        values: Mapping[str, Any] | None = None,
        as_node: str | None = None,
        to: object = None,
        allow_effects: bool = False,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        as_: Principal | None = None,
        token: str | None = None,
    ) -> Result:
        """Make a new thread that goes on from a checkpoint, by default the newest; the old one is left as it is.

        `values` are written into its state first, as if node `as_node` (by default the one that ran last) had
        returned them. `to` is its id. What had begun at the checkpoint begins anew, and what was done in its run is
        answered from the ledger; recorded answers of models too, unless there are `values`. A new effect happens only
        with `allow_effects`, under a new id and with a new approval; without it such a call ends with a message that
        says so, and nothing is sent. Its run begins anew, and so do its limits: it has as much time from now on, and as
        much to spend, as the source's run was given, unless `deadline` and `budget` say otherwise; what was done before
        the fork costs it nothing. Nothing is driven here: `aresume` or a worker does. Raises `UnknownThread`,
        `UnknownCheckpoint`, `GraphChanged`, and `InvalidRequest` for values that do not fit or an id that is taken.
        """
        thread = thread_id_of(thread_id)
        run_id = str(uuid.uuid4())
        target = f"fork-{uuid.UUID(run_id).hex[:16]}" if to is None else thread_id_of(to)
        who = await self.identity.who(as_, token)
        store, keeper, _ = self._parts
        self.deployed.require(await store.threads.get(thread))
        new = NewFork(
            source=thread,
            at=await store.forks.checkpoint(thread, at),
            target=target,
            run_id=run_id,
            effects=allow_effects,
            altered=values is not None,
            by=who.name,
            vouched=who.on_word,
            tenant=who.tenant,
            deadline=await deadline_of(store, deadline),
            budget=budget_of(budget),
        )
        lease = await store.forks.make(new, lease_seconds=self.lease_seconds)
        keeper.keep(lease)
        try:
            if values is not None:
                await self._write(lease, run_id, values, as_node)
                await store.forks.open(lease)
        except BaseException:
            with contextlib.suppress(errors.StandfastError):
                await LeasedSaver(store.database, store.sealer, lease).adelete_thread(target)
                await store.forks.undo(lease)
            raise
        finally:
            keeper.drop(lease)
        await release(store.database, lease)
        return Result(target, run_id, Status.QUEUED)

    async def _write(self, lease: Lease, run_id: str, values: Mapping[str, Any], as_node: str | None) -> None:
        saver = LeasedSaver(self.store.database, self.store.sealer, lease, artifacts=self.store.artifacts)
        config: Any = {"configurable": {"thread_id": lease.thread_id}, "metadata": {"run_id": run_id}}
        graph = self._over(saver)
        require_fields(values, state_fields(graph), then="nothing was made")
        try:
            await graph.aupdate_state(config, dict(values), as_node=as_node)
        except InvalidUpdateError as error:
            raise errors.InvalidRequest(
                f"the values cannot be written there ({str(error).splitlines()[0]}); nothing was made. "
                "Say after which node they are to be: as_node=..."
            ) from error
        await saver.aflush()


def graph_over(graph: Graph, saver: LeasedSaver) -> Graph:
    """The same compiled graph, reading and writing through this saver."""
    mine = copy.copy(graph)
    mine.checkpointer = saver
    return mine
