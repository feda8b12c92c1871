"""The outbox against a simple model: messages, receivers that fail, dispatchers that die, dead letters sent again.

The model is a queue for each key. It says which messages a round attempts; so none is attempted before its time, out of
its turn, or while a claim on it holds, and none is lost.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from standfast.checkpoint import crashpoints, errors
from standfast.checkpoint.database import Connection
from standfast.checkpoint.outbox import Message
from standfast.graph import Redelivery, Runtime, build_agent
from standfast.tools.dispatcher import Dispatcher
from tests.conftest import Clock
from tests.crash.support.scripted_model import ScriptedModel, script

KEYS: Final = ("a", "b", "c")
REDELIVERY: Final = Redelivery(attempts=3, first=10.0, factor=3.0, most=20.0, jitter=0.0)
TIMEOUT: Final = 5.0
CLAIM: Final = timedelta(seconds=TIMEOUT + 15.0)
NUMBERS = itertools.count()
T = TypeVar("T")


class Receiver:
    """The channel's other end. It notes what arrives, also what it then refuses."""

    topics: Sequence[str] = ("news",)
    redelivery = REDELIVERY
    timeout = TIMEOUT

    def __init__(self, name: str) -> None:
        self.name = name
        self.manner = "takes"
        self.arrived: list[tuple[str, str, int]] = []  # key, id, attempt

    async def send(self, message: Message) -> None:
        self.arrived.append((message.key, message.id, message.attempt))
        if self.manner == "fails":
            raise ConnectionError("nobody there")
        if self.manner == "asks for time":
            raise errors.DeliveryFailed("busy", retry_after=60.0)
        if self.manner == "refuses":
            raise errors.DeliveryFailed("never", permanent=True)


@dataclass
class Letter:
    """One message as the model knows it."""

    id: str
    due: datetime
    attempts: int = 0


@dataclass
class Model:
    """The queues of one channel, and what has left them."""

    queues: dict[str, list[Letter]] = field(default_factory=lambda: {key: [] for key in KEYS})
    delivered: set[str] = field(default_factory=set)
    dead: dict[str, tuple[str, int]] = field(default_factory=dict)  # id: key, and its place among all

    def due(self, now: datetime) -> set[tuple[str, str, int]]:
        """What a round attempts: the first of each queue, if its time has come."""
        firsts = [(key, queue[0]) for key, queue in self.queues.items() if queue]
        return {(key, one.id, one.attempts + 1) for key, one in firsts if one.due <= now}


class Machine(RuleBasedStateMachine):
    runtime: Runtime
    run_id: str
    clock: Clock
    ends: Counter[str]

    @initialize()
    def begin(self) -> None:
        number = next(NUMBERS)
        self.receiver = Receiver(f"channel-{number}")
        self.receiver.topics = (f"news.{number}",)
        self.model = Model()
        self.order: list[str] = []  # ids, as they were committed
        self.dispatcher = Dispatcher(self.runtime.store.outbox, [self.receiver])
        self._wait(self.dispatcher.register())

    # -- what happens

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def send(self, keys: list[str]) -> None:
        """Some messages, in one transaction."""
        outbox = self.runtime.store.outbox
        new = [outbox.new(f"m-{next(NUMBERS)}", self.receiver.topics[0], self._key(key), "hello") for key in keys]

        async def write(conn: Connection) -> None:
            for statement, values in outbox.send("t", self.run_id, new):
                await conn.execute(statement, values)

        for _ in range(2):  # a transaction that is sent again writes each once
            self._wait(self.runtime.store.database.run(write))
        for key, one in zip(keys, new, strict=True):
            self.model.queues[key].append(Letter(one.id, self.clock.now()))
            self.order.append(one.id)

    @rule(manner=st.sampled_from(("takes", "takes", "fails", "asks for time", "refuses")))
    def dispatch(self, manner: str) -> None:
        now, expected = self.clock.now(), self._expected()
        self._round(manner)
        assert expected == self._arrived()
        for key, _, attempt in expected:
            queue = self.model.queues[key.partition("/")[2]]
            letter = queue[0]
            letter.attempts = attempt
            if manner == "takes":
                self.model.delivered.add(queue.pop(0).id)
                self._next_of(queue, now)
            elif manner == "refuses" or attempt >= REDELIVERY.attempts:
                self.model.dead[letter.id] = key.partition("/")[2], self.order.index(letter.id)
                queue.pop(0)
                self._next_of(queue, now)
                self.ends["dead"] += 1
            else:
                asked = 60.0 if manner == "asks for time" else 0.0
                letter.due = now + timedelta(seconds=REDELIVERY.delay(attempt, asked=asked))
                self.ends["again"] += 1

    @rule()
    def die_after_sending(self) -> None:
        """Everything due arrives, and nothing says so: it is claimed until the claim runs out."""
        now, expected = self.clock.now(), self._expected()

        def hook(point: str) -> None:
            if point == "outbox.sent":
                raise errors.StorageUnavailable("died")

        crashpoints.hook = hook
        try:
            self._round("takes")
        except errors.StorageUnavailable:
            self.ends["died"] += 1
        finally:
            crashpoints.hook = None
        assert expected == self._arrived()
        for key, _, attempt in expected:
            letter = self.model.queues[key.partition("/")[2]][0]
            letter.attempts, letter.due = attempt, now + CLAIM

    @rule(seconds=st.sampled_from((1, 10, 20, 60)))
    def wait(self, seconds: int) -> None:
        self.clock.move(timedelta(seconds=seconds))

    @rule(everything=st.booleans())
    def send_again(self, everything: bool) -> None:
        """Dead letters get a fresh number of attempts, behind the first of their key that is under way."""
        chosen = sorted(self.model.dead) if everything else sorted(self.model.dead)[:1]
        resent = self._wait(self.runtime.store.outbox.resend(chosen, channel=self.receiver.name))
        assert len(chosen) == resent
        for identifier in sorted(chosen, key=lambda one: self.model.dead[one][1]):
            key, _ = self.model.dead.pop(identifier)
            queue = self.model.queues[key]
            letter = Letter(identifier, self.clock.now())
            under_way, waiting = queue[:1], queue[1:]
            queue[:] = [*under_way, *sorted([*waiting, letter], key=lambda one: self.order.index(one.id))]
            self.ends["sent again"] += 1

    # -- what holds

    @invariant()
    def the_lists_say_what_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        rows = self._wait(self.runtime.store.outbox.list(channel=self.receiver.name, limit=1000))
        by_state: dict[str | None, set[str]] = {"pending": set(), "delivered": set(), "dead": set()}
        for row in rows:
            by_state[row.state].add(row.message_id)
        waiting = {one.id for queue in self.model.queues.values() for one in queue}
        assert {"pending": waiting, "delivered": self.model.delivered, "dead": set(self.model.dead)} == by_state

    def teardown(self) -> None:
        """Whatever has happened, a receiver that takes has everything in the end, first arrivals in order."""
        if not hasattr(self, "model"):
            return
        self.send_again(True)
        for _ in range(60):
            if not any(self.model.queues.values()):
                break
            self.clock.move(timedelta(seconds=61))
            self.dispatch("takes")
        assert set(self.order) == self.model.delivered
        self.ends["ended"] += 1

    # -- doing

    def _round(self, manner: str) -> None:
        self.receiver.manner = manner
        self.receiver.arrived.clear()
        self._wait(self.dispatcher.dispatch())

    def _arrived(self) -> set[tuple[str, str, int]]:
        assert len(self.receiver.arrived) == len(set(self.receiver.arrived))
        return set(self.receiver.arrived)

    def _expected(self) -> set[tuple[str, str, int]]:
        return {(self._key(key), one, attempt) for key, one, attempt in self.model.due(self.clock.now())}

    def _next_of(self, queue: list[Letter], now: datetime) -> None:
        if queue:
            queue[0].due = now

    def _key(self, key: str) -> str:
        return f"{self.receiver.name}/{key}"  # keys are of no other example

    def _wait(self, work: Awaitable[T]) -> T:
        return self.runtime._wait(lambda: work)


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    crashpoints.hook = None


@pytest.mark.timeout(280)
def test_the_outbox_does_as_the_model_says_in_every_order(database_url: str, clock: Clock) -> None:
    with Runtime(build_agent(model=ScriptedModel()), database_url=database_url) as runtime:
        run = runtime.invoke(script("Done."), thread_id="t")

        class Here(Machine):
            pass

        Here.ends = Counter()
        Here.runtime, Here.run_id, Here.clock = runtime, run.run_id, clock
        run_state_machine_as_test(
            Here,
            settings=settings(
                max_examples=30,
                stateful_step_count=25,
                deadline=None,
                derandomize=True,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    print(dict(Here.ends))
    assert {"dead", "again", "died", "sent again", "ended"} <= set(Here.ends), "the model was hardly tried"
