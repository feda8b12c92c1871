"""Child threads: a part of a run's work as a thread of its own, from nodes and from operations.

Invariant: a child is known by its place in the run (thread, run, task, how many were begun there before), so a node
that runs again finds the children that it has begun. They inherit owner, tenant, context, deadline and budget, and are
cancelled with their parent. Joining one is a wait: it holds nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from langgraph.config import get_config

from standfast.checkpoint import errors
from standfast.checkpoint.budget import Budget
from standfast.checkpoint.child import Child, ChildEnd
from standfast.checkpoint.children import NewChild
from standfast.checkpoint.operations import Call
from standfast.tools.digests import call_digest
from standfast.tools.drive import Drive, drive_of
from standfast.tools.operations import Effect
from standfast.tools.recorded import ordinal
from standfast.tools.waits import ChildWait, Seconds, all_of, duration, first_of

MOST: Final = 10_000
"""Children of one map."""


class _Inherited:
    def __repr__(self) -> str:
        return "INHERITED"


INHERITED: Final = _Inherited()


async def spawn(
    request: Any,
    *,
    graph: str | None = None,
    version: str = "1",
    context: Any = INHERITED,
    deadline: Seconds | None = None,
    budget: Budget | None = None,
) -> Child:
    """Begin a thread for a part of the work, and go on; whichever worker serves its graph drives it.

    `request` is text, or a mapping of the state fields of its graph: by default this one, else the `graph` that is
    served under this name and `version`. `deadline` (seconds from now) and `budget` narrow what it has from its parent;
    what it spends on models, its parent spends too. Called again after a crash, or after a wait in the node, it
    returns the same child. Raises `InvalidRequest`, `UnstorableValue`, and `OperationMismatch` if the node asks for
    something else at this place than before: take moments and random numbers from `now()`, `random()` and `uuid()`.
    """
    made = await _make("spawn", [request], graph, version, context, deadline, budget, width=None)
    return made[0]


def end_of(child: Child, *, timeout: Seconds | None = None) -> ChildWait:
    """The end of a child, for `first_of` and `all_of`."""
    if not isinstance(child, Child):
        raise errors.InvalidRequest(f"a child is what spawn() returns, not {child!r:.60}")
    return ChildWait(child, None if timeout is None else duration(timeout, "timeout"))


async def join(child: Child, *, timeout: Seconds | None = None) -> ChildEnd | None:
    """Wait until a child has ended, or return None when `timeout` seconds have passed. Nothing is held meanwhile.

    A child that needs attention has not ended: it is retried or cancelled by a person. Raises `UnknownThread` if it is
    not there any more.
    """
    ended = await first_of(end_of(child, timeout=timeout))
    return None if ended.child is None else (await _ends([child], [ended.child]))[0]


async def map(
    requests: Sequence[Any],
    *,
    graph: str | None = None,
    version: str = "1",
    concurrency: int = 10,
    context: Any = INHERITED,
    deadline: Seconds | None = None,
    budget: Budget | None = None,
) -> list[ChildEnd]:
    """Begin a child for each request and wait for all; at most `concurrency` of them are unfinished at a time.

    The ends come in the order of the requests, whatever they are. A child that waits, or needs attention, keeps its
    place. The options are those of `spawn`, for each child.
    """
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        raise errors.InvalidRequest(f"a map's concurrency is a whole number from 1 on, not {concurrency!r}")
    if len(requests) > MOST:
        raise errors.InvalidRequest(f"a map has at most {MOST:,} requests, not {len(requests):,}; make several of it")
    if not requests:
        return []
    made = await _make("map", requests, graph, version, context, deadline, budget, width=concurrency)
    ended = await all_of(*(end_of(one) for one in made))
    return await _ends(made, [one.child or "gone" for one in ended])


async def _ends(children: Sequence[Child], how: Sequence[str]) -> list[ChildEnd]:
    outputs = await drive_of(get_config()).children.outputs(children)
    ends = []
    for child, status in zip(children, how, strict=True):
        if child not in outputs or status == "gone":
            raise errors.UnknownThread(
                f"the child {child.thread_id!r} is not there any more", thread_id=child.thread_id
            )
        output, reason = outputs[child]
        ends.append(ChildEnd(child, status, output, reason))  # type: ignore[arg-type]
    return ends


async def _make(
    verb: str,
    requests: Sequence[Any],
    graph: str | None,
    version: str,
    context: Any,
    deadline: Seconds | None,
    budget: Budget | None,
    *,
    width: int | None,
) -> list[Child]:
    if graph is not None and (not isinstance(graph, str) or not graph or "@" in graph):
        raise errors.InvalidRequest(f"a graph is known by the name that it is served under, not {graph!r}")
    if budget is not None and not isinstance(budget, Budget):
        raise errors.InvalidRequest(f"a budget is a Budget, such as Budget(model_calls=20), not {budget!r}")
    config = get_config()
    drive = drive_of(config)
    namespace = config["configurable"].get("checkpoint_ns", "")
    number = ordinal(config, verb)
    arguments = {
        "graph": graph,
        "requests": [hashlib.sha256(drive.children.digest_input(one)).hexdigest() for one in requests],
    }

    def place(*line: str) -> str:
        return "\0".join((*line, namespace, str(number), verb))

    line, inherited = await drive.lineage.placed(lambda *line: _operation(place(*line)))
    if not inherited:
        await _refuse_in_fork(drive)
    call = Call(
        id=_operation(place(*line)),
        run_id=drive.run.id,
        kind="step",
        name=verb,
        namespace=namespace,
        turn=0,
        index=number,
        effect=Effect.TRANSACTIONAL,
        digest=call_digest(verb, arguments),
        arguments=arguments,
    )
    settings = drive.run.settings
    if context is not INHERITED:
        settings = replace(settings, context=context)
    latest = None if deadline is None else await drive.clock() + duration(deadline, "deadline")
    new = []
    for index, request in enumerate(requests):
        child = _child(f"{place(*line)}\0{index}")
        new.append(
            NewChild(
                child,
                drive.request(request, child.run_id),
                settings,
                graph,
                None if graph is None else version,
                latest,
                _narrowed(budget, drive),
            )
        )
    return await drive.children.make(drive.lease, call, new, width=width)


async def _refuse_in_fork(drive: Drive) -> None:
    fork = await drive.lineage.fork()
    if fork is not None and not fork.effects:
        raise errors.InvalidRequest(
            f"thread {drive.run.thread_id!r} is a fork that may have no effects, and a child could have some; "
            "fork with allow_effects=True",
            thread_id=drive.run.thread_id,
        )


def _operation(place: str) -> str:
    return f"step-{_hash(place).hex()[:32]}"


def _child(place: str) -> Child:
    run_id = str(UUID(bytes=_hash(place)[:16], version=5))
    return Child(f"child-{_hash(place)[16:].hex()[:16]}", run_id)


def _hash(place: str) -> bytes:
    return hashlib.sha256(place.encode("utf-8", "surrogatepass")).digest()


def _narrowed(budget: Budget | None, drive: Drive) -> Budget | None:
    """Of the parent's budget only its steps are copied: each run counts its own. The rest is shared by the family."""
    steps = None if drive.run.budget is None else drive.run.budget.steps
    if steps is None:
        return budget
    given = budget or Budget()
    return replace(given, steps=steps if given.steps is None else min(steps, given.steps))


__all__ = ["INHERITED", "MOST", "Child", "ChildEnd", "end_of", "join", "map", "spawn"]
