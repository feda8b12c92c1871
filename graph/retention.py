"""The pruning part of a runtime: what ended long ago is deleted, and long histories are cut.

Invariant: nothing that is open, due, driven, or not yet delivered goes, and the audit stays. What was pruned before a
crash is gone, what was not is found again: a second call goes on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.pregel._checkpoint import achannels_from_checkpoint

from standfast.checkpoint import errors
from standfast.checkpoint.retention import Candidate, Full, Kept, Selection
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.shown import Shown
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Status
from standfast.graph.bar import Bar, in_notebook
from standfast.graph.changed import Graph
from standfast.graph.visible import counted

_ENDED: Final = ("succeeded", "failed", "cancelled")
_PAGE: Final = 500
_BATCH_SECONDS: Final = 0.25  # of one transaction, about: whoever claims one of its threads waits for it
_LARGEST: Final = 200  # threads of one transaction

Report = Callable[[int, int], object]
"""Hears how many threads have been looked at since it heard last, and of how many."""


@dataclass(repr=False)
class Pruned(Shown):
    """What was deleted, or with `dry_run` would be.

    `threads` by graph and state: those that are gone, or whose history is shorter now. `kept`: how many others were
    old enough and stay, by the reason. `checkpoints`: of histories that were cut. `artifacts` and `documents`: those
    that nothing refers to any more.
    """

    dry_run: bool
    threads: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept: Counter[Kept] = field(default_factory=Counter)
    checkpoints: int = 0
    artifacts: int = 0
    documents: int = 0

    def __repr__(self) -> str:
        return f"<Pruned: {counted(self.threads.total(), 'thread')}{', not done yet' if self.dry_run else ''}>"


class Pruning:
    """Retention, as a job that anybody may run at any time, as often as he likes."""

    name: str

    @property
    def store(self) -> Store:
        """The rows of the open database."""
        raise NotImplementedError

    def _over(self, saver: LeasedSaver) -> Graph:
        raise NotImplementedError

    async def asweep_artifacts(self) -> int:
        """Delete what no thread has referred to for a day."""
        raise NotImplementedError

    async def aprune(
        self,
        *,
        older_than: float | timedelta,
        states: Collection[Status | str] | None = None,
        graph: str | None = None,
        tenant: str = "default",
        keep_checkpoints: int | None = None,
        dry_run: bool = False,
        report: Report | None = None,
    ) -> Pruned:
        """Delete threads that have ended and have not changed for `older_than` (seconds or a timedelta).

        `states` of the latest run: succeeded, failed and cancelled, or some of them; `graph` and `tenant` narrow it
        further. A thread goes with its runs, ledger, events and messages; its audit stays. Those stay that anybody
        drives, that wait or are due, that have messages to deliver, and that have a parent or child which has to stay.
        Then artifacts and documents go that nothing refers to any more.

        With `keep_checkpoints` no thread is deleted: of each that is not being driven, whatever its state, only so
        many of the newest checkpoints stay. Messages, and whatever else a DeltaChannel holds, are written into the
        oldest of these; of graphs other than this runtime's, and of subgraphs with a memory of their own, the
        checkpoints that they are read from stay too.

        Short transactions, none of which waits for anybody: it may be broken off, and done again, at any time.
        With `dry_run` nothing is changed. Raises `InvalidRequest`.
        """
        selection = await self._selection(older_than, states, graph, tenant, keep_checkpoints)
        retention = self.store.retention
        done = Pruned(dry_run)
        total = await retention.count(selection)
        with Bar("Pruning", unit="thread", total=total) as bar:
            tell = report or ((lambda more, _: bar.add(more)) if in_notebook() else lambda *_: None)
            last: Candidate | None = None
            while page := await retention.page(selection, last, most=_PAGE):
                last = page[-1]
                if dry_run:
                    await self._look(page, selection, done, lambda more: tell(more, total))
                elif selection.keep is None:
                    await self._delete(page, selection, done, lambda more: tell(more, total))
                else:
                    await self._cut(page, selection, done, lambda more: tell(more, total))
        if not dry_run and selection.keep is None:
            done.artifacts = await self.asweep_artifacts()
            while swept := await retention.sweep_documents():
                done.documents += swept
        return done

    async def _selection(
        self,
        older_than: float | timedelta,
        states: Collection[Status | str] | None,
        graph: str | None,
        tenant: str,
        keep: int | None,
    ) -> Selection:
        age = older_than if isinstance(older_than, timedelta) else _seconds(older_than)
        if age < timedelta(0):
            raise errors.InvalidRequest(f"an age is not negative: {older_than!r}; nothing was deleted")
        wanted = sorted({str(one) for one in states}) if states is not None else None
        if keep is not None and keep < 1:
            raise errors.InvalidRequest(
                f"a thread keeps at least its newest checkpoint, not {keep}; nothing was deleted"
            )
        open_ones = sorted(set(wanted or ()) - set(_ENDED))
        if open_ones:
            raise errors.InvalidRequest(
                f"only what has ended is pruned ({', '.join(_ENDED)}), not what is {', '.join(open_ones)}; "
                "nothing was deleted"
            )
        if keep is None:
            wanted = wanted or list(_ENDED)
        return Selection(await self.store.database.clock() - age, tenant, graph, wanted, keep)

    async def _look(
        self, page: list[Candidate], selection: Selection, done: Pruned, tell: Callable[[int], object]
    ) -> None:
        kept: list[Kept | None] = [None] * len(page)
        if selection.keep is None:
            kept = await self.store.retention.would_keep([one.id for one in page], selection)
        _count(page, kept, done)
        tell(len(page))

    async def _delete(
        self, page: list[Candidate], selection: Selection, done: Pruned, tell: Callable[[int], object]
    ) -> None:
        size = 10
        while page:
            batch, page = page[:size], page[size:]
            began = time.monotonic()
            _count(batch, await self.store.retention.delete([one.id for one in batch], selection), done)
            took = time.monotonic() - began
            if took > _BATCH_SECONDS:
                size = max(1, size // 2)
            elif took < _BATCH_SECONDS / 2:
                size = min(_LARGEST, size * 2)
            tell(len(batch))

    async def _cut(
        self, page: list[Candidate], selection: Selection, done: Pruned, tell: Callable[[int], object]
    ) -> None:
        for one in page:
            full = await self._full(one, selection)
            deleted = await self.store.retention.cut(one.id, selection, full)
            if deleted is None:
                done.kept["in_use"] += 1
            elif deleted:
                done.threads[one.graph, one.state] += 1
                done.checkpoints += deleted
            tell(1)

    async def _full(self, one: Candidate, selection: Selection) -> Full | None:
        """What the oldest checkpoint that stays holds only as what was added to it before; of our own graph."""
        assert selection.keep is not None
        oldest = await self.store.retention.oldest_kept(one.id, selection.keep)
        if one.graph != self.name or oldest is None or not oldest.channels:
            return None
        identifier, channels = oldest.checkpoint_id, oldest.channels
        saver = LeasedSaver(self.store.database, self.store.sealer, artifacts=self.store.artifacts)
        known = {name: spec for name, spec in self._over(saver).channels.items() if isinstance(spec, DeltaChannel)}
        if not known.keys() >= set(channels):  # the code has changed since: what it cannot read it does not touch
            return None
        config: RunnableConfig = {
            "configurable": {"thread_id": one.id, "checkpoint_ns": "", "checkpoint_id": identifier}
        }
        found = await saver.aget_tuple(config)
        if found is None:  # somebody else has just pruned it
            return None
        read, _ = await achannels_from_checkpoint(known, found.checkpoint, saver=saver, config=config)
        return Full(identifier, {name: _DeltaSnapshot(read[name].get()) for name in channels}, oldest.first)


def _count(batch: list[Candidate], kept: list[Kept | None], done: Pruned) -> None:
    for one, why in zip(batch, kept, strict=True):
        if why is None:
            done.threads[one.graph, one.state] += 1
        else:
            done.kept[why] += 1


def _seconds(given: float) -> timedelta:
    try:
        return timedelta(seconds=given)
    except (OverflowError, TypeError, ValueError) as error:
        raise errors.InvalidRequest(f"an age is a number of seconds or a timedelta, not {given!r}") from error


WHY: Final[Mapping[Kept, str]] = {
    "in_use": "in use, due or waiting",
    "undelivered": "with messages that are not delivered",
    "family": "with a parent or child that stays",
}
"""Why threads stay, for people."""
