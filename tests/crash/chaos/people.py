"""The people: who asks, decides, answers, tells of events, retries and cancels, often twice, early, or out of order.

Invariant: each takes note of what was said to be done, so that a verdict can be given on it afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval
from standfast.graph import Principal, Result, Said, Status
from standfast.graph.runtime import AsyncRuntime
from tests.crash.chaos import graphs
from tests.servers.process import ServerProcess

_LOOK_SECONDS: Final = 0.5
_DIED: Final = re.compile(r"\d+ drivers in a row died on it")
_RAISED: Final = {"failing": f"ValueError: {graphs.ONCE}", "hopeless": f"ValueError: {graphs.ALWAYS}"}
EVENTS: Final = ("first", "second", "third", "fourth")


@dataclass
class Case:
    """One thread: what it was given, and what people did about it."""

    thread: str
    graph: str
    size: int
    run_id: str = ""
    accepted: bool = False
    doubled: list[str] = field(default_factory=list)  # what two people were both told to have done
    answers: dict[int, str] = field(default_factory=dict)  # by item: the one that was taken
    troubles: list[str] = field(default_factory=list)  # what people met that should not have been


class People:
    """Works on `cases` through `runtimes`, one for each graph; `receiver` counts the effects."""

    def __init__(
        self, runtimes: dict[str, AsyncRuntime], receiver: ServerProcess, cases: Sequence[Case], rng: random.Random
    ) -> None:
        self._runtimes = runtimes
        self._any = next(iter(runtimes.values()))
        self._receiver = receiver
        self._rng = rng
        self._busy: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cases = {one.thread: one for one in cases}
        self.did: Counter[str] = Counter()
        self.put_aside: list[str] = []  # the runs that one driver after the other has died on
        self.unfinished: list[Case] = list(cases)

    # -- asking

    async def submit(self, seconds: float) -> None:
        """Hand all threads over, spread over `seconds`, some of them twice at the same time."""
        async with asyncio.TaskGroup() as group:
            for case in self.cases.values():
                group.create_task(self._begin(case, self._rng.uniform(0, seconds)))

    async def _begin(self, case: Case, delay: float) -> None:
        rng = random.Random(f"{case.thread} {delay}")
        await asyncio.sleep(delay)
        early = case.graph == "waiting" and rng.random() < 0.5
        if early:
            await self._tell(case, rng)
        copies = 2 if rng.random() < 0.2 else 1
        results = await asyncio.gather(*(self._persist(lambda: self._ask(case)) for _ in range(copies)))
        runs = {one.run_id for one in results}
        if len(runs) != 1:
            case.doubled.append(f"one request became the runs {sorted(runs)}")
        case.run_id, case.accepted = runs.pop(), True
        if case.graph == "waiting" and not early:
            await asyncio.sleep(rng.uniform(0, 3))
            await self._tell(case, rng)

    async def _ask(self, case: Case) -> Result:
        url = f"{self._receiver.url}/reports"
        given: Any = {"key": case.thread, "url": url, "size": case.size}
        request = graphs.errand(case.thread) if case.graph == "agent" else given
        self.did["submitted"] += 1
        return await self._runtimes[case.graph].asubmit(request, thread_id=case.thread, client_key=case.thread)

    async def _tell(self, case: Case, rng: random.Random) -> None:
        """All four events, in any order, each up to three times."""
        told = [name for name in EVENTS for _ in range(rng.randint(1, 3))]
        rng.shuffle(told)
        await asyncio.gather(*(self._persist(self._emit(case, name, rng.random() * 0.5)) for name in told))

    def _emit(self, case: Case, name: str, delay: float) -> Callable[[], Awaitable[None]]:
        async def emit() -> None:
            await asyncio.sleep(delay)
            self.did["emitted"] += 1
            payload = f"{name} of {case.thread}"
            await self._any.aemit(name, payload, id=f"{name} {case.thread}", match=case.thread)

        return emit

    async def _persist(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """Do it until it is said to be done: nobody knows whether one that failed was."""
        while True:
            try:
                return await act()
            except (errors.StorageUnavailable, errors.DatabaseUnavailable):
                await asyncio.sleep(0.2)

    # -- looking after what waits

    async def look_after(self, patience: float) -> None:
        """Until every thread has ended, or `patience` seconds after this was called."""
        deadline = time.monotonic() + patience
        while self.unfinished and time.monotonic() < deadline:
            with contextlib.suppress(errors.StorageUnavailable, errors.DatabaseUnavailable):
                await self._look()
            await asyncio.sleep(_LOOK_SECONDS)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=40)

    async def _look(self) -> None:
        for approval in await self._any.aapprovals(limit=None):
            self._once(approval.thread_id, approval.id, lambda one=approval: self._decide(one))
        for wait in await self._any.aopen_waits(kind="question", limit=1000):
            self._once(wait.thread_id, wait.id, lambda one=wait: self._answer(one.thread_id, one.id))
        for thread in await self._any.athreads(state=Status.NEEDS_ATTENTION, limit=1000):
            self._once(thread.id, "", lambda one=thread: self._attend(one.id, one.reason or ""))
        ended = {
            one.id
            for state in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
            for one in await self._any.athreads(state=state, limit=10_000)
        }
        self.unfinished = [one for one in self.cases.values() if one.thread not in ended]

    def _once(self, thread: str, name: str, act: Callable[[], Awaitable[None]]) -> None:
        """Somebody deals with it, if nobody does already."""
        what = f"{thread} {name}"
        if what in self._busy:
            return

        async def deal() -> None:
            try:
                await act()
            except errors.StandfastError as error:
                self.cases[thread].troubles.append(f"{type(error).__name__}: {error}")
            finally:
                self._busy.discard(what)

        self._busy.add(what)
        task = asyncio.create_task(deal())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _decide(self, approval: Approval) -> None:
        case = self.cases[approval.thread_id]
        if approval.kind == "outcome":
            choices = [self._found_out(approval)]
        else:
            choices = [Said("approve"), Said("reject", "not today")]
            self._rng.shuffle(choices)
            choices = choices[: self._rng.randint(1, 2)]
        taken = await asyncio.gather(*(self._say(approval, said, who) for who, said in enumerate(choices)))
        if sum(taken) > 1:
            case.doubled.append(f"two decisions of {approval.id} were taken")

    def _found_out(self, approval: Approval) -> Said:
        """Look at the receiver, as a person would."""
        there = any(
            one["report"]["body"] == {"text": approval.arguments["text"], "thread": approval.thread_id}
            for one in self._receiver.effects()
        )
        self.did["outcomes told"] += 1
        return Said("happened", response=approval.arguments["text"]) if there else Said("did_not_happen")

    async def _say(self, approval: Approval, said: Said, who: int) -> bool:
        self.did["decided"] += 1
        principal = Principal.vouched(f"person-{who}")
        try:
            await self._persist(lambda: self._runtimes["agent"].adecide(approval.id, said, as_=principal))
        except (errors.AlreadyDecided, errors.DigestMismatch, errors.NotPermitted):
            return False
        return True

    async def _answer(self, thread: str, wait: str) -> None:
        case = self.cases[thread]
        [known] = [one for one in await self._any.store.waits.of_run(thread, case.run_id) if one.id == wait]
        item = known.request["item"]
        answers = [f"{thread}: {item} by {who}" for who in range(self._rng.randint(1, 2))]
        taken = await asyncio.gather(*(self._give(thread, wait, one, who) for who, one in enumerate(answers)))
        for answer in (one for one, was in zip(answers, taken, strict=True) if was):
            if item in case.answers:
                case.doubled.append(f"question {item} was answered twice")
            case.answers[item] = answer

    async def _give(self, thread: str, wait: str, answer: str, who: int) -> bool:
        self.did["answered"] += 1
        principal = Principal.vouched(f"person-{who}")
        try:
            await self._persist(lambda: self._runtimes["asking"].aanswer(thread, {wait: answer}, as_=principal))
        except (errors.AlreadyDecided, errors.NothingToAnswer, errors.UnknownQuestion):
            return False
        return True

    async def _attend(self, thread: str, reason: str) -> None:
        case = self.cases[thread]
        if _DIED.match(reason):
            self.put_aside.append(f"{thread}: {reason}")
        elif not reason.startswith(_RAISED.get(case.graph, "nothing")):
            case.troubles.append(reason)
        cancels = case.graph == "hopeless" and not _DIED.match(reason)
        act = self._any.acancel if cancels else self._any.aretry
        for _ in range(self._rng.randint(1, 2)):
            with contextlib.suppress(errors.AlreadyFinished, errors.CancelPending, errors.InvalidRequest):
                await self._persist(lambda: act(thread))
                self.did[act.__name__[1:]] += 1
