"""Messages are written with what causes them, and reach every channel, in order, at least once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypedDict

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, interrupt

from standfast.checkpoint import errors
from standfast.checkpoint.store import Store
from standfast.graph import (
    Effect,
    FunctionChannel,
    Message,
    OperationContext,
    Policy,
    Redelivery,
    Runtime,
    Webhook,
    notify,
    operation,
    sleep,
)
from standfast.tools.channels import sign
from standfast.tools.dispatcher import Dispatched, Dispatcher
from tests.conftest import Clock
from tests.crash.support.scripted_model import call, script
from tests.servers.fixtures import Eventually
from tests.servers.reports import ReportsServer
from tests.servers.scripted import Request, Step

Open = Callable[..., Any]
Query = Callable[..., list[tuple[Any, ...]]]
SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
STEADY = Redelivery(attempts=3, first=10, factor=2, most=60, jitter=0)
CLAIM_SECONDS = 30.0


class State(TypedDict, total=False):
    texts: list[str]
    answer: str


class Box:
    """A channel that keeps what it is given, and fails as often as it is told."""

    def __init__(self, name: str = "box", *topics: str, failures: int = 0) -> None:
        self.name, self.topics, self.redelivery, self.timeout = name, topics or ("*",), STEADY, 15.0
        self.failures = failures
        self.taken: list[Message] = []

    async def send(self, message: Message) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("nobody there")
        self.taken.append(message)

    @property
    def texts(self) -> list[Any]:
        return [one.payload for one in self.taken]


def one_node(node: Callable[..., Any], **options: Any) -> StateGraph[State]:
    graph = StateGraph(State)
    graph.add_node("only", node, **options)
    graph.add_edge(START, "only")
    graph.add_edge("only", END)
    return graph


def say(state: State) -> State:
    """Sends each text, from a thread of LangGraph's."""
    for text in state["texts"]:
        notify("said", text)
    return {}


@pytest.fixture
def talking(database_url: str) -> Callable[..., Any]:
    """`async with talking(node, *channels) as runtime:` a graph of that one node."""

    @asynccontextmanager
    async def opening(node: Callable[..., Any], *channels: Any, **options: Any) -> AsyncIterator[Runtime]:
        async with Runtime(one_node(node, **options), database_url=database_url, channels=channels) as runtime:
            yield runtime

    return opening


# -- writing


async def test_a_node_s_messages_are_written_with_its_writes_in_their_order(talking: Open) -> None:
    box = Box("box", "said")
    async with talking(say, box) as runtime:
        await runtime.ainvoke({"texts": ["a", "b", "c"]}, thread_id="t")
        assert Dispatched(delivered=3) == await runtime.adispatch()
    assert ["a", "b", "c"] == box.texts
    assert {("said", "t", "t")} == {(one.topic, one.key, one.thread_id) for one in box.taken}


async def test_a_node_that_fails_sends_nothing(talking: Open) -> None:
    def fail(state: State) -> State:
        notify("said", "too early")
        raise ValueError("no")

    box = Box("box", "said")
    async with talking(fail, box) as runtime:
        assert "needs_attention" == (await runtime.ainvoke({}, thread_id="t")).status
        assert Dispatched() == await runtime.adispatch()


async def test_of_a_node_that_is_tried_again_only_the_last_attempt_sends(talking: Open) -> None:
    tries: list[int] = []

    async def flaky(state: State) -> State:
        tries.append(1)
        notify("said", f"attempt {len(tries)}")
        if len(tries) == 1:
            raise ConnectionError("no")
        return {}

    box = Box("box", "said")
    retry = RetryPolicy(initial_interval=0.0, jitter=False)
    async with talking(flaky, box, retry_policy=retry) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        await runtime.adispatch()
    assert ["attempt 2"] == box.texts


async def test_a_node_that_asks_has_sent_by_then_and_sends_it_once(talking: Open) -> None:
    async def ask(state: State) -> State:
        notify("said", "please answer")
        return {"answer": interrupt("?")}

    box = Box("box", "said")
    async with talking(ask, box) as runtime:
        assert "waiting" == (await runtime.ainvoke({}, thread_id="t")).status
        await runtime.adispatch()
        assert ["please answer"] == box.texts
        assert "succeeded" == (await runtime.aresume("t", "yes")).status
        assert Dispatched() == await runtime.adispatch()


async def test_a_node_around_a_graph_that_asks_has_sent_by_then(talking: Open) -> None:
    async def ask(state: State) -> State:
        return {"answer": interrupt("?")}

    inner = one_node(ask).compile()

    async def outer(state: State) -> State:
        notify("said", "a question comes")
        return {"answer": (await inner.ainvoke({}))["answer"]}

    box = Box("box", "said")
    async with talking(outer, box) as runtime:
        assert "waiting" == (await runtime.ainvoke({}, thread_id="t")).status
        await runtime.adispatch()
        await runtime.aresume("t", "yes")
        await runtime.adispatch()
    assert ["a question comes"] == box.texts


@pytest.mark.parametrize("effect", [Effect.IDEMPOTENT, Effect.TRANSACTIONAL, Effect.AT_MOST_ONCE])
async def test_an_operation_s_messages_are_written_with_the_end_of_its_attempt(opened: Open, effect: Effect) -> None:
    @operation(policy=Policy(effect=effect))
    async def order(context: OperationContext) -> str:
        """Order something."""
        notify("ordered", {"operation": context.operation_id})
        return "ordered"

    box = Box("box", "ordered")
    async with opened(order, channels=[box]) as runtime:
        await runtime.ainvoke(script([call("order")]), thread_id="t")
        await runtime.adispatch()
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "order"]
    assert [{"operation": known.id}] == box.texts


@pytest.mark.parametrize("effect", [Effect.IDEMPOTENT, Effect.TRANSACTIONAL])
async def test_an_attempt_that_fails_sends_nothing_and_one_that_waits_sends_once(
    opened: Open, clock: Clock, effect: Effect
) -> None:
    @operation(policy=Policy(effect=effect))
    async def fail() -> str:
        """Fail."""
        notify("said", "too early")
        raise ValueError("no")

    @operation(policy=Policy(effect=Effect.IDEMPOTENT))
    async def wait() -> str:
        """Wait for a day."""
        notify("said", "in a day")
        await sleep(for_=timedelta(days=1))
        return "there"

    box = Box("box", "said")
    async with opened(fail, wait, channels=[box]) as runtime:
        await runtime.ainvoke(script([call("fail"), call("wait")]), thread_id="t")
        await runtime.adispatch()
        assert ["in a day"] == box.texts
        clock.move(timedelta(days=1))
        assert "succeeded" == (await runtime.aresume("t")).status
        await runtime.adispatch()
    assert ["in a day"] == box.texts


async def test_an_approval_and_an_end_are_told_of_in_their_own_transactions(opened: Open, query: Query) -> None:
    box = Box()
    async with opened(channels=[box]) as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="x")]), thread_id="t")
        [approval] = waiting.approvals
        assert [("approval.opened",)] == query("select topic from outbox")
        together = "select o.xmin = a.xmin from outbox o, approvals a where o.topic = 'approval.opened'"
        assert [(True,)] == query(together)
        assert "succeeded" == (await runtime.aresume("t", approve=approval.id)).status
        await runtime.adispatch()
    opened_, ended = box.taken
    assert ("approval.opened", approval.id, approval.expires_at) == (
        opened_.topic,
        opened_.payload["approval_id"],
        opened_.payload["expires_at"],
    )
    assert ("run.succeeded", waiting.run_id) == (ended.topic, ended.payload["run_id"])


async def test_a_payload_that_cannot_be_stored_and_a_topic_that_is_none_are_refused_where_they_are_given(
    talking: Open,
) -> None:
    seen: list[type[Exception]] = []

    def badly(state: State) -> State:
        for topic, payload in (("fine", object()), ("no*", 1), ("", 1), ("a\nb", 1)):
            try:
                notify(topic, payload)
            except (errors.UnstorableValue, errors.InvalidRequest) as error:
                seen.append(type(error))
        return {}

    async with talking(badly) as runtime:
        await runtime.ainvoke({}, thread_id="t")
    assert [errors.UnstorableValue, *[errors.InvalidRequest] * 3] == seen
    with pytest.raises(errors.UsageError):
        notify("outside")


# -- delivering


async def test_each_channel_gets_the_topics_that_it_wants_and_one_that_fails_holds_up_no_other(talking: Open) -> None:
    everything, runs, down = Box("everything"), Box("runs", "run.*"), Box("down", "said", failures=99)
    async with talking(say, everything, runs, down) as runtime:
        await runtime.ainvoke({"texts": ["a"]}, thread_id="t")
        assert Dispatched(delivered=3, failed=1) == await runtime.adispatch()
    assert ["said", "run.succeeded"] == [one.topic for one in everything.taken]
    assert ["run.succeeded"] == [one.topic for one in runs.taken]


async def test_order_within_a_key_is_kept_across_a_failing_first_message(talking: Open, clock: Clock) -> None:
    def mixed(state: State) -> State:
        for number in range(3):
            notify("said", f"first {number}", key="first")
            notify("said", f"other {number}", key="other")
        return {}

    box = Box("box", "said", failures=1)
    async with talking(mixed, box) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        await runtime.adispatch()
        assert ["other 0", "other 1", "other 2"] == box.texts
        clock.move(timedelta(seconds=10))
        await runtime.adispatch()
    assert ["first 0", "first 1", "first 2"] == box.texts[3:]


async def test_back_off_goes_by_the_frozen_clock_and_ends_in_the_dead_letter_list(talking: Open, clock: Clock) -> None:
    box = Box("box", "said", failures=3)
    async with talking(say, box) as runtime:
        await runtime.ainvoke({"texts": ["a", "b"]}, thread_id="t")
        assert Dispatched(failed=1) == await runtime.adispatch()
        for wait, expected in ((10, Dispatched(failed=1)), (20, Dispatched(delivered=1, dead=1))):
            clock.move(timedelta(seconds=wait - 1))
            assert Dispatched() == await runtime.adispatch()
            clock.move(timedelta(seconds=1))
            assert expected == await runtime.adispatch()
        [dead] = await runtime.adeliveries(state="dead")
        assert (3, "ConnectionError: nobody there", None) == (dead.attempts, dead.failure, dead.due_at)
        assert ["b"] == box.texts

        assert 1 == await runtime.aresend(dead.message_id)
        assert Dispatched(delivered=1) == await runtime.adispatch()
        assert ["b", "a"] == box.texts
        assert [] == await runtime.adeliveries(state="dead")
        with pytest.raises(errors.InvalidRequest):
            await runtime.aresend(dead.message_id)
        with pytest.raises(errors.UnknownMessage):
            await runtime.aresend("msg-none")


async def test_two_dispatchers_never_have_one_delivery_and_a_dead_one_s_claims_come_back(
    talking: Open, store: Store, clock: Clock
) -> None:
    def spread(state: State) -> State:
        for number in range(40):
            notify("said", number, key=str(number))
        return {}

    async with talking(spread, Box("box", "said")) as runtime:
        await runtime.ainvoke({}, thread_id="t")
    claims = await asyncio.gather(*(store.outbox.claim(["box"], seconds=CLAIM_SECONDS, most=7) for _ in range(8)))
    claimed = [one.message.payload for some in claims for one in some]
    assert list(range(40)) == sorted(claimed)

    clock.move(timedelta(seconds=CLAIM_SECONDS))
    again = await store.outbox.claim(["box"], seconds=CLAIM_SECONDS, most=100)
    assert list(range(40)) == sorted(one.message.payload for one in again)
    assert not await store.outbox.finish(claims[0][0], "delivered")  # who slept through his time changes nothing
    assert await store.outbox.finish(again[0], "delivered")


async def test_messages_of_one_key_are_numbered_in_the_order_of_their_commits(
    store: Store, add_thread: Callable[[str], str], database_url: str, eventually: Eventually, query: Query
) -> None:
    add_thread("t")
    await store.outbox.register("box", ["*"])
    new = store.outbox.new
    run = "00000000-0000-0000-0000-000000000000"
    [(first, first_params)] = store.outbox.send("t", run, [new("m1", "said", "k", 1)])
    [(second, second_params)] = store.outbox.send("t", run, [new("m2", "said", "k", 2)])
    slow = await psycopg.AsyncConnection.connect(database_url, options="-c search_path=standfast,public")
    await slow.execute(first, first_params)
    late = asyncio.create_task(store.database.fetch(second, second_params))
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and wait_event = 'advisory'"
    async with asyncio.timeout(20):
        while query(waiting) != [(1,)]:
            await asyncio.sleep(0.01)
    await slow.commit()
    await slow.close()
    await late
    box = Box()
    dispatcher = Dispatcher(store.outbox, [box])
    while await dispatcher.dispatch() != Dispatched():
        pass
    assert [1, 2] == box.texts


async def test_a_worker_delivers_while_it_works(talking: Open, database_url: str) -> None:
    arrived = asyncio.Event()

    def take(message: Message) -> None:
        loop.call_soon_threadsafe(arrived.set)

    loop = asyncio.get_running_loop()
    async with talking(say, FunctionChannel("function", take, topics=["said"])) as runtime:
        stop = asyncio.Event()
        working = asyncio.create_task(runtime.awork(stop=stop))
        await runtime.asubmit({"texts": ["a"]}, thread_id="t")
        await asyncio.wait_for(arrived.wait(), 30)
        stop.set()
        await working


async def test_what_was_delivered_is_dropped_after_a_week_and_nothing_else_is(
    talking: Open, clock: Clock, query: Query
) -> None:
    async def ask(state: State) -> State:
        notify("said", "unfinished")
        return {"answer": interrupt("?")}

    box = Box("box", "said")
    async with talking(say, box, Box("down", "run.*", failures=99)) as runtime:
        await runtime.ainvoke({"texts": ["a"]}, thread_id="t")
        await runtime.adispatch()
    async with talking(ask, box) as runtime:
        await runtime.ainvoke({}, thread_id="u")
        await runtime.adispatch()
        clock.move(timedelta(days=8))
        await runtime.store.outbox.drop_old()
    assert [("run.succeeded", "t"), ("said", "u")] == query("select topic, thread_id from outbox order by seq")


# -- webhooks


def test_a_signature_is_that_of_the_published_example() -> None:
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" == signature


@pytest.fixture
def receiver(tmp_path: Any) -> Any:
    """A receiver that takes every message as a new one."""
    with ReportsServer(tmp_path / "hooks.jsonl", mode="ignores_key") as server:
        yield server


def hook(server: ReportsServer, **options: Any) -> Webhook:
    return Webhook("hook", f"{server.url}/reports", secret=SECRET, topics=["said"], redelivery=STEADY, **options)


async def test_a_webhook_is_signed_with_every_secret_over_the_bytes_that_arrive(
    talking: Open, receiver: ReportsServer, clock: Clock
) -> None:
    seen: list[Request] = []

    def look(request: Request) -> Step:
        seen.append(request)
        return Step()

    receiver.script(look)
    second = base64.b64encode(b"s" * 32).decode()
    channel = Webhook("hook", f"{receiver.url}/reports", secret=[SECRET, second], topics=["said"])
    async with talking(say, channel) as runtime:
        await runtime.ainvoke({"texts": ["ü"]}, thread_id="t")
        await runtime.adispatch()
        [delivery] = await runtime.adeliveries(channel="hook")
    [request] = seen
    headers = request.headers
    assert delivery.message_id == headers["webhook-id"]
    assert str(int(clock.now().timestamp())) == headers["webhook-timestamp"]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
    expected = [
        "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        for key in (b"k" * 24, b"s" * 32)
    ]
    assert expected == headers["webhook-signature"].split(" ")
    assert {"type": "said", "data": "ü"} == {key: json.loads(request.body)[key] for key in ("type", "data")}


@pytest.mark.parametrize(
    ("step", "wait"),
    [
        (Step(status=500), 10),
        (Step(status=429, retry_after=50), 50),
        (Step(fail="reset"), 10),
        (Step(fail="cut"), 10),
        (Step(fail="hang"), 10),
        (Step(fail="cut", performed=True), 10),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else str(value.fail or value.status),
)
async def test_a_receiver_that_fails_gets_the_message_again_with_the_same_id(
    talking: Open, receiver: ReportsServer, clock: Clock, step: Step, wait: int
) -> None:
    receiver.script(step)
    async with talking(say, hook(receiver, timeout=0.5)) as runtime:
        await runtime.ainvoke({"texts": ["a", "b"]}, thread_id="t")
        assert Dispatched(failed=1) == await runtime.adispatch()
        clock.move(timedelta(seconds=wait - 1))
        assert Dispatched() == await runtime.adispatch()
        clock.move(timedelta(seconds=1))
        assert Dispatched(delivered=2) == await runtime.adispatch()
    requests = receiver.requests()
    assert ["a", "a", "b"] == [one["body"]["data"] for one in requests]
    assert 2 == len({one["headers"]["webhook-id"] for one in requests})
    assert requests[0]["headers"]["webhook-id"] == requests[1]["headers"]["webhook-id"]


async def test_a_receiver_that_is_gone_and_a_payload_without_json_are_dead_at_once(
    talking: Open, receiver: ReportsServer
) -> None:
    def odd(state: State) -> State:
        notify("said", "x", key="gone")
        notify("said", "\ud800", key="odd")
        return {}

    receiver.script(Step(status=410))
    async with talking(odd, hook(receiver)) as runtime:
        await runtime.ainvoke({}, thread_id="t")
        assert Dispatched(dead=2) == await runtime.adispatch()
        failures = [one.failure for one in await runtime.adeliveries(state="dead")]
    assert any("410" in str(one) for one in failures)
    assert any("JSON" in str(one) for one in failures)


async def test_no_secret_and_no_address_reaches_the_database(
    talking: Open, receiver: ReportsServer, database_url: str, query: Query
) -> None:
    async with talking(say, hook(receiver)) as runtime:
        await runtime.ainvoke({"texts": ["a"]}, thread_id="t")
        await runtime.adispatch()
    rows = [
        str(row)
        for table in ("outbox", "deliveries", "channels", "runs", "threads", "run_events")
        for row in query(f"select encode(x::text::bytea, 'escape') from {table} x")
    ]
    assert rows
    assert not [row for row in rows if SECRET[6:] in row or receiver.url in row]
    assert SECRET[6:] not in repr(hook(receiver))


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_???", []])
def test_a_secret_that_is_none_is_refused(secret: Any) -> None:
    with pytest.raises(errors.ConfigurationError):
        Webhook("hook", "https://example.com", secret=secret)


@pytest.mark.parametrize("topics", [(), ("a*b",), ("",), "*"])
async def test_topics_that_are_none_are_refused(talking: Open, topics: Any) -> None:
    box = Box()
    box.topics = topics
    with pytest.raises(errors.InvalidRequest):
        async with talking(say, box):
            pass
