"""Accepts requests for one graph, drives its threads, takes answers. This is the one implementation; `Runtime` in
standfast.graph.blocking adds the blocking twin of each method.

Invariant: what has been accepted, answered or cancelled is committed before anything is driven; whoever drives
holds the thread's lease, and this object holds none while nothing is being driven.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, Unpack

from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.runtime import RunControl
from langgraph.types import Command

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval, Verb
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.database import describe
from standfast.checkpoint.fleet import Fleet
from standfast.checkpoint.lease import Lease, LeaseKeeper, claim, leave, release
from standfast.checkpoint.listener import Listener
from standfast.checkpoint.memory import Memory
from standfast.checkpoint.run_events import RunEvent
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.settings import Settings
from standfast.checkpoint.store import Store
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.checkpoint.threads import NewRun, Run, Status
from standfast.graph.accepting import GraphSpec, Options, RequestOptions, new_run
from standfast.graph.answering import Answering, decision_said
from standfast.graph.builder import asks_named_model, registry_of
from standfast.graph.changed import Graph, fingerprint
from standfast.graph.deployed import Deployed
from standfast.graph.door import thread_id_of
from standfast.graph.driver import Driver
from standfast.graph.emitting import Emitting
from standfast.graph.following import follow_events, follow_to_end, rests, told_of_waiting
from standfast.graph.guarding import guarded
from standfast.graph.identity import Identity, configured_authenticator
from standfast.graph.keeping import Keeping
from standfast.graph.looking import Looking
from standfast.graph.opening import opened
from standfast.graph.operating import FINAL, Operators
from standfast.graph.outgoing import Outgoing
from standfast.graph.parts import Listened, Mode, Parts
from standfast.graph.recorder import OnEvent
from standfast.graph.refusals import Attempted, audited
from standfast.graph.result import Result, read_result
from standfast.graph.retention import Pruning
from standfast.graph.scheduling import Scheduling
from standfast.graph.servable import fields_of, require_named, require_unbroken
from standfast.graph.signatures import takes
from standfast.graph.steering import Steering
from standfast.graph.time_travel import TimeTravel, graph_over
from standfast.graph.worker import Worker, WorkerOptions, WorkerSettings
from standfast.tools.approval_policy import ApprovalPolicy
from standfast.tools.authenticators import Authenticator
from standfast.tools.channels import Channel, configured_channels
from standfast.tools.dispatcher import Dispatcher
from standfast.tools.policy_file import policy_for
from standfast.tools.principals import Principal


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


CLOSED: Final = "the runtime is not open; use it inside `with` or `async with`, or call open() or (async) aopen() first"
UNSET: Final = _Unset()  # None, False, '' and [] are answers


class AsyncRuntime(
    Answering, TimeTravel, Looking, Operators, Outgoing, Keeping, Emitting, Steering, Scheduling, Pruning
):
    """The async methods of `Runtime`, whose documentation tells the arguments."""

    def __init__(
        self,
        graph: StateGraph[Any, Any, Any, Any] | Graph,
        *,
        database_url: str | None = None,
        name: str = "agent",
        version: str = "1",
        takes_over: Collection[str] = (),
        registry: TypeRegistry | None = None,
        model: str | None = None,
        lease_seconds: float | None = None,
        step_limit: int = 1000,
        stream_models: bool = False,
        authenticator: Authenticator | None = None,
        accept_vouched: bool = False,
        channels: Sequence[Channel] | None = None,
        settings: Settings | None = None,
        policy: ApprovalPolicy | str | Path | None = None,
    ) -> None:
        require_named(graph, name=name, version=version, takes_over=takes_over)
        self._settings = settings or Settings()
        self._channels = configured_channels(self._settings) if channels is None else tuple(channels)
        configured = self._settings.database_url
        self._url = database_url or (configured.get_secret_value() if configured else None)
        self.identity = Identity(
            authenticator or configured_authenticator(self._settings), accept_vouched, local=self._url is None
        )
        self.name = name
        self.version = version
        self._takes_over = frozenset(takes_over)
        self._model = model or self._settings.model
        self._lease_seconds = lease_seconds or self._settings.lease_seconds
        self._step_limit = step_limit
        self._stream_models = stream_models
        self._listened = Listened()
        self._types = registry or TypeRegistry()
        builder = graph.builder if isinstance(graph, CompiledStateGraph) else graph
        self._operations = registry_of(builder)
        self._asks_named_model = asks_named_model(builder)
        compiled = graph if isinstance(graph, CompiledStateGraph) else graph.compile()
        require_unbroken(compiled, name)
        self._fields = fields_of(compiled)
        self._graph = guarded(compiled)
        for schema in (builder.state_schema, builder.input_schema, builder.output_schema):
            self._types.require(schema, where=f"the state of graph {name!r}")
        self._fingerprint = fingerprint(self._graph)
        self._policy = policy_for(policy or self._settings.policy_file, self._operations)
        self._stack = contextlib.AsyncExitStack()
        self._opened: tuple[Store, LeaseKeeper, Listener] | None = None

    # -- life

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            database = await stack.enter_async_context(opened(self._url, settings=self._settings))
            store = Store.over(database, self._types, settings=self._settings)
            if self._operations is not None:
                await self._policy.check_table(self._operations, store.groups)
            await Dispatcher(store.outbox, self._channels).register()
            keeper = LeaseKeeper(database.conninfo)
            stack.push_async_callback(asyncio.to_thread, keeper.close)
            listener = Listener(database, store.run_events)
            stack.push_async_callback(listener.close)
            self._opened, self._stack = (store, keeper, listener), stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._listened.close()
        self._opened = None
        await self._stack.aclose()

    def join(self, other: AsyncRuntime) -> None:
        """Use another open runtime's connections, as long as that one is open."""
        store, keeper, listener = other._parts
        self._opened = Store.over(store.database, self._types, settings=self._settings), keeper, listener

    def __repr__(self) -> str:
        where = "embedded" if self._url is None else describe(self._url)
        state = "not open" if self._opened is None else "open"
        return f"<Runtime {self.name!r} version {self.version!r}, {where}, {state}>"

    @property
    def lease_seconds(self) -> float:
        """How long a silent driver keeps its thread."""
        return self._lease_seconds

    @property
    def embedded(self) -> bool:
        """Whether the embedded server is used."""
        return self._url is None

    @property
    def store(self) -> Store:
        """The rows. Raises `RuntimeClosed` outside `async with`."""
        return self._parts[0]

    @property
    def memory(self) -> Memory:
        """What threads remember for each other: LangGraph's store, as nodes find it in `runtime.store`."""
        return self.store.memory

    @property
    def _parts(self) -> tuple[Store, LeaseKeeper, Listener]:
        if self._opened is None:
            raise errors.RuntimeClosed(CLOSED)
        return self._opened

    @property
    def deployed(self) -> Deployed:
        """Which threads this code may drive."""
        return Deployed(self.name, self.version, self._fingerprint, self._takes_over)

    @property
    def policy(self) -> ApprovalPolicy:
        """Who decides about which calls."""
        return self._policy.where_identity_is(established=self.identity.authenticator is not None)

    @property
    def _spec(self) -> GraphSpec:
        takes_messages = "messages" in self._graph.channels
        return GraphSpec(
            self.name,
            self.version,
            self._fingerprint,
            takes_messages,
            self._fields,
            self._operations,
            self._model,
            self._asks_named_model,
        )

    # -- accepting and driving

    @takes(RequestOptions, like=Options)
    async def ainvoke(
        self, request: Any, *, on_event: OnEvent | None = None, **options: Unpack[RequestOptions]
    ) -> Result:
        """Accept a request and drive it until it ends or waits.

        `request` is text, or a mapping of the graph's state fields. `on_event` hears of the run's events as soon
        as they are stored. Options:

        - `thread_id`: text, UUID or int; without it a new one is made.
        - `as_`: the `Principal` who asks; or `token`: the credential that proves who it is.
        - `documents`: files and folders that the run may search, read now and fixed; `report` hears of each.
        - `context`: kept with the run and given to every step.
        - `model`, `reports_dir`: for the built-in agent.
        - `deadline`: seconds, a timedelta from now, or a datetime; and `budget`, a `Budget`. At either the run ends
          as `failed`, for the reason `deadline` or `budget`, with all its work kept; `aretry` gives it more.
        - `client_key`: the same key twice is one run.
        - `priority`: from -1000 to 1000; workers come for the greater one sooner.
        - `on_busy`: if the thread has an unfinished run, `refuse` (the default), `queue` behind it, `withdraw`
          (queue, and take back what it asks people to decide) or `interrupt` (cancel it first).

        Raises `InvalidRequest`, `ThreadBusy`, `ClientKeyConflict`, `OtherTenant`, `ModelNotConfigured`.
        """
        run, lease = await self._accept(request, Options(**options), lease_seconds=self._lease_seconds)
        reach("run.accepted")
        if lease is None:
            return await self._follow(run.thread_id, run.id, on_event)
        return await self._to_rest(await self._driver(lease, run, on_event, 0).drive(), on_event)

    async def _accept(
        self, request: Any, options: Options, *, lease_seconds: float | None = None
    ) -> tuple[Run, Lease | None]:
        who = await self.aprincipal(options.as_, token=options.token)
        options = replace(options, as_=who, token=None)
        new = await self._new_run(request, options)
        async with audited(self.store, Attempted(thread_id=new.thread_id, by=who)):
            return await self.store.threads.accept(new, lease_seconds=lease_seconds)

    async def _new_run(self, request: Any, options: Options) -> NewRun:
        return await new_run(self.store, self._spec, self._settings, request, options)

    @takes(RequestOptions, like=Options)
    async def asubmit(self, request: Any, **options: Unpack[RequestOptions]) -> Result:
        """Accept a request as `ainvoke` does and drive nothing: workers do, or `aresume` in any process."""
        run, _ = await self._accept(request, Options(**options))
        reach("run.accepted")
        return Result(run.thread_id, run.id, Status.QUEUED if run.state in ("open", "queued") else Status(run.state))

    async def aresult(self, thread_id: object, *, run_id: str | None = None, timeout: float | None = None) -> Result:
        """Wait until a run, by default the thread's latest, ends or waits, and return how it stands.

        Nothing is driven here, and no connection is held. Raises `TimeoutError` after `timeout` seconds.
        """
        thread = thread_id_of(thread_id)
        store, _, listener = self._parts
        known = await store.threads.get(thread)
        run = run_id or known.run_id
        assert run is not None
        if not await rests(store, known, run):
            async with asyncio.timeout(timeout):
                await follow_to_end(store, listener, thread, run)
        return await self._as_it_is(thread, run)

    async def astream(self, thread_id: object, *, after: int = 0, run_id: str | None = None) -> AsyncIterator[RunEvent]:
        """The events of a run, by default the thread's latest, from number `after` on (negative: the last n).

        Follows a run that any process drives, and ends when it ends or waits. The run does not
        depend on its readers: closing the stream changes nothing, and another one can go on from the last
        event's `seq`. Raises `UnknownThread`.
        """
        thread = thread_id_of(thread_id)
        store, _, listener = self._parts
        # Many may begin to read at once: they look together.
        run = run_id or (await listener.look(("run", thread), lambda: store.threads.get(thread))).run_id
        assert run is not None
        async for event in follow_events(store, listener, thread, run, after=after):
            yield event

    @takes(RequestOptions, like=Options)
    async def astream_parts(
        self,
        request: Any,
        *,
        stream_mode: Mode | Sequence[Mode] = "values",
        subgraphs: bool = False,
        **options: Unpack[RequestOptions],
    ) -> AsyncIterator[Any]:
        """Drive a thread here and yield LangGraph's parts, in the shapes of LangGraph's `astream`.

        `request` is that of `ainvoke`, with its options; `None` carries the thread `thread_id` on, and
        `Command(resume=...)` answers it, as `aresume` does. The drive does not depend on its reader: it goes on
        when the iterator is closed, until the runtime is. Under another process's drive there are no parts; see
        `astream`. Modes: values, updates, messages, custom, tasks, checkpoints, debug. `messages` makes models
        stream, and what is stored must not depend on who listens: it needs a runtime with `stream_models`. Raises as
        `ainvoke` does.
        """
        parts = Parts(stream_mode, subgraphs=subgraphs)
        if "messages" in parts.modes and not self._stream_models:
            raise errors.InvalidRequest("the mode messages needs Runtime(..., stream_models=True)")
        if request is None or (isinstance(request, Command) and request.resume is not None):
            answer = UNSET if request is None else request
            unfit = sorted(options.keys() - {"thread_id", "as_", "token"})
            if unfit:
                raise errors.WrongArguments(f"{', '.join(unfit)}: these belong to a new request, not to one carried on")
            who: Any = {name: options.get(name) for name in ("as_", "token")}
            drive = self.aresume(options.get("thread_id"), answer, on_event=parts, **who)
        else:
            drive = self.ainvoke(request, on_event=parts, **options)
        async for part in self._listened.follow(drive, parts):
            yield part

    async def aresume(
        self,
        thread_id: object,
        answer: Any = UNSET,
        *,
        approve: Approval | str | None = None,
        reject: Approval | str | None = None,
        edit: Approval | str | None = None,
        changes: Mapping[str, Any] | None = None,
        respond: Approval | str | None = None,
        response: Any = None,
        withdraw: Approval | str | None = None,
        reason: str | None = None,
        as_: Principal | None = None,
        token: str | None = None,
        on_event: OnEvent | None = None,
        follow: bool = True,
    ) -> Result:
        """Carry a thread on, with or without an answer.

        Without one: what is due is driven; a waiting thread is returned unchanged, a finished one with its end,
        one that another process drives is followed. `answer` answers the one open question, or is a map of
        questions, or their ids, to answers, or `Command(resume=...)`. `approve`, `reject` (with `reason`), `edit` (with
        `changes`, a mapping of arguments), `respond` (with `response`, which the agent gets in the tool's place)
        and `withdraw` (before the grant is used) take an approval's id; or the approval itself, and then refuse with
        `DigestMismatch` if what it shows is not what is open now. `as_` or `token` say whose answer it
        is, who must be of the thread's tenant. It is committed first and stands, whoever drives. Raises
        `UnknownThread`, `OtherTenant`, `UnknownApproval`,
        `NotAuthenticated`, `NotPermitted`, `AlreadyDecided`, `ApprovalExpired`, `DigestMismatch`, `NothingToAnswer`,
        `AmbiguousAnswer`, `InvalidRequest`, `GraphChanged`.
        """
        thread = thread_id_of(thread_id)
        verbs: dict[Verb, object] = {
            "approve": approve,
            "reject": reject,
            "edit": edit,
            "respond": respond,
            "withdraw": withdraw,
        }
        given = [(verb, of) for verb, of in verbs.items() if of is not None]
        if len(given) + (not isinstance(answer, _Unset)) > 1:
            raise errors.InvalidRequest("give one of answer, approve, reject, edit, respond and withdraw")
        said = decision_said(given[0] if given else None, reason=reason, changes=changes, response=response)
        await self.store.threads.get(thread)
        who: Any = {"as_": as_, "token": token}
        if said is not None:
            await self.adecide(said.approval_id, said.said, thread_id=thread, seen_digest=said.seen_digest, **who)
        elif not isinstance(answer, _Unset):
            await self.aanswer(thread, answer, **who)
        elif as_ is not None or token is not None:
            await self._admit(thread, **who)
        return await self.acarry_on(thread, on_event=on_event, follow=follow)

    async def acarry_on(self, thread_id: str, *, on_event: OnEvent | None = None, follow: bool = True) -> Result:
        """Drive what is due on a thread, or follow whoever does. Raises `GraphChanged` and `GraphNotServed`."""
        known = await self.store.threads.get(thread_id)
        assert known.run_id is not None
        if known.status not in FINAL and known.status is not Status.WAITING:
            if known.status is not Status.RUNNING:
                self.deployed.require(known)
            if known.status is Status.NEEDS_ATTENTION:
                await self.store.threads.retry(thread_id)
            elsewhere = follow and known.graph != self.name and known.status is not Status.RUNNING
            if elsewhere and not await Fleet(self.store.database).serves(known.graph, known.version):
                raise self.deployed.not_served(known)
            if self.deployed.drives(known):
                with contextlib.suppress(errors.LeaseHeld):
                    lease = await claim(self.store.database, thread_id, seconds=self._lease_seconds)
                    return await self._to_rest(await self.adrive(lease, on_event), on_event)
            if follow:
                return await self._follow(thread_id, known.run_id, on_event)
        result = await self._as_it_is(thread_id, known.run_id)
        if follow and known.status is Status.WAITING and result.status is Status.QUEUED:
            return await self.acarry_on(thread_id, on_event=on_event)  # what it waited for has come in between
        return result

    async def acancel(self, thread_id: object) -> Result:
        """Cancel the thread's unfinished run, of whichever graph: its driver stops it, or it is ended here.

        Raises `AlreadyFinished`, and `CancelPending` if it was asked for before and the driver has not stopped yet;
        nothing was changed then.
        """
        thread = thread_id_of(thread_id)
        store, _, listener = self._parts
        known = await store.threads.get(thread)
        asked = await store.threads.request_cancel(thread)
        if asked is None:
            raise errors.AlreadyFinished(
                f"the run of thread {thread!r} has ended ({known.status}); there is nothing to cancel",
                thread_id=thread,
            )
        while True:
            try:
                lease = await claim(store.database, thread, seconds=self._lease_seconds)
                await self.aend_cancelled(lease, asked.run_id)
            except errors.LeaseHeld as held:
                if asked.asked_at is not None:
                    raise errors.CancelPending(
                        f"the cancellation of thread {thread!r} was asked for at {asked.asked_at:%H:%M:%S} already; "
                        f"{held.worker} drives it and has not stopped yet. Wait for it, or if that process is dead: "
                        f"standfast release {thread}",
                        thread_id=thread,
                        run_id=asked.run_id,
                    ) from held
                async with told_of_waiting(store, thread, lease_seconds=self._lease_seconds):
                    await follow_to_end(store, listener, thread, asked.run_id, ours=lambda _: True)
            state, reason = await store.threads.standing(thread, asked.run_id)
            if state in FINAL:
                return Result(thread, asked.run_id, Status(state), reason=reason)

    async def adrive(
        self,
        lease: Lease,
        on_event: OnEvent | None = None,
        *,
        control: RunControl | None = None,
        keep_on_error: bool = False,
    ) -> Result:
        """Drive the latest run of a thread whose lease has just been claimed, until it ends or parks.

        A drain that is requested of `control` lets the step under way finish, and leaves the thread due. A run
        that has ended, or needs attention, is left as it is. The lease is given up, also when something is raised;
        with `keep_on_error` the caller has it then, unless it was interrupted.
        """
        thread = lease.thread_id
        try:
            self.deployed.require(await self.store.threads.get(thread))
            run, last_event = await self.store.threads.latest(thread)
            stopped = run.state in ("needs_attention", "queued")
            at_rest = run.state != "open" and not (stopped and lease.cancel_requested)
        except BaseException as error:
            if not (keep_on_error and isinstance(error, Exception)):
                with contextlib.suppress(errors.StandfastError):
                    await asyncio.shield(release(self.store.database, lease))
            raise
        if at_rest:
            await leave(self.store.database, lease)
            return await self._as_it_is(thread, run.id)
        return await self._driver(lease, run, on_event, last_event, control, keep_on_error).drive()

    async def _to_rest(self, result: Result, on_event: OnEvent | None) -> Result:
        """After a drive: go on as long as what the run waited for has come since it parked."""
        thread_id, run_id = result.thread_id, result.run_id
        while result.status is Status.QUEUED and result.run_id == run_id:
            try:
                lease = await claim(self.store.database, thread_id, seconds=self._lease_seconds)
            except errors.LeaseHeld:
                return await self._follow(thread_id, run_id, on_event)
            result = await self.adrive(lease, on_event)
        return result if result.run_id == run_id else await self._follow(thread_id, run_id, on_event)

    def _driver(
        self,
        lease: Lease,
        run: Run,
        on_event: OnEvent | None,
        last_event: int,
        control: RunControl | None = None,
        keep_on_error: bool = False,
    ) -> Driver:
        return Driver(
            self.store,
            self._graph,
            self._parts[1],
            lease,
            run,
            step_limit=self._step_limit,
            last_event=last_event,
            on_event=on_event,
            control=control,
            keep_on_error=keep_on_error,
            stream_models=self._stream_models,
            policy=self.policy,
            name=self.name,
        )

    @takes(WorkerSettings, like=WorkerOptions)
    async def awork(self, *, stop: asyncio.Event | None = None, **options: Unpack[WorkerSettings]) -> None:
        """Serve this graph in this process, as `standfast worker` does, until `stop` is set or this is cancelled.

        Both drain: the steps under way finish, their threads stay due. Options:

        - `concurrency`: drives at a time.
        - `grace`: seconds for the steps under way at a stop.
        - `name`: for people; worker processes of one name are told apart.
        - `health_file` is touched, and `health_port` answers 200 to HTTP, as long as the database can be reached.
        """
        await Worker([self], WorkerOptions(**options), stop=stop).run()

    async def _follow(self, thread_id: str, run_id: str, on_event: OnEvent | None) -> Result:
        """Wait until another process's drive ends or waits; carry on if it dies, or if the run's turn comes."""
        store, _, listener = self._parts
        while True:
            async with told_of_waiting(store, thread_id, lease_seconds=self._lease_seconds):
                by_us = await follow_to_end(store, listener, thread_id, run_id, ours=self.deployed.drives)
            if not by_us:
                result = await self._as_it_is(thread_id, run_id)
                if result.status is Status.QUEUED:  # it rested, and what it waited for has come in between
                    continue
                return result
            try:
                lease = await claim(store.database, thread_id, seconds=self._lease_seconds)
            except errors.LeaseHeld:
                continue
            result = await self.adrive(lease, on_event)
            if result.run_id == run_id and result.status is not Status.QUEUED:
                return result

    async def _as_it_is(self, thread_id: str, run_id: str | None = None) -> Result:
        state = await self._snapshot(thread_id, None, whole=True)
        return await read_result(self.store, thread_id, state.values, run_id=run_id)

    def _over(self, saver: LeasedSaver) -> Graph:
        return graph_over(self._graph, saver)
