"""Accepts requests for one graph, drives its threads, takes answers. This is the one implementation; `Runtime` in
standfast.graph.blocking adds the blocking twin of each method.

Invariant: what has been accepted, answered or cancelled is committed before anything is driven; whoever drives
holds the thread's lease, and this object holds none while nothing is being driven.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Command, StateSnapshot

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval, Decision
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import Database
from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.checkpoint.lease import Lease, LeaseKeeper, claim
from standfast.checkpoint.migrate import migrate
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.settings import Settings
from standfast.checkpoint.store import Store
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.checkpoint.threads import NewRun, Run, Status, Thread
from standfast.checkpoint.threads import Settings as RunSettings
from standfast.checkpoint.waits import Wait
from standfast.graph.changed import Graph, fingerprint
from standfast.graph.door import Said, decision_of, graph_input, text_of, thread_id_of
from standfast.graph.driver import Driver
from standfast.graph.events import StreamEvent, events_of
from standfast.graph.ingest import collect
from standfast.graph.result import Result, read_result
from standfast.graph.timeline import Timeline, read_timeline
from standfast.nodes.models import default_model
from standfast.tools.digests import approval_digest, call_digest
from standfast.tools.operations import Registry
from standfast.tools.principals import Principal
from standfast.tools.readers import ReadDocument, SkippedFile

_FOLLOW_SECONDS: Final = 0.1  # how often a thread that another process drives is looked at
_FINAL: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()  # None, False, '' and [] are answers

OnEvent = Callable[[StreamEvent], None]
OnFile = Callable[[ReadDocument | SkippedFile], None]


class AsyncRuntime:
    """A durable runtime for one graph. Use it with `async with`, on one event loop.

    `graph`: any `StateGraph`, ours or your own, compiled or not. `database_url`: Postgres 15 or newer; without
    it `STANDFAST_DATABASE_URL`, and without that the embedded server. `name` and `version` are kept with each
    thread. `registry` names the types that state may hold beside the built-in ones; those that the graph's
    schema reaches must be in it. Times are in seconds. Raises the `ConfigurationError`s when it is entered.
    """

    def __init__(
        self,
        graph: StateGraph[Any, Any, Any, Any] | Graph,
        *,
        database_url: str | None = None,
        name: str = "agent",
        version: str = "1",
        registry: TypeRegistry | None = None,
        model: str | None = None,
        lease_seconds: float | None = None,
        step_limit: int = 1000,
        settings: Settings | None = None,
    ) -> None:
        self._settings = settings or Settings()
        configured = self._settings.database_url
        self._url = database_url or (configured.get_secret_value() if configured else None)
        self.name = name
        self.version = version
        self._model = model or self._settings.model
        self._lease_seconds = lease_seconds or self._settings.lease_seconds
        self._step_limit = step_limit
        self._types = registry or TypeRegistry()
        builder = graph.builder if isinstance(graph, CompiledStateGraph) else graph
        self._operations: Registry | None = getattr(builder, "registry", None)
        self._graph: Graph = graph if isinstance(graph, CompiledStateGraph) else graph.compile()
        for schema in (builder.state_schema, builder.input_schema, builder.output_schema):
            self._types.require(schema, where=f"the state of graph {name!r}")
        self._fingerprint = fingerprint(self._graph)
        self._takes_messages = "messages" in self._graph.channels
        self._embedded: EmbeddedPostgres | None = None
        self._opened: tuple[Store, LeaseKeeper] | None = None

    # -- life

    async def __aenter__(self) -> AsyncRuntime:
        url = self._url
        if url is None:
            data_dir = self._settings.data_dir
            self._embedded = EmbeddedPostgres(None if data_dir is None else data_dir / "postgres")
            url = await asyncio.to_thread(self._embedded.acquire)
        try:
            await migrate(url)
            database = Database(url, pool_size=self._settings.pool_size, retry_seconds=self._settings.retry_seconds)
            await database.open()
        except BaseException:
            await self._release_embedded()
            raise
        self._opened = Store.over(database, self._types), LeaseKeeper(database.conninfo)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._opened is not None:
            store, keeper = self._opened
            self._opened = None
            await asyncio.to_thread(keeper.close)
            await store.database.close()
        await self._release_embedded()

    async def _release_embedded(self) -> None:
        if self._embedded is not None:
            await asyncio.to_thread(self._embedded.release)
            self._embedded = None

    @property
    def embedded(self) -> bool:
        """Whether the embedded server is used."""
        return self._url is None

    @property
    def store(self) -> Store:
        """The rows. Raises `RuntimeClosed` outside `async with`."""
        if self._opened is None:
            raise errors.RuntimeClosed("the runtime is not open; use it inside `with` or `async with`")
        return self._opened[0]

    @property
    def _keeper(self) -> LeaseKeeper:
        assert self._opened is not None
        return self._opened[1]

    # -- accepting and driving

    async def ainvoke(
        self,
        request: Any,
        *,
        thread_id: object = None,
        as_: Principal | None = None,
        documents: Sequence[str | Path] | None = None,
        context: Any = None,
        model: str | None = None,
        reports_dir: str | Path | None = None,
        on_event: OnEvent | None = None,
        report: OnFile | None = None,
    ) -> Result:
        """Accept a request and drive it until it ends or waits.

        `request` is text, or a mapping of the graph's state fields. Without `thread_id` a new one is made.
        `documents` are files and folders that the run may search, read now and fixed. `context` is kept with
        the run and given to every step. `on_event` hears what happens while it does, `report` of each document
        read or skipped. Raises `InvalidRequest`, `ThreadBusy`, `ModelNotConfigured`.
        """
        new = await self._new_run(request, thread_id, as_, documents, context, model, reports_dir, report)
        run, lease = await self.store.threads.accept(new, lease_seconds=self._lease_seconds)
        reach("run.accepted")
        if lease is None:
            return await self._follow(new.thread_id, on_event)
        return await self._drive(lease, run, on_event)

    async def asubmit(
        self,
        request: Any,
        *,
        thread_id: object = None,
        as_: Principal | None = None,
        documents: Sequence[str | Path] | None = None,
        context: Any = None,
        model: str | None = None,
        reports_dir: str | Path | None = None,
        report: OnFile | None = None,
    ) -> Result:
        """Accept a request as `ainvoke` does and drive nothing: the thread is due, for `aresume` in any process."""
        new = await self._new_run(request, thread_id, as_, documents, context, model, reports_dir, report)
        await self.store.threads.accept(new)
        reach("run.accepted")
        return await self._as_it_is(new.thread_id)

    async def astream(self, request: Any, **options: Any) -> AsyncIterator[StreamEvent | Result]:
        """`ainvoke` with its events while they happen; the last item is the `Result`.

        The run does not depend on the listener: closing the stream leaves the thread due, for `aresume`.
        """
        events: asyncio.Queue[StreamEvent | Result | None] = asyncio.Queue()

        async def work() -> None:
            try:
                events.put_nowait(await self.ainvoke(request, on_event=events.put_nowait, **options))
            finally:
                events.put_nowait(None)

        task = asyncio.create_task(work())
        try:
            while (event := await events.get()) is not None:
                yield event
            await task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def aresume(
        self,
        thread_id: object,
        answer: Any = UNSET,
        *,
        approve: str | None = None,
        reject: str | None = None,
        edit: str | None = None,
        changes: Mapping[str, Any] | None = None,
        reason: str | None = None,
        as_: Principal | None = None,
        on_event: OnEvent | None = None,
        follow: bool = True,
    ) -> Result:
        """Carry a thread on, with or without an answer.

        Without one: what is due is driven; a waiting thread is returned unchanged, a finished one with its end,
        one that another process drives is followed. `answer` answers the one open question, or is a map of
        question ids to answers, or `Command(resume=...)`. `approve`, `reject` (with `reason`) and `edit` (with
        `changes`, a mapping of arguments) take an approval's id. The answer is committed first and stands,
        whoever drives. Raises `UnknownThread`, `UnknownApproval`, `AlreadyDecided`, `ApprovalExpired`,
        `NothingToAnswer`, `AmbiguousAnswer`, `InvalidRequest`, `GraphChanged`.
        """
        thread = thread_id_of(thread_id)
        given = [one for one in (approve, reject, edit) if one is not None]
        if len(given) + (not isinstance(answer, _Unset)) > 1:
            raise errors.InvalidRequest("give one of answer, approve, reject and edit")
        await self.store.threads.get(thread)
        if approve is not None:
            await self.adecide(approve, Said("approve", reason), as_=as_, thread_id=thread)
        elif reject is not None:
            await self.adecide(reject, Said("reject", reason), as_=as_, thread_id=thread)
        elif edit is not None:
            await self.adecide(edit, Said("edit", reason, changes or {}), as_=as_, thread_id=thread)
        elif not isinstance(answer, _Unset):
            await self._answer(thread, answer, as_)
        return await self.acarry_on(thread, on_event=on_event, follow=follow)

    async def acarry_on(self, thread_id: str, *, on_event: OnEvent | None = None, follow: bool = True) -> Result:
        """Drive what is due on a thread, or follow whoever does."""
        known = await self.store.threads.get(thread_id)
        if known.status in _FINAL or known.status is Status.WAITING:
            return await self._as_it_is(thread_id)
        if known.graph != self.name:
            return await self._follow(thread_id, on_event) if follow else await self._as_it_is(thread_id)
        try:
            lease = await claim(self.store.database, thread_id, seconds=self._lease_seconds)
        except errors.LeaseHeld:
            return await self._follow(thread_id, on_event) if follow else await self._as_it_is(thread_id)
        return await self._pick_up(lease, on_event)

    async def acancel(self, thread_id: object) -> Result:
        """Cancel the thread's unfinished run. Raises `AlreadyFinished`; nothing was changed then."""
        thread = thread_id_of(thread_id)
        known = await self.store.threads.get(thread)
        if not await self.store.threads.request_cancel(thread):
            raise errors.AlreadyFinished(
                f"the run of thread {thread!r} has ended ({known.status}); there is nothing to cancel",
                thread_id=thread,
            )
        return await self.acarry_on(thread)

    async def _pick_up(self, lease: Lease, on_event: OnEvent | None) -> Result:
        """Drive a run that was accepted before, maybe by another process."""
        run_id = (await self.store.threads.get(lease.thread_id)).run_id
        assert run_id is not None
        run = await self.store.threads.run(lease.thread_id, run_id)
        if run.state == "needs_attention":
            await self.store.threads.reopen(lease, run_id)
        return await self._drive(lease, run, on_event)

    async def _drive(self, lease: Lease, run: Run, on_event: OnEvent | None) -> Result:
        driver = Driver(
            self.store,
            self._graph,
            self._keeper,
            lease,
            run,
            step_limit=self._step_limit,
            listener=None if on_event is None else _listener(on_event),
        )
        return await driver.drive()

    async def _follow(self, thread_id: str, on_event: OnEvent | None) -> Result:
        """Wait until another process's drive ends or waits; carry on if it dies."""
        while True:
            known = await self.store.threads.get(thread_id)
            if known.status in _FINAL or known.status in (Status.WAITING, Status.NEEDS_ATTENTION):
                return await self._as_it_is(thread_id)
            if known.status is Status.QUEUED and known.graph == self.name:
                try:
                    lease = await claim(self.store.database, thread_id, seconds=self._lease_seconds)
                except errors.LeaseHeld:
                    continue
                return await self._pick_up(lease, on_event)
            await asyncio.sleep(_FOLLOW_SECONDS)

    async def _as_it_is(self, thread_id: str) -> Result:
        state = await self.astate(thread_id)
        return await read_result(self.store, thread_id, state.values)

    # -- deciding and answering

    async def adecide(
        self,
        approval_id: str,
        said: Said,
        *,
        as_: Principal | None = None,
        thread_id: str | None = None,
        seen_digest: str | None = None,
    ) -> Approval:
        """Record a decision; nothing is driven. `seen_digest` is of what the decider saw, by default of now.

        An edit merges its arguments into the proposed ones, and counts as the editor's approval of the result.
        """
        approval = await self.store.approvals.get(approval_id)
        if thread_id is not None and approval.thread_id != thread_id:
            raise errors.UnknownApproval(
                f"thread {thread_id!r} has no approval {approval_id!r}", approval_id=approval_id
            )
        principal = as_ or Principal.vouched(Principal.operating_system().name)
        decision = Decision(
            verb=said.verb,
            principal=principal.name,
            vouched=principal.on_word,
            digest=seen_digest or approval.digest,
            reason=None if said.reason is None else text_of(said.reason, "reason"),
        )
        if said.verb == "edit":
            decision = self._edited(approval, decision, said.arguments or {})
        return await self.store.approvals.decide(approval, decision)

    def _edited(self, approval: Approval, decision: Decision, changes: Mapping[str, Any]) -> Decision:
        if self._operations is None:
            raise errors.InvalidRequest(f"graph {self.name!r} has no operations whose arguments could be edited")
        operation = self._operations.get(approval.operation)
        try:
            arguments = operation.validate({**approval.arguments, **changes})
        except errors.OperationError as error:
            raise errors.InvalidRequest(f"the edit was not taken: {error}", approval_id=approval.id) from error
        return replace(
            decision,
            arguments=arguments,
            operation_digest=call_digest(operation.name, arguments),
            new_digest=approval_digest(
                tenant="default",
                thread_id=approval.thread_id,
                operation_id=approval.operation_id,
                operation=operation.name,
                operation_version=operation.version,
                arguments=arguments,
                policy_version=approval.policy_version,
                expires_at=approval.expires_at,
            ),
        )

    async def aanswer(self, thread_id: object, answer: Any, *, as_: Principal | None = None) -> None:
        """Record an answer as `aresume` does; nothing is driven."""
        thread = thread_id_of(thread_id)
        await self.store.threads.get(thread)
        await self._answer(thread, answer, as_)

    async def _answer(self, thread_id: str, answer: Any, as_: Principal | None) -> None:
        if isinstance(answer, Command):
            answer = answer.resume
        waits = {one.id: one for one in await self._open_waits(thread_id)}
        if isinstance(answer, Mapping) and answer and answer.keys() <= waits.keys():
            for identifier, value in answer.items():
                await self._answer_one(waits[identifier], value, thread_id, as_)
            return
        if not waits:
            known = await self.store.threads.get(thread_id)
            raise errors.NothingToAnswer(
                f"thread {thread_id!r} asks nothing (it is {known.status}); the answer was not used",
                thread_id=thread_id,
            )
        if len(waits) > 1:
            raise errors.AmbiguousAnswer(
                f"thread {thread_id!r} has {len(waits)} open questions; answer by id: {', '.join(sorted(waits))}",
                thread_id=thread_id,
                questions=tuple(sorted(waits)),
            )
        await self._answer_one(next(iter(waits.values())), answer, thread_id, as_)

    async def _open_waits(self, thread_id: str) -> list[Wait]:
        known = await self.store.threads.get(thread_id)
        if known.status is Status.QUEUED:  # its driver died before it wrote down what it waits for
            await self.acarry_on(thread_id)
            known = await self.store.threads.get(thread_id)
        assert known.run_id is not None
        return [one for one in await self.store.waits.of_run(thread_id, known.run_id) if one.state == "open"]

    async def _answer_one(self, wait: Wait, value: Any, thread_id: str, as_: Principal | None) -> None:
        if wait.approval_id is not None:
            approval = await self.store.approvals.get(wait.approval_id)
            await self.adecide(wait.approval_id, decision_of(value, approval), as_=as_, thread_id=thread_id)
            return
        principal = as_ or Principal.vouched(Principal.operating_system().name)
        await self.store.waits.answer(thread_id, wait.id, value, principal.name)

    # -- looking

    async def astate(self, thread_id: object) -> StateSnapshot:
        """The thread's state, as LangGraph shows it. Raises `UnknownThread`."""
        thread = thread_id_of(thread_id)
        await self.store.threads.get(thread)
        return await self._reading().aget_state({"configurable": {"thread_id": thread}})

    async def ahistory(self, thread_id: object, *, limit: int | None = None) -> list[StateSnapshot]:
        """The thread's checkpoints, newest first."""
        thread = thread_id_of(thread_id)
        await self.store.threads.get(thread)
        config: Any = {"configurable": {"thread_id": thread}}
        return [one async for one in self._reading().aget_state_history(config, limit=limit)]

    async def atimeline(self, thread_id: object) -> Timeline:
        """Everything that is recorded about a thread, whichever graph it belongs to. Raises `UnknownThread`."""
        return await read_timeline(self.store, thread_id_of(thread_id))

    async def athreads(self, *, limit: int = 50, before: datetime | None = None) -> list[Thread]:
        """The threads that changed last, without their state."""
        return await self.store.threads.list(limit=limit, before=before)

    async def aapprovals(self, *, thread_id: object = None, state: str | None = "open") -> list[Approval]:
        """Approvals, newest first; by default those that can still be decided."""
        thread = None if thread_id is None else thread_id_of(thread_id)
        return await self.store.approvals.list(thread_id=thread, state=state)

    def _reading(self) -> Graph:
        graph: Graph = self._graph.copy()
        graph.checkpointer = LeasedSaver(self.store.database, self.store.sealer)
        return graph

    # -- accepting

    async def _new_run(
        self,
        request: Any,
        thread_id: object,
        as_: Principal | None,
        documents: Sequence[str | Path] | None,
        context: Any,
        model: str | None,
        reports_dir: str | Path | None,
        report: OnFile | None,
    ) -> NewRun:
        run_id = str(uuid.uuid4())
        thread = thread_id_of(thread_id) if thread_id is not None else f"thread-{run_id[:8]}"
        principal = as_ or Principal.vouched(Principal.operating_system().name)
        given = graph_input(request, run_id, takes_messages=self._takes_messages)
        settings = RunSettings(context=context)
        collection = None
        if self._operations is not None:
            model = model or self._model or default_model()
            directory = Path(reports_dir or self._settings.reports_dir or "reports").expanduser().absolute()
            settings = RunSettings(context, str(directory), self._settings.reports_url)
            collection = await collect(self.store.documents, documents, report=report) if documents else None
        return NewRun(
            thread_id=thread,
            run_id=run_id,
            graph=self.name,
            version=self.version,
            fingerprint=self._fingerprint,
            input=given,
            requested_by=principal.name,
            vouched=principal.on_word,
            model=model,
            collection_id=collection,
            settings=settings,
        )


def _listener(on_event: OnEvent) -> Callable[[tuple[str, ...], str, Any], None]:
    def listen(namespace: tuple[str, ...], mode: str, part: Any) -> None:
        for event in events_of(namespace, mode, part):
            on_event(event)

    return listen
