"""Which operation a place in a run means, also in a fork.

Invariant: what the source of a fork has done at a place, with the same arguments, is the same operation, and is
answered from the ledger; everything else of a fork is new and has an id of its own, which no receiver has seen.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.checkpoint.forks import Fork, Forks, Inherited, Place
from standfast.checkpoint.threads import Run
from standfast.tools.digests import operation_id


class Lineage:
    """The ids of one run's operations, looked up once for a drive."""

    def __init__(self, forks: Forks, run: Run) -> None:
        self._forks = forks
        self._run = run
        self._known: tuple[Fork | None, dict[Place, Inherited]] | None = None

    async def fork(self) -> Fork | None:
        """Where the thread was forked from, if it was."""
        return (await self._load())[0]

    async def operation(self, kind: str, namespace: str, turn: int, index: int, digest: str) -> tuple[str, bool]:
        """The id of the operation at this place, and whether it was inherited with its end."""
        _, inherited = await self._load()
        known = inherited.get((kind, namespace, turn, index))
        if known is not None and known.digest == digest:
            return known.id, True
        return self.own(kind, namespace, turn, index), False

    async def candidates(self, kind: str, namespace: str, turn: int, index: int) -> list[str]:
        """Every id that the operation at this place can have: the run's own, and those of its source."""
        return [operation_id(*one, namespace, turn, index, kind) for one in await self._lines()]

    async def origin(self) -> tuple[str, str]:
        """The thread and run whose names stand for places: those where the work began."""
        return (await self._lines())[0]

    async def placed(self, place: Callable[[str, str], str]) -> tuple[tuple[str, str], bool]:
        """The thread and run whose names stand for a place, and whether what it holds, of the id
        `place(thread, run)`, was inherited: those of a source that has done it, else the run's own."""
        *sources, own = await self._lines()
        for source in sources:
            if await self._forks.holds(self._run.thread_id, place(*source)):
                return source, True
        return own, False

    def own(self, kind: str, namespace: str, turn: int, index: int) -> str:
        """The id of a new operation at this place."""
        return operation_id(self._run.thread_id, self._run.id, namespace, turn, index, kind)

    async def _lines(self) -> list[tuple[str, str]]:
        fork, _ = await self._load()
        own = self._run.thread_id, self._run.id
        if fork is None or fork.run_id != self._run.id:
            return [own]
        return [*((thread, run) for thread, run in fork.lineage), own]

    async def _load(self) -> tuple[Fork | None, dict[Place, Inherited]]:
        if self._known is None:
            fork = await self._forks.of(self._run.thread_id)
            inherited: dict[Place, Inherited] = {}
            if fork is not None and fork.run_id == self._run.id:
                inherited = await self._forks.inherited(self._run.thread_id, self._run.id)
            self._known = fork, inherited
        return self._known
