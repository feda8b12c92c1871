"""`Runtime`: the runtime with a blocking twin of each async method.

Invariant: `async with` runs everything on the caller's loop, `with` on one thread of the runtime's own, which
also works inside a notebook's running loop. A handle opened one way is refused the other way, by name; a
blocking call on the runtime's own thread would wait for itself, and is refused too.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal
from langgraph.types import StateSnapshot

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.artifact import Artifact
from standfast.checkpoint.artifacts import KeptArtifact
from standfast.checkpoint.audit import Anchor, Entry, Verification
from standfast.checkpoint.fleet import Unserved, WorkerRow
from standfast.checkpoint.flow import Limit, LimitRow
from standfast.checkpoint.groups import Member
from standfast.checkpoint.listing import OpenWait, RunRow
from standfast.checkpoint.outbox import Delivery, Message
from standfast.checkpoint.run_events import RunEvent
from standfast.checkpoint.schedules import Schedule
from standfast.checkpoint.threads import Thread
from standfast.graph.history import Diff, History
from standfast.graph.pictures.diagram import Picture
from standfast.graph.result import Result
from standfast.graph.retention import Pruned
from standfast.graph.runtime import AsyncRuntime
from standfast.graph.time_travel import At
from standfast.graph.timeline import Ledger, Timeline
from standfast.tools.artifacts import Source
from standfast.tools.dispatcher import Dispatched
from standfast.tools.principals import Principal

_STOP_SECONDS: Final = 0.1  # how often a blocking worker looks whether it should stop

P = ParamSpec("P")
T = TypeVar("T")


class Runtime(AsyncRuntime):
    """A durable runtime for one graph, for `with` and for `async with`. See `AsyncRuntime` for its arguments.

    Each `averb` has a blocking twin `verb` with the same arguments.
    """

    _portal: BlockingPortal | None = None
    _portal_context: AbstractContextManager[BlockingPortal] | None = None
    _thread: int | None = None

    def __enter__(self) -> Self:
        context = start_blocking_portal("asyncio", name="standfast-runtime")
        self._portal = context.__enter__()
        self._portal_context = context
        self._thread = self._portal.call(threading.get_ident)
        try:
            self._wait(self.__aenter__)
        except BaseException:
            self._close_portal()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._wait(self.__aexit__, *exc)
        finally:
            self._close_portal()

    def open(self) -> Self:
        """Open it as `with` does, for a notebook or a prompt, where no block holds it open; `close` it at the end."""
        return self.__enter__()

    def close(self) -> None:
        """Close what `open` opened."""
        self.__exit__(None, None, None)

    async def aopen(self) -> Self:
        """Open it as `async with` does; `aclose` it at the end."""
        return await self.__aenter__()

    async def aclose(self) -> None:
        """Close what `aopen` opened."""
        await self.__aexit__(None, None, None)

    def _close_portal(self) -> None:
        context, self._portal_context, self._portal = self._portal_context, None, None
        if context is not None:
            context.__exit__(None, None, None)

    @property
    def on_callers_loop(self) -> bool:
        """Whether it was opened with `async with`."""
        return self._portal is None

    def invoke(self, request: Any, **options: Any) -> Result:
        """Blocking twin of `ainvoke`."""
        return self._wait(lambda: self.ainvoke(request, **options))

    def submit(self, request: Any, **options: Any) -> Result:
        """Blocking twin of `asubmit`."""
        return self._wait(lambda: self.asubmit(request, **options))

    def resume(self, thread_id: object, *answer: Any, **options: Any) -> Result:
        """Blocking twin of `aresume`."""
        return self._wait(lambda: self.aresume(thread_id, *answer, **options))

    def cancel(self, thread_id: object) -> Result:
        """Blocking twin of `acancel`."""
        return self._wait(self.acancel, thread_id)

    def state(self, thread_id: object, *, at: str | None = None, whole: bool = False) -> StateSnapshot:
        """Blocking twin of `astate`."""
        return self._wait(lambda: self.astate(thread_id, at=at, whole=whole))

    def history(self, thread_id: object, *, limit: int | None = None, before: str | None = None) -> History:
        """Blocking twin of `ahistory`."""
        return self._wait(lambda: self.ahistory(thread_id, limit=limit, before=before))

    def diff(self, before: At, after: At) -> Diff:
        """Blocking twin of `adiff`."""
        return self._wait(lambda: self.adiff(before, after))

    def fork(self, thread_id: object, **options: Any) -> Result:
        """Blocking twin of `afork`."""
        return self._wait(lambda: self.afork(thread_id, **options))

    def timeline(self, thread_id: object) -> Timeline:
        """Blocking twin of `atimeline`."""
        return self._wait(self.atimeline, thread_id)

    def ledger(self, thread_id: object) -> Ledger:
        """Blocking twin of `aledger`."""
        return self._wait(self.aledger, thread_id)

    def picture(self, thread_id: object = None) -> Picture:
        """Blocking twin of `apicture`."""
        return self._wait(self.apicture, thread_id)

    def threads(self, **filters: Any) -> Sequence[Thread]:
        """Blocking twin of `athreads`."""
        return self._wait(lambda: self.athreads(**filters))

    def runs(self, **filters: Any) -> Sequence[RunRow]:
        """Blocking twin of `aruns`."""
        return self._wait(lambda: self.aruns(**filters))

    def open_waits(self, **filters: Any) -> Sequence[OpenWait]:
        """Blocking twin of `aopen_waits`."""
        return self._wait(lambda: self.aopen_waits(**filters))

    def workers(self) -> Sequence[WorkerRow]:
        """Blocking twin of `aworkers`."""
        return self._wait(self.aworkers)

    def unserved(self) -> Sequence[Unserved]:
        """Blocking twin of `aunserved`."""
        return self._wait(self.aunserved)

    def audit(self, thread_id: object) -> Sequence[Entry]:
        """Blocking twin of `aaudit`."""
        return self._wait(self.aaudit, thread_id)

    def export_audit(self, thread_id: object = None) -> Iterator[dict[str, Any]]:
        """Blocking twin of `aexport_audit`."""
        return self._one_by_one(self.aexport_audit(thread_id))

    def verify_audit(self, *, expected: Anchor | None = None) -> Verification:
        """Blocking twin of `averify_audit`."""
        return self._wait(lambda: self.averify_audit(expected=expected))

    def anchor_audit(self) -> Anchor | None:
        """Blocking twin of `aanchor_audit`."""
        return self._wait(self.aanchor_audit)

    def set_member(self, group: str, principal: str, **options: Any) -> bool:
        """Blocking twin of `aset_member`."""
        return self._wait(lambda: self.aset_member(group, principal, **options))

    def members(self, group: str | None = None, **options: Any) -> Sequence[Member]:
        """Blocking twin of `amembers`."""
        return self._wait(lambda: self.amembers(group, **options))

    def retry(self, thread_id: object, **more: Any) -> Thread:
        """Blocking twin of `aretry`."""
        return self._wait(lambda: self.aretry(thread_id, **more))

    def release(self, thread_id: object) -> str:
        """Blocking twin of `arelease`."""
        return self._wait(self.arelease, thread_id)

    def park(self, thread_id: object, reason: str) -> None:
        """Blocking twin of `apark`."""
        return self._wait(self.apark, thread_id, reason)

    def deliveries(self, **filters: Any) -> Sequence[Delivery]:
        """Blocking twin of `adeliveries`."""
        return self._wait(lambda: self.adeliveries(**filters))

    def message(self, message_id: str) -> tuple[Message, Sequence[Delivery]]:
        """Blocking twin of `amessage`."""
        return self._wait(self.amessage, message_id)

    def resend(self, message_id: str | None = None, **options: Any) -> int:
        """Blocking twin of `aresend`."""
        return self._wait(lambda: self.aresend(message_id, **options))

    def dispatch(self) -> Dispatched:
        """Blocking twin of `adispatch`."""
        return self._wait(self.adispatch)

    def forget_channel(self, name: str) -> None:
        """Blocking twin of `aforget_channel`."""
        return self._wait(self.aforget_channel, name)

    def artifacts(self, **filters: Any) -> Sequence[KeptArtifact]:
        """Blocking twin of `aartifacts`."""
        return self._wait(lambda: self.aartifacts(**filters))

    def put_artifact(self, source: Source, **options: Any) -> Artifact:
        """Blocking twin of `aput_artifact`."""
        return self._wait(lambda: self.aput_artifact(source, **options))

    def read_artifact(self, artifact: Artifact | str) -> bytes:
        """Blocking twin of `aread_artifact`."""
        return self._wait(self.aread_artifact, artifact)

    def save_artifact(self, artifact: Artifact | str, path: Path) -> None:
        """Blocking twin of `asave_artifact`."""
        return self._wait(self.asave_artifact, artifact, path)

    def sweep_artifacts(self) -> int:
        """Blocking twin of `asweep_artifacts`."""
        return self._wait(self.asweep_artifacts)

    def prune(self, **options: Any) -> Pruned:
        """Blocking twin of `aprune`."""
        return self._wait(lambda: self.aprune(**options))

    def work(self, *, stop: threading.Event | None = None, **options: Any) -> None:
        """Blocking twin of `awork`: until `stop` is set or Ctrl-C, both of which drain."""

        async def working() -> None:
            stopping = asyncio.Event()
            relay = asyncio.create_task(_relay(stop, stopping))
            try:
                await self.awork(stop=stopping, **options)
            finally:
                relay.cancel()

        self._wait(working)

    def approvals(
        self, *, thread_id: object = None, state: str | None = "open", limit: int | None = 100
    ) -> list[Approval]:
        """Blocking twin of `aapprovals`."""
        return self._wait(lambda: self.aapprovals(thread_id=thread_id, state=state, limit=limit))

    def principal(self, as_: Principal | None = None, *, token: str | None = None) -> Principal:
        """Blocking twin of `aprincipal`."""
        return self._wait(lambda: self.aprincipal(as_, token=token))

    def result(self, thread_id: object, *, run_id: str | None = None, timeout: float | None = None) -> Result:
        """Blocking twin of `aresult`."""
        return self._wait(lambda: self.aresult(thread_id, run_id=run_id, timeout=timeout))

    def emit(self, name: str, payload: Any = None, **options: Any) -> int | None:
        """Blocking twin of `aemit`."""
        return self._wait(lambda: self.aemit(name, payload, **options))

    def complete(self, operation_id: str, result: Any = None, **options: Any) -> None:
        """Blocking twin of `acomplete`."""
        return self._wait(lambda: self.acomplete(operation_id, result, **options))

    def stream(self, thread_id: object, *, after: int = 0, run_id: str | None = None) -> Iterator[RunEvent]:
        """Blocking twin of `astream`."""
        return self._one_by_one(self.astream(thread_id, after=after, run_id=run_id))

    def stream_parts(self, request: Any, **options: Any) -> Iterator[Any]:
        """Blocking twin of `astream_parts`."""
        return self._one_by_one(self.astream_parts(request, **options))

    def set_limit(self, limit: Limit, **who: Any) -> None:
        """Blocking twin of `aset_limit`."""
        return self._wait(lambda: self.aset_limit(limit, **who))

    def clear_limit(self, key: str) -> bool:
        """Blocking twin of `aclear_limit`."""
        return self._wait(self.aclear_limit, key)

    def limits(self) -> Sequence[LimitRow]:
        """Blocking twin of `alimits`."""
        return self._wait(self.alimits)

    def add_schedule(self, name: str, cron: str, request: Any, **options: Any) -> Schedule:
        """Blocking twin of `aadd_schedule`."""
        return self._wait(lambda: self.aadd_schedule(name, cron, request, **options))

    def schedules(self, **who: Any) -> Sequence[Schedule]:
        """Blocking twin of `aschedules`."""
        return self._wait(lambda: self.aschedules(**who))

    def pause_schedule(self, name: str, **who: Any) -> None:
        """Blocking twin of `apause_schedule`."""
        return self._wait(lambda: self.apause_schedule(name, **who))

    def resume_schedule(self, name: str, **who: Any) -> Schedule:
        """Blocking twin of `aresume_schedule`."""
        return self._wait(lambda: self.aresume_schedule(name, **who))

    def remove_schedule(self, name: str, **who: Any) -> None:
        """Blocking twin of `aremove_schedule`."""
        return self._wait(lambda: self.aremove_schedule(name, **who))

    def run_schedule(self, name: str, **who: Any) -> Result:
        """Blocking twin of `arun_schedule`."""
        return self._wait(lambda: self.arun_schedule(name, **who))

    def _one_by_one(self, items: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> list[T]:
            async for item in items:
                return [item]
            return []

        try:
            while item := self._wait(following):
                yield item[0]
        finally:
            self._wait(items.aclose)  # type: ignore[attr-defined]

    def _wait(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the runtime's thread and wait; Ctrl-C cancels it there and waits for it."""
        if self._portal is None:
            if self._opened is not None:
                raise errors.WrongLoop(
                    "this runtime was opened with `async with`; use its async methods, such as ainvoke"
                )
            raise errors.RuntimeClosed("the runtime is not open; use it inside `with` or `async with`, or call open()")
        if threading.get_ident() == self._thread:
            raise errors.WrongLoop(
                "a blocking method was called on the runtime's own thread and would wait for itself; "
                "use the async methods inside nodes and operations"
            )
        future = self._portal.start_task_soon(lambda: function(*args, **kwargs))
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            with contextlib.suppress(CancelledError, asyncio.CancelledError):
                future.result()
            raise


def _told_by_their_twins() -> None:
    """Let editors and `help` show of a blocking method what its async twin says of itself."""
    for name, method in vars(Runtime).items():
        twin = getattr(Runtime, f"a{name}", None)
        if inspect.isfunction(twin) and twin.__doc__ and not name.startswith("_"):
            method.__doc__ = f"Blocking twin of `a{name}`.\n\n        {twin.__doc__}"
            method.__signature__ = inspect.signature(twin)


_told_by_their_twins()


async def _relay(stop: threading.Event | None, stopping: asyncio.Event) -> None:
    while stop is None or not stop.is_set():  # noqa: ASYNC110 - an event of threads cannot be awaited
        await asyncio.sleep(_STOP_SECONDS)
    stopping.set()
