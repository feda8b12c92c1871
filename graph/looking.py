"""The part of a runtime that is for looking at threads: their timelines, their ledgers, and pictures of where they are.

Invariant: nothing is changed, and nothing but a picture needs the thread's graph.
"""

from __future__ import annotations

from dataclasses import replace

from standfast.checkpoint import errors
from standfast.checkpoint.store import Store
from standfast.graph.changed import Graph
from standfast.graph.deciding import as_of_now
from standfast.graph.deployed import Deployed
from standfast.graph.door import thread_id_of
from standfast.graph.pictures.diagram import Picture, picture_of
from standfast.graph.pictures.place import place_of
from standfast.graph.timeline import Ledger, Timeline, read_timeline
from standfast.tools.approval_policy import ApprovalPolicy
from standfast.tools.operations import Registry


class Looking:
    """Records of threads, whichever graph they belong to, and the picture of this one."""

    _graph: Graph
    _operations: Registry | None = None

    @property
    def store(self) -> Store:
        """The rows of the open database."""
        raise NotImplementedError

    @property
    def deployed(self) -> Deployed:
        """Which threads this code may drive."""
        raise NotImplementedError

    @property
    def policy(self) -> ApprovalPolicy:
        """Who decides about which calls."""
        raise NotImplementedError

    async def atimeline(self, thread_id: object) -> Timeline:
        """Everything that is recorded about a thread, whichever graph it belongs to. Raises `UnknownThread`."""
        timeline = await read_timeline(self.store, thread_id_of(thread_id))
        marked = [as_of_now(one, self._operations, self.policy) for one in timeline.approvals]
        return replace(timeline, approvals=marked)

    async def aledger(self, thread_id: object) -> Ledger:
        """What a thread has done or tried to do. Raises `UnknownThread`."""
        return (await self.atimeline(thread_id)).ledger

    async def apicture(self, thread_id: object = None) -> Picture:
        """The graph as a picture, with where the thread stands, if one is named.

        Raises `UnknownThread`, `InvalidRequest` for a thread of another graph, and `GraphChanged`.
        """
        name = self.deployed.name
        if thread_id is None:
            return picture_of(self._graph, name=name)
        timeline = await self.atimeline(thread_id)
        thread = timeline.thread
        if thread.graph != name:
            raise errors.InvalidRequest(
                f"thread {thread.id!r} is of graph {thread.graph!r}, not of {name!r}: ask its graph's runtime",
                thread_id=thread.id,
            )
        self.deployed.require(thread)
        return picture_of(self._graph, name=name, marks=place_of(timeline), thread_id=thread.id)
