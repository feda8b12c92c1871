"""Traces and metrics through opentelemetry-api: nothing is measured or sent unless the program sets up an SDK.

Invariant: one run is one trace, whichever processes drive it: the trace's place is kept with the run. Names and ids
stand in attributes, never a value of the state, an argument or a result.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry.context import Context
from opentelemetry.metrics import get_meter, get_meter_provider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, get_current_span, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_TRACER: Final = get_tracer("standfast")
_METER: Final = get_meter("standfast")
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_FIELD: Final = "traceparent"

_RUNS: Final = _METER.create_counter("standfast.runs", description="Runs that have come to an end, or need attention")
_STEPS: Final = _METER.create_counter("standfast.steps", description="Steps that have ended")
_OPERATIONS: Final = _METER.create_counter("standfast.operations", description="Operations and model calls with an end")
_ATTEMPTS: Final = _METER.create_counter("standfast.attempts", description="Attempts at operations and model calls")
_SECONDS: Final = _METER.create_histogram("standfast.attempt.duration", unit="s", description="How long attempts take")
_LOST: Final = _METER.create_counter("standfast.leases.lost", description="Leases that were lost while driving")
_APPROVALS: Final = _METER.create_gauge("standfast.approvals.waiting", description="Approvals that wait for people")
_DUE: Final = _METER.create_gauge("standfast.due", description="Threads that are due and that nobody drives")
_AGE: Final = _METER.create_gauge("standfast.due.age", unit="s", description="How long the oldest of them is due")


def measured() -> bool:
    """Whether the program has set up an SDK for metrics: what only metrics need is not read without one."""
    return not type(get_meter_provider()).__module__.startswith("opentelemetry.metrics")


def traceparent(run_id: str) -> str:
    """The place of a new run in a trace, as W3C writes it: that of the caller, else a trace of its own."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    # Made from the run's id, so that processes agree on it whether the one that accepted it traces or not.
    root = hashlib.sha256(run_id.encode()).hexdigest()[:16]
    return carrier.get(_FIELD) or f"00-{uuid.UUID(run_id).hex}-{root}-01"


@contextmanager
def driving(parent: str | None, *, graph: str, thread_id: str, run_id: str, epoch: int) -> Iterator[Span]:
    """The span of one drive, in the trace of its run."""
    context = _PROPAGATOR.extract({} if parent is None else {_FIELD: parent}, Context())
    attributes: dict[str, str | int] = {
        "standfast.graph": graph,
        "standfast.thread.id": thread_id,
        "standfast.run.id": run_id,
        "standfast.epoch": epoch,
    }
    with _TRACER.start_as_current_span(
        f"drive {graph}",
        context,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,  # its message may hold values
        set_status_on_exception=False,
    ) as span:
        yield span


def run_ended(graph: str, status: str) -> None:
    """A run has come to an end, or needs attention."""
    _RUNS.add(1, {"standfast.graph": graph, "standfast.status": status})


def step_begun(path: str) -> Span:
    """A step has begun; the span is ended by `step_ended`."""
    return _TRACER.start_span(f"step {path}")


def step_ended(span: Span | None, path: str) -> None:
    """A step has ended."""
    if span is not None:
        span.end()
    _STEPS.add(1, {"standfast.step": path})


@contextmanager
def attempting(kind: str, name: str, operation_id: str, attempt: int) -> Iterator[Span]:
    """The span of one attempt; what is called inside can belong to it."""
    attributes: dict[str, str | int] = {
        "standfast.operation": name,
        "standfast.operation.id": operation_id,
        "standfast.attempt": attempt,
    }
    with _TRACER.start_as_current_span(
        f"{kind} {name}",
        kind=SpanKind.CLIENT,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


def attempt_ended(kind: str, name: str, state: str, seconds: float, failure_class: str | None) -> None:
    """An attempt has ended so."""
    attributes = {"standfast.kind": kind, "standfast.operation": name, "standfast.state": state}
    _ATTEMPTS.add(1, attributes)
    _SECONDS.record(seconds, attributes)
    if failure_class is not None:
        get_current_span().set_status(Status(StatusCode.ERROR, failure_class))


def operation_ended(kind: str, name: str, state: str) -> None:
    """An operation or model call has its end."""
    _OPERATIONS.add(1, {"standfast.kind": kind, "standfast.operation": name, "standfast.state": state})


def lease_lost() -> None:
    """A lease was lost while its thread was driven."""
    _LOST.add(1)


def backlog(*, approvals: int, due: int, age: float) -> None:
    """What waits in the database."""
    _APPROVALS.set(approvals)
    _DUE.set(due)
    _AGE.set(age)
