"""What a child of the nursery can be ordered to do, and how it is made to die.

An order: `job`, `url` of the database, `thread`; `kill` as [point, n] for a SIGKILL at the n-th time that the
point of `standfast.checkpoint.crashpoints` is reached; `forgetful` takes the ledger's memory out; `env` goes
into the environment; `scripted` uses the scripted model instead of the one named by `model`, and if it is "nested"
an agent whose specialist may act, if it is "effects" one with an operation of each kind; `graph` is MODULE:ATTR of
another graph.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from standfast.checkpoint import crashpoints, errors
from standfast.checkpoint.operations import Begun
from standfast.graph import DEFAULT_OPERATIONS, Principal, Result, Runtime, Webhook, build_agent
from standfast.graph.answers import Said
from standfast.graph.cli.session import load_graph
from standfast.tools.dispatcher import Dispatcher
from standfast.tools.ledger import Ledger
from standfast.tools.reports import publish_report
from tests.crash.support.effects import EFFECTS, see_through
from tests.crash.support.nested_agent import nested_agent
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel

Order = Mapping[str, Any]
SHORT_LEASE = 2.0  # seconds, for those who are killed: somebody waits for it to run out
LONG_LEASE = 15.0  # for all others: a busy machine must not take it from them
_PATIENCE_SECONDS = 60.0
_DEADLINE_SECONDS = 10.0  # of a report: after a kill somebody waits until it has passed
QUICK = [
    replace(one, policy=replace(one.policy, timeout=_DEADLINE_SECONDS)) if one is publish_report else one
    for one in DEFAULT_OPERATIONS
]


def work(order: Order, directory: Path) -> Any:
    """Do the order's job in this process."""
    os.environ.update(order.get("env", {}))
    reached: dict[str, int] = {}
    crashpoints.hook = _counting(reached, order.get("kill"))
    if order.get("forgetful"):
        _forget()

    async def run() -> Any:
        graph: Any
        match order.get("scripted"):
            case None:
                graph = load_graph(order["graph"]) if "graph" in order else build_agent(operations=QUICK)
            case "nested":
                graph = nested_agent()
            case "effects":
                graph = build_agent(model=ScriptedModel(), operations=EFFECTS)
            case _:
                graph = build_agent(model=ScriptedModel(), operations=OPERATIONS)
        lease = SHORT_LEASE if "kill" in order else LONG_LEASE
        async with Runtime(graph, database_url=order["url"], lease_seconds=lease) as runtime:
            return await JOBS[order["job"]](runtime, order, directory)

    return {"did": asyncio.run(run()), "reached": reached}


def _counting(reached: dict[str, int], kill: tuple[str, int] | None) -> Callable[[str], None]:
    lock = threading.Lock()

    def hook(point: str) -> None:
        with lock:
            reached[point] = reached.get(point, 0) + 1
            if kill is not None and (point, reached[point]) == tuple(kill):
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def _forget() -> None:
    """Take the reuse of recorded ends out: whatever has been recorded, the effect happens again."""
    begin = Ledger._begin

    async def forgetful(self: Ledger, *args: Any) -> Begun:
        begun = await begin(self, *args)
        return replace(begun, state="executing", attempt=begun.attempt + 1) if begun.state != "executing" else begun

    Ledger._begin = forgetful  # type: ignore[method-assign]


async def migrated(runtime: Runtime, order: Order, directory: Path) -> bool:
    """Nothing more than what opening a runtime does."""
    return True


async def ask(runtime: Runtime, order: Order, directory: Path) -> dict[str, Any]:
    """Invoke, and say how the run stands."""
    result = await runtime.ainvoke(
        order["request"],
        thread_id=order["thread"],
        documents=order.get("documents"),
        model=order.get("model"),
        reports_dir=order.get("reports_dir"),
    )
    return _told(result)


async def resume(runtime: Runtime, order: Order, directory: Path) -> dict[str, Any]:
    """Resume with the order's `answer` (keywords of `aresume`), and say how the run stands."""
    who = Principal.vouched(order.get("as", "approver@example.com"))
    return _told(await runtime.aresume(order["thread"], **order.get("answer", {}), as_=who))


async def seen_through(runtime: Runtime, order: Order, directory: Path) -> dict[str, Any]:
    """Carry the run on to its end, asking the receiver's `log` where a person is asked; begin it if nobody has."""
    try:
        await runtime.store.threads.get(order["thread"])
    except errors.UnknownThread:
        await ask(runtime, order, directory)
    return await see_through(runtime, order["thread"], Path(order["log"]))


async def complete(runtime: Runtime, order: Order, directory: Path) -> None:
    """Tell the end of the run's one operation."""
    [one] = [one for one in await runtime.store.operations.list(order["thread"]) if one.kind == "tool"]
    await runtime.acomplete(one.id, order["result"])


async def ask_many(runtime: Runtime, order: Order, directory: Path) -> list[list[str]]:
    """Invoke the same request on each of `threads`: [thread, the id of its approval]."""
    results = [await runtime.ainvoke(order["request"], thread_id=thread) for thread in order["threads"]]
    return [[one.thread_id, one.approvals[0].id] for one in results]


async def decide(runtime: Runtime, order: Order, directory: Path) -> None:
    """Decide `approval` by `verb` and drive nothing."""
    await runtime.adecide(order["approval"], Said(order["verb"]), as_=Principal.vouched("approver@example.com"))


async def vote(runtime: Runtime, order: Order, directory: Path) -> dict[str, Any]:
    """Decide `approval` by `verb` as `who` once the file `go` is there; what was decided in the end, and by whom."""
    await until(lambda: Path(order["go"]).exists())
    try:
        await runtime.adecide(order["approval"], Said(order["verb"]), as_=Principal.vouched(order["who"]))
    except errors.AlreadyDecided as error:
        return {"won": False, "decision": error.decision, "by": error.by}
    return {"won": True, "decision": order["verb"], "by": order["who"]}


async def look(runtime: Runtime, order: Order, directory: Path) -> dict[str, Any]:
    """See `picture`."""
    return await picture(runtime, order["thread"])


async def carry_on(runtime: Runtime, order: Order, directory: Path) -> dict[str, Any]:
    """After a crash: look, resume, approve what waits, and say what was seen before and after."""
    thread = order["thread"]
    before = await picture(runtime, thread)
    result = await to_people(runtime, thread)
    asked = [one.id for one in result.approvals]
    approver = Principal.vouched("approver@example.com")
    while result.status == "waiting":
        await runtime.adecide(result.approvals[0].id, Said("approve"), as_=approver)
        result = await to_people(runtime, thread)
    return {"before": before, "asked": asked, "end": _told(result), "after": await picture(runtime, thread)}


async def to_people(runtime: Runtime, thread: str) -> Result:
    """Resume until the run ends or waits for a person: an attempt that was killed may wait for its deadline."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            result = await runtime.aresume(thread)
            if result.status != "waiting" or result.approvals or result.questions:
                return result
            await asyncio.sleep(0.05)


async def picture(runtime: Runtime, thread: str) -> dict[str, Any]:
    """Everything that is known of a thread: its rows, and its state as LangGraph shows it."""
    store = runtime.store
    state = await runtime.astate(thread)
    known = await store.threads.get(thread)
    return {
        "status": str(known.status),
        "uuid": known.uuid,
        "messages": [
            {"type": one.type, "id": one.id, "tool_call_id": getattr(one, "tool_call_id", None), "text": str(one.text)}
            for one in state.values.get("messages", ())
        ],
        "operations": {
            one.id: {
                "kind": one.kind,
                "name": one.name,
                "namespace": one.namespace,
                "turn": one.turn,
                "state": one.state,
                "attempts": one.attempts,
            }
            for one in await store.operations.list(thread)
        },
        "attempts": [[one.operation_id, one.number, one.state] for one in await store.operations.attempts(thread)],
        "approvals": {one.id: one.state for one in await store.approvals.list(thread_id=thread, state=None)},
        "questions": {
            one.value["approval"]["id"]: one.id
            for one in state.interrupts
            if isinstance(one.value, dict) and "approval" in one.value
        },
    }


async def fork(runtime: Runtime, order: Order, directory: Path) -> str:
    """Fork `thread` at its `at`-th checkpoint from the end, or before its node `at`, with a request of `values` if they
    are given; the new thread's id is `to`."""
    history = await runtime.ahistory(order["thread"])
    at = order["at"]
    found = history[at] if isinstance(at, int) else next(one for one in history if at in one.next)
    at = found.checkpoint_id
    if "values" not in order:
        return (await runtime.afork(order["thread"], at=at, to=order["to"])).thread_id
    request = (await runtime.astate(order["thread"], at=at)).values["messages"][0]
    values = {"messages": [request.model_copy(update={"content": order["values"]})]}
    forked = await runtime.afork(order["thread"], at=at, values=values, as_node="__start__", to=order["to"])
    return forked.thread_id


async def recorded(runtime: Runtime, order: Order, directory: Path) -> list[str]:
    """The ids of the steps whose results are on disk."""
    operations = await runtime.store.operations.list(order["thread"])
    return [one.id for one in operations if one.kind == "step" and one.state == "succeeded"]


async def race(runtime: Runtime, order: Order, directory: Path) -> list[dict[str, Any]]:
    """Answer one thread after the other with `verb`, each at the moment when the other process does."""
    told = []
    for number, (thread, approval) in enumerate(order["threads"]):
        await _meet(directory, order["verb"], order["other"], number)
        try:
            result = await runtime.aresume(
                thread, **{order["verb"]: approval}, as_=Principal.vouched(f"{order['verb']}r@example.com")
            )
        except errors.AlreadyDecided as error:
            told.append({"lost": str(error), "decision": error.decision, "by": error.by})
        else:
            told.append({"won": True, **_told(result)})
    return told


async def _meet(directory: Path, mine: str, other: str, number: int) -> None:
    (directory / f"{mine}-{number}").touch()
    await until(lambda: (directory / f"{other}-{number}").exists())
    # Who comes last need not wait and would always go first: the winner of one race would win all that follow.
    await asyncio.sleep(random.Random(f"{mine}-{number}").uniform(0, 0.004))


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what this process waited for did not come")
        await asyncio.sleep(0)


def _told(result: Result) -> dict[str, Any]:
    return {
        "status": str(result.status),
        "reason": result.reason,
        "outcome": result.outcome,
        "approvals": [{"id": one.id, "arguments": dict(one.arguments)} for one in result.approvals],
    }


async def dispatch(runtime: Runtime, order: Order, directory: Path) -> dict[str, int]:
    """Deliver once what is due, to a webhook at `to`."""
    channel = Webhook("hook", order["to"], secret=order["secret"])
    dispatcher = Dispatcher(runtime.store.outbox, [channel])
    await dispatcher.register()
    return vars(await dispatcher.dispatch())


async def serve(runtime: Runtime, order: Order, directory: Path) -> dict[str, Any]:
    """Work until the thread's run has ended, and say how."""
    stop = asyncio.Event()
    worker = asyncio.create_task(runtime.awork(stop=stop))
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while (result := await runtime.aresult(order["thread"])).status in ("queued", "waiting", "running"):
            await asyncio.sleep(0.02)
    stop.set()
    await worker
    return {**_told(result), "sizes": result.values.get("sizes")}


async def keep(runtime: Runtime, order: Order, directory: Path) -> str:
    """Keep the order's text as an artifact; its id."""
    return (await runtime.aput_artifact(order["text"], name="kept")).sha256


async def prune(runtime: Runtime, order: Order, directory: Path) -> int:
    """Prune what is older than `older_than` seconds, but for `keep` checkpoints; how many threads."""
    pruned = await runtime.aprune(older_than=order["older_than"], keep_checkpoints=order["keep"])
    return pruned.threads.total()


JOBS: Mapping[str, Callable[[Runtime, Order, Path], Awaitable[Any]]] = {
    "migrated": migrated,
    "ask": ask,
    "see_through": seen_through,
    "complete": complete,
    "ask_many": ask_many,
    "resume": resume,
    "decide": decide,
    "vote": vote,
    "look": look,
    "dispatch": dispatch,
    "keep": keep,
    "prune": prune,
    "serve": serve,
    "carry_on": carry_on,
    "race": race,
    "recorded": recorded,
    "fork": fork,
}
