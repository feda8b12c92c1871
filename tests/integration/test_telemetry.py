"""Traces and metrics, as an SDK of the program's own gets them: one trace for a run, and no values."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from standfast.checkpoint.lease import Lease
from standfast.graph import Effect, Policy, RetryPolicy, Runtime, join, operation, spawn
from tests.crash.support.scripted_model import call, script

Open = Callable[..., Any]
SECRET = "s3cret-value"

EXPORTER = InMemorySpanExporter()
READER = InMemoryMetricReader()

PROCESS = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
from tests.integration.test_telemetry import asking
from standfast.graph import Runtime

async def main():
    async with Runtime(asking(), database_url=sys.argv[1]) as runtime:
        await runtime.aresume("t", "so")
    for span in exporter.get_finished_spans():
        print(f"{span.context.trace_id:032x}")

asyncio.run(main())
"""


class Note(TypedDict, total=False):
    text: str


async def ask(state: Note) -> Note:
    return {"text": interrupt(SECRET)}


def asking() -> StateGraph[Note]:
    graph = StateGraph(Note)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    return graph


@pytest.fixture(scope="module", autouse=True)
def sdk() -> None:
    """What a program does that wants to see something; once in a process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([READER]))


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    EXPORTER.clear()


def spans() -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in EXPORTER.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def traces(found: dict[str, list[ReadableSpan]]) -> set[int]:
    return {one.context.trace_id for some in found.values() for one in some if one.context is not None}


def measured() -> dict[str, float]:
    """The sums and last values of all instruments, over their attributes."""
    found: dict[str, float] = {}
    data = READER.get_metrics_data()
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    value = getattr(point, "value", None)
                    found[metric.name] = found.get(metric.name, 0) + (point.count if value is None else value)  # type: ignore[union-attr]
    return found


async def test_a_run_is_one_trace_across_processes_and_goes_on_after_a_wait(database_url: str) -> None:
    async with Runtime(asking(), database_url=database_url) as runtime:
        await runtime.ainvoke({}, thread_id="t")
    [here] = traces(spans())
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", PROCESS, database_url, stdout=subprocess.PIPE)
    out, _ = await done.communicate()
    assert {f"{here:032x}"} == set(out.decode().split())


async def test_a_run_belongs_to_the_trace_of_its_caller_and_its_children_too(database_url: str) -> None:
    async def parent(state: Note) -> Note:
        await join(await spawn({"text": "a"}, graph="child"))
        return {}

    graph, child = StateGraph(Note), StateGraph(Note)
    graph.add_node("parent", parent)
    graph.add_edge(START, "parent")
    child.add_node("quick", lambda state: {"text": "b"})
    child.add_edge(START, "quick")
    async with Runtime(graph, database_url=database_url, name="parent") as first:
        second = Runtime(child, database_url=database_url, name="child")
        second.join(first)
        with trace.get_tracer("test").start_as_current_span("caller") as caller:
            await first.ainvoke({}, thread_id="t")
        [one] = [one for one in await first.athreads() if one.id != "t"]
        await second.aresume(one.id)
        await first.aresume("t")
    found = spans()
    assert {caller.get_span_context().trace_id} == traces(found)
    assert {"caller", "drive parent", "drive child", "step parent", "step quick"} == set(found)


@pytest.mark.one_drive("the spans of one drive are told")
async def test_attempts_are_spans_within_their_drive_and_no_value_is_in_them(opened: Open) -> None:
    tries = iter([ValueError(SECRET), ConnectionError(SECRET), None])

    @operation(policy=Policy(effect=Effect.READ, retry=RetryPolicy(3, 0.001)))
    async def ping(text: str) -> str:
        """Say it back."""
        error = next(tries)
        if isinstance(error, ConnectionError):
            raise error
        return text

    next(tries)
    before = measured()
    async with opened(ping) as runtime:
        result = await runtime.ainvoke(script([call("ping", text=SECRET)]), thread_id="t")
    assert "succeeded" == result.status
    found = spans()
    [drive] = found["drive agent"]
    first, second = found["tool ping"]
    assert drive.context is not None
    assert {drive.context.trace_id} == traces(found)
    assert (1, 2) == tuple(one.attributes["standfast.attempt"] for one in (first, second) if one.attributes)
    assert ["ERROR", "UNSET"] == [one.status.status_code.name for one in (first, second)]
    assert SECRET not in "".join(one.to_json() for some in found.values() for one in some)
    after = measured()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert 1 == grown["standfast.runs"]
    assert 3 == grown["standfast.operations"]  # two calls of the model and one of the tool
    assert 4 == grown["standfast.attempts"] == grown["standfast.attempt.duration"]
    assert grown["standfast.steps"] >= 3


async def test_a_worker_measures_what_waits(database_url: str) -> None:
    async with Runtime(asking(), database_url=database_url, name="served") as runtime:
        await Runtime.asubmit(runtime, {}, thread_id="t")
        await runtime.store.database.fetch_none(
            b"update threads set graph = 'nobody', due_at = standfast.now() - interval '1 hour'"
        )
        stop = asyncio.Event()
        work = asyncio.create_task(runtime.awork(stop=stop))
        async with asyncio.timeout(20):
            while measured().get("standfast.due") != 1:
                await asyncio.sleep(0.05)
        stop.set()
        await work
    assert 3600 <= measured()["standfast.due.age"] < 3700
    assert 0 == measured()["standfast.approvals.waiting"]


def test_a_lost_lease_is_counted() -> None:
    before = measured().get("standfast.leases.lost", 0)
    lease = Lease("t", 1, "me", 10.0, None)
    lease.lose("somebody else has it")
    lease.lose("and once more")
    assert 1 == measured()["standfast.leases.lost"] - before
