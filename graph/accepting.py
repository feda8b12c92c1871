"""From a request to a run that can be accepted: checked, its documents read, its paths made absolute.

Invariant: what any process needs to go on the same, in any folder, days later, is in the `NewRun`.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypedDict, get_args

from standfast.checkpoint import errors
from standfast.checkpoint.budget import Budget
from standfast.checkpoint.settings import Settings
from standfast.checkpoint.store import Store
from standfast.checkpoint.telemetry import traceparent
from standfast.checkpoint.threads import NewRun, OnBusy
from standfast.checkpoint.threads import Settings as RunSettings
from standfast.graph.door import graph_input, text_of, thread_id_of
from standfast.graph.ingest import collect
from standfast.graph.servable import require_fields
from standfast.nodes.models import default_model, load_model
from standfast.tools.operations import Registry
from standfast.tools.principals import Principal
from standfast.tools.readers import ReadDocument, SkippedFile

Deadline = float | timedelta | datetime
MOST_URGENT: Final = 1000
OnFile = Callable[[ReadDocument | SkippedFile], None]


@dataclass(frozen=True)
class GraphSpec:
    """What is kept of a graph with its runs, and what it takes."""

    name: str
    version: str
    fingerprint: str
    takes_messages: bool
    fields: frozenset[str] | None  # that a request may name; None: any
    operations: Registry | None
    model: str | None
    asks_named_model: bool


@dataclass(frozen=True)
class Options:
    """What can be said with a request; see `AsyncRuntime.ainvoke`."""

    thread_id: object = None
    as_: Principal | None = None
    token: str | None = field(default=None, repr=False)
    documents: Sequence[str | Path] | None = None
    context: Any = None
    model: str | None = None
    reports_dir: str | Path | None = None
    report: OnFile | None = None
    client_key: str | None = None
    on_busy: OnBusy = "refuse"
    deadline: Deadline | None = None
    budget: Budget | None = None
    priority: int = 0


class RepeatedOptions(TypedDict, total=False):
    """What can be said of a request that is made again and again."""

    as_: Principal | None
    token: str | None
    documents: Sequence[str | Path] | None
    context: Any
    model: str | None
    reports_dir: str | Path | None
    report: OnFile | None


class RequestOptions(RepeatedOptions, total=False):
    """`Options` as keyword arguments."""

    thread_id: object
    client_key: str | None
    on_busy: OnBusy
    deadline: Deadline | None
    budget: Budget | None
    priority: int


def principal_of(given: Principal | None) -> Principal:
    """Who acts: whoever was named, else the user of this process, on his own word."""
    return given or Principal.vouched(Principal.operating_system().name)


async def new_run(store: Store, spec: GraphSpec, settings: Settings, request: Any, options: Options) -> NewRun:
    """The run to be accepted. Raises `InvalidRequest` and `InvalidThreadId`; nothing has been done then."""
    run_id = str(uuid.uuid4())
    thread = f"thread-{uuid.UUID(run_id).hex[:16]}" if options.thread_id is None else thread_id_of(options.thread_id)
    principal = principal_of(options.as_)
    if options.on_busy not in get_args(OnBusy):
        raise errors.InvalidRequest(f"on_busy is refuse, queue, withdraw or interrupt, not {options.on_busy!r}")
    given = graph_input(request, run_id, takes_messages=spec.takes_messages)
    if spec.fields is not None:
        require_fields(given, spec.fields, then=f"it has {', '.join(sorted(spec.fields))}. Nothing was accepted")
    place = traceparent(run_id)
    run_settings = RunSettings(context=options.context, traceparent=place)
    model = collection = None
    if options.model is not None and not spec.asks_named_model:
        raise errors.InvalidRequest(
            f"graph {spec.name!r} does not take a model by name, so {options.model!r} would not be asked; "
            "leave it out, or use build_agent() without a model of its own"
        )
    if spec.asks_named_model:
        model = options.model or spec.model or default_model()
        await asyncio.to_thread(load_model, model)  # a run whose model cannot be used is refused, not accepted
    if spec.operations is not None:
        directory = await asyncio.to_thread(_absolute, options.reports_dir or settings.reports_dir or "reports")
        run_settings = RunSettings(options.context, directory, settings.reports_url, place)
        if isinstance(options.documents, str | Path):
            raise errors.InvalidRequest(f"documents is a list of paths, such as [{str(options.documents)!r}], not one")
        if options.documents:
            collection = await collect(store.documents, options.documents, report=options.report)
    key = None if options.client_key is None else text_of(options.client_key, "client key")
    return NewRun(
        thread_id=thread,
        run_id=run_id,
        graph=spec.name,
        version=spec.version,
        fingerprint=spec.fingerprint,
        input=given,
        requested_by=principal.name,
        vouched=principal.on_word,
        verified_by=principal.verified_by,
        tenant=principal.tenant,
        model=model,
        collection_id=collection,
        settings=run_settings,
        client_key=key,
        input_digest=None if key is None else _digest(store, request, options, collection),
        on_busy=options.on_busy,
        deadline=await deadline_of(store, options.deadline),
        budget=budget_of(options.budget),
        priority=priority_of(options.priority),
    )


async def deadline_of(store: Store, given: Deadline | None) -> datetime | None:
    """A deadline as a moment; seconds and durations count from now, by the database's clock.

    Raises `InvalidRequest`.
    """
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.utcoffset() is None:
            raise errors.InvalidRequest(f"a deadline is a datetime with a time zone, not {given!r}")
        return given
    try:
        left = given if isinstance(given, timedelta) else timedelta(seconds=given)
        if left <= timedelta(0):
            raise errors.InvalidRequest(f"a deadline lies ahead, so it is not in {left}")
        return await store.database.clock() + left
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.InvalidRequest(f"a deadline is seconds, a timedelta or a datetime, not {given!r}") from error


def priority_of(given: int) -> int:
    """A usable priority. Raises `InvalidRequest`."""
    if not isinstance(given, int) or isinstance(given, bool) or abs(given) > MOST_URGENT:
        raise errors.InvalidRequest(
            f"a priority is a whole number from -{MOST_URGENT} to {MOST_URGENT}, the greater the sooner, not {given!r}"
        )
    return given


def budget_of(given: Budget | None) -> Budget | None:
    """A usable budget. Raises `InvalidRequest`."""
    if given is not None and not isinstance(given, Budget):
        raise errors.InvalidRequest(f"a budget is a Budget, such as Budget(model_calls=20), not {given!r}")
    return given


def _digest(store: Store, request: Any, options: Options, collection: str | None) -> str:
    """What a client key stands for: the request as it was given, where, and over which documents."""
    named = None if options.thread_id is None else str(options.thread_id)
    whole = store.sealer.codec.encode([request, named, options.context, collection], where="request")
    return hashlib.sha256(whole).hexdigest()


def _absolute(path: str | Path) -> str:
    return str(Path(path).expanduser().absolute())
