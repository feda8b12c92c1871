"""Drives one run of one thread under one lease, as far as it can go now.

Invariants: what is due is decided by standfast.graph.due. What the graph holds back is flushed before anybody is
told. The lease is given up in the transaction that parks or ends the run, which also looks for what came meanwhile.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphDrained, GraphRecursionError
from langgraph.runtime import RunControl
from langgraph.types import Interrupt
from opentelemetry.trace import Span

from standfast.checkpoint import errors, telemetry
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Rider
from standfast.checkpoint.lease import Lease, LeaseKeeper, release
from standfast.checkpoint.outgoing import StepMessages
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.store import Store
from standfast.checkpoint.threads import Run, Status
from standfast.checkpoint.waits import Wait
from standfast.graph.changed import Graph
from standfast.graph.control import DriveControl
from standfast.graph.door import graph_input
from standfast.graph.due import Ask, Done, Due, Go
from standfast.graph.events import event_of
from standfast.graph.failing import Failures
from standfast.graph.model_tokens import ModelTokens
from standfast.graph.parts import Mode, Parts
from standfast.graph.recorder import OnEvent, Recorder
from standfast.graph.result import Result, read_result
from standfast.graph.steps import SteppingSaver
from standfast.graph.tap import Tap
from standfast.tools.approval_policy import ApprovalPolicy
from standfast.tools.artifacts import ThreadArtifacts
from standfast.tools.drive import KEY, Drive
from standfast.tools.flow import Gate
from standfast.tools.halts import Later, NeedsPerson
from standfast.tools.ledger import Ledger
from standfast.tools.limits import LimitReached, Limits, Name
from standfast.tools.lineage import Lineage

MOST_CRASHES: Final = 5
_LONGEST_TIMER: Final = 86_400.0  # seconds; every step looks at the database's clock
_MODES: Final[frozenset[Mode]] = frozenset({"values", "tasks", "custom"})


class Driver:
    """One drive. `last_event` is the newest number of the run's events, `on_event` hears of each stored one.

    A drain that is requested of `control` stops it after the step under way, in nested graphs too. With
    `stream_models` the answers of models that nodes call by themselves are told of too. With `keep_on_error`
    whoever catches its error has the lease still, and says what becomes of the thread.
    """

    def __init__(
        self,
        store: Store,
        graph: Graph,
        keeper: LeaseKeeper,
        lease: Lease,
        run: Run,
        *,
        step_limit: int,
        last_event: int,
        on_event: OnEvent | None = None,
        control: RunControl | None = None,
        keep_on_error: bool = False,
        stream_models: bool = False,
        policy: ApprovalPolicy | None = None,
        name: str = "agent",
    ) -> None:
        self._store = store
        self._name = name
        self._keeper = keeper
        self._lease = lease
        self._run = run
        messages = StepMessages(store.outbox, lease.thread_id, run.id)
        self._saver = self._saver_for(run, store, lease, messages)
        self._events = Recorder(
            store.run_events, lease, run, last=last_event, flush=self._saver.aflush, on_event=on_event
        )
        self._saver.riders = self._events
        self._parts = on_event if isinstance(on_event, Parts) else None
        self._events.add("run_begin" if last_event == 0 else "run_resume")
        self._graph: Graph = copy.copy(graph)  # microseconds; compiling again would cost a millisecond
        self._graph.checkpointer = self._saver
        if self._graph.store is None:
            self._graph.store = store.memory
        self._due = Due(store, self._graph, self._saver, lease, run)
        self._limits = Limits(run, store.operations, store.children, lease, store.database.clock)
        self._limit: LimitReached | None = None
        self._artifacts = ThreadArtifacts(store.artifacts, store.sealer.codec, lease.thread_id)
        drive = Drive(
            run=run,
            lease=lease,
            ledger=Ledger(store.operations, lease, Gate(store.flow, lease, store.database.clock, parks=True)),
            operations=store.operations,
            children=store.children,
            approvals=store.approvals,
            documents=store.documents,
            memory=store.memory,
            lineage=Lineage(store.forks, run),
            clock=store.database.clock,
            messages=messages,
            artifacts=self._artifacts,
            limits=self._limits,
            request=partial(graph_input, takes_messages=True),
            tell=self._events.add,
            policy=policy or ApprovalPolicy(),
        )
        self._config: RunnableConfig = {
            "configurable": {
                "thread_id": lease.thread_id,
                KEY: drive,
                "__pregel_strict_resume": True,  # an id that is not open is refused, never guessed
            },
            "metadata": {"run_id": run.id},
            "recursion_limit": step_limit,
        }
        self._callbacks = [ModelTokens(self._events.add)] if stream_models else []
        self._failures = Failures()
        self._began: dict[str, float] = {}
        self._spans: dict[str, Span] = {}
        self._cancelled = lease.cancel_requested
        self._control = DriveControl(control)
        self._keep_on_error = keep_on_error

    async def drive(self) -> Result:
        """Go on until the run ends or waits. Raises `LeaseLost`, `GraphChanged`, `StorageUnavailable`."""
        loop = asyncio.get_running_loop()
        self._keeper.keep(self._lease)
        try:
            with self._traced() as span:
                result = await self._drive(loop)
                span.set_attribute("standfast.status", str(result.status))
                return result
        except errors.LeaseLost:
            raise
        except BaseException as error:
            # Interrupted from outside, or something that no retry mends: what has finished stays finished, and
            # the thread stays due for whoever comes next.
            await asyncio.shield(self._let_go(keep=self._keep_on_error and isinstance(error, Exception)))
            raise
        finally:
            self._keeper.drop(self._lease)
            await self._events.close()

    def _traced(self) -> AbstractContextManager[Span]:
        return telemetry.driving(
            self._run.settings.traceparent,
            graph=self._name,
            thread_id=self._lease.thread_id,
            run_id=self._run.id,
            epoch=self._lease.epoch,
        )

    async def _drive(self, loop: asyncio.AbstractEventLoop) -> Result:
        if self._lease.crashes >= MOST_CRASHES:
            return await self._end(
                Status.NEEDS_ATTENTION,
                reason=f"{self._lease.crashes} drivers in a row died on it; look at its history, then resume it",
            )
        while True:
            if self._cancelled:
                return await self._end(Status.CANCELLED, reason="cancelled on request")
            step, values = await self._due.next()
            if not isinstance(step, Done):
                self._limit = self._limit or await self._limits.before_step()
                if self._limit is not None:
                    return await self._end_at(self._limit)
            if isinstance(step, Go):
                try:
                    values = await self._go(loop, step.input)
                except _Stopped:
                    self._cancelled = self._limit is None
                    continue
                except LimitReached as limit:
                    return await self._end_at(limit)
                except (GraphDrained, Later):
                    if not self._control.drain_requested:
                        self._due.halted()
                        continue
                    # With a drain a halt says nothing about its siblings: they may stand between two steps.
                    if self._limit is not None:
                        return await self._end_at(self._limit)
                    await self._let_go()
                    return Result(self._lease.thread_id, self._run.id, Status.QUEUED, drained=True)
                except NeedsPerson as halt:
                    return await self._end(Status.NEEDS_ATTENTION, reason=str(halt))
                except errors.LeaseLost as error:
                    raise self._lease.lose("its writes were refused") from error
                except (errors.StorageUnavailable, errors.HeadMoved, errors.UsageError):
                    raise
                except Exception as error:  # noqa: BLE001 - whatever a node raises is kept for a person
                    return await self._failed(error)
                if "__interrupt__" in values:
                    continue
                step = Done()
            if isinstance(step, Done):
                return await self._finish(values)
            result = await self._park(step, values)
            if result is not None:
                return result
            self._cancelled = await self._store.threads.take_due(self._lease)

    # -- going on

    async def _go(self, loop: asyncio.AbstractEventLoop, value: Any) -> Mapping[str, Any]:
        stopped = False

        def stop() -> None:
            nonlocal stopped
            if not stopped:  # told again every moment: a second cancel would cut the node's own clean-up
                stopped = True
                work.cancel()

        def late() -> None:
            self._limit = self._limits.late()
            stop()

        left = await self._limits.seconds_left()
        if left is not None:
            self._limits.ends_at = time.monotonic() + left
        timer = None if left is None else loop.call_later(min(left, _LONGEST_TIMER), late)
        self._lease.on_cancel = lambda: loop.call_soon_threadsafe(stop)
        self._lease.on_lost = lambda: loop.call_soon_threadsafe(work.cancel)
        work = loop.create_task(self._invoke(value))
        try:
            values = await work
        except asyncio.CancelledError:
            self._lease.require()
            if stopped:
                raise _Stopped from None
            raise
        except Exception:
            if stopped:  # how a node answers to its cancellation is no failure
                raise _Stopped from None
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._lease.on_cancel = self._lease.on_lost = lambda: None
        await self._saver.aflush()
        if stopped:  # by whoever swallowed its cancellation: what it made counts as evidence, not as an end
            raise _Stopped
        return values

    async def _invoke(self, value: Any) -> Mapping[str, Any]:
        heard = _Heard()

        def hear(namespace: tuple[str, ...], mode: str, part: Any) -> None:
            if self._parts is not None:
                self._parts.hear(namespace, mode, part)
            if mode == "values":
                if not namespace:
                    heard.values = part if isinstance(part, dict) else {"output": part}
                return
            if mode == "tasks":
                self._failures.hear(namespace, part)
                if not namespace and part.get("interrupts"):
                    heard.questions.extend(part["interrupts"])
            event = event_of(namespace, mode, part)
            if event is not None:
                self._events.add(*self._timed(*event))

        tap = Tap(_MODES | (self._parts.modes if self._parts else _MODES), hear, store=self._graph.store)
        config: RunnableConfig = {
            **self._config,
            "configurable": {**self._config["configurable"], **tap.configurable},
            "callbacks": [*self._callbacks, *tap.callbacks],
        }
        parts: AsyncIterator[Any] = self._graph.astream(
            value,
            config,
            context=self._run.settings.context,
            durability="sync",
            control=self._control,
            stream_mode=[],  # all is heard by the tap
        )
        async for _ in parts:
            pass
        return {**heard.values, "__interrupt__": heard.questions} if heard.questions else heard.values

    def _timed(self, kind: str, path: tuple[str, ...], data: Any) -> tuple[str, tuple[str, ...], Any]:
        """A step's end tells how long the step has taken, in seconds."""
        now = time.monotonic()
        if kind == "step_begin":
            self._began[data["task"]] = now
            self._spans[data["task"]] = telemetry.step_begun("/".join(path))
        elif kind == "step_end":
            data["seconds"] = round(now - self._began.pop(data["task"], now), 3)
            telemetry.step_ended(self._spans.pop(data["task"], None), "/".join(path))
        return kind, path, data

    def _saver_for(self, run: Run, store: Store, lease: Lease, messages: StepMessages) -> LeasedSaver:
        if run.deadline is None and (run.budget is None or run.budget.steps is None):
            return LeasedSaver(store.database, store.sealer, lease, messages=messages, artifacts=store.artifacts)
        return SteppingSaver(
            store.database,
            store.sealer,
            lease,
            messages=messages,
            artifacts=store.artifacts,
            on_step=self._after_step,
        )

    async def _after_step(self) -> None:
        """Let no further step begin when the run is at its limit; a graph that has ended is not held up."""
        limit = await self._limits.after_step()
        if limit is not None and self._limit is None:
            self._limit = limit
            self._control.request_drain(limit.name)

    # -- ends

    async def _park(self, step: Ask, values: Mapping[str, Any]) -> Result | None:
        if not step.waits:
            return await self._end(
                Status.NEEDS_ATTENTION, reason="its question was answered, but the graph did not go on"
            )
        await self._events.close()
        await self._saver.aflush()
        reach("drive.parking")
        self._events.add("run_wait", data=[_shown(one) for one in step.waits])
        riders = self._events.take()
        parked = await self._store.waits.park(self._lease, self._run.id, step.waits, riders=riders)
        self._events.stored()
        if not parked:
            return None
        reach("drive.parked")
        return await read_result(self._store, self._lease.thread_id, values)

    async def _finish(self, values: Mapping[str, Any]) -> Result:
        reach("drive.ending")
        outcome = values.get("outcome")
        status, reason = Status.SUCCEEDED, None
        if isinstance(outcome, dict) and outcome.keys() >= _AGENTS:  # the built-in agent's
            status = _STATUS.get(outcome["status"], Status.SUCCEEDED)
            reason = outcome.get("reason")
        return await self._end(status, reason=reason, outcome=outcome, values=values)

    async def _failed(self, error: Exception) -> Result:
        await self._saver.aflush()
        reason = self._failures.reason(error)
        if isinstance(error, GraphRecursionError):
            reason = f"the limit of {self._config['recursion_limit']} steps is reached; resume it to go on"
        return await self._end(Status.NEEDS_ATTENTION, reason=reason, error=error)

    async def _end_at(self, limit: LimitReached) -> Result:
        """End the run by the name of its limit; what has been done is kept, and goes on when it is given more."""
        thread = self._lease.thread_id
        error = errors.RunLimitReached(limit.sentence, thread_id=thread, limit=limit.name)
        state = await self._graph.aget_state({"configurable": {"thread_id": thread}})
        return await self._end(Status.FAILED, reason=limit.name, limit=limit.name, values=state.values, error=error)

    async def _end(
        self,
        status: Status,
        *,
        reason: str | None = None,
        limit: Name | None = None,
        outcome: Any = None,
        values: Mapping[str, Any] | None = None,
        error: BaseException | None = None,
    ) -> Result:
        await self._events.close()
        await self._saver.aflush()
        output = await self._output(values)
        self._events.add("run_end", data={"status": str(status), "reason": reason})
        await self._store.threads.end(
            self._lease,
            self._run.id,
            status,
            reason=reason,
            outcome=outcome,
            limit=limit,
            riders=[*self._events.take(), *output],
        )
        self._events.stored()
        telemetry.run_ended(self._name, str(status))
        reach("drive.ended")
        return Result(
            thread_id=self._lease.thread_id,
            run_id=self._run.id,
            status=status,
            values=values or {},
            outcome=outcome,
            reason=reason,
            error=error,
        )

    async def _output(self, values: Mapping[str, Any] | None) -> list[Rider]:
        """What a child puts out for whoever joins it, kept with its end."""
        if self._run.parent_thread_id is None or values is None:
            return []
        output = await self._artifacts.settle(dict(values), name="output")
        return [self._store.children.put_out(self._lease.thread_id, self._run.id, output)]

    async def _let_go(self, *, keep: bool = False) -> None:
        self._events.add("run_left")
        try:
            await self._saver.aflush()
            if not keep:
                await release(self._store.database, self._lease)
        except errors.StandfastError:
            pass  # the lease runs out by itself, and the next driver goes on from what is committed


@dataclass
class _Heard:
    """What one call of the graph has told of its state, and what it asks."""

    values: Mapping[str, Any] = field(default_factory=dict)
    questions: list[Interrupt] = field(default_factory=list)


class _Stopped(Exception):
    """The run was cancelled while the graph was at work."""


_AGENTS: Final = {"status", "answer", "effects", "rejected"}
_STATUS: Final = {
    "failed": Status.FAILED,
    "unknown_outcome": Status.NEEDS_ATTENTION,
}


def _shown(wait: Wait) -> dict[str, Any]:
    return {"kind": wait.kind, "id": wait.id, "approval": wait.approval_id, "name": wait.name, "until": wait.until}
