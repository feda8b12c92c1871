"""`Runtime`: the runtime with a blocking twin of each async method.

Invariant: `async with` runs everything on the caller's loop, `with` on one thread of the runtime's own, which
also works inside a notebook's running loop. A handle opened one way is refused the other way, by name; a
blocking call on the runtime's own thread would wait for itself, and is refused too.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from typing import Final, ParamSpec, Self, TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from standfast.checkpoint import errors
from standfast.graph.runtime import CLOSED, AsyncRuntime
from standfast.graph.signatures import takes
from standfast.graph.tracebacks import shortened
from standfast.graph.twins import iterating_twin, twin
from standfast.graph.worker import WorkerOptions, WorkerSettings

_STOP_SECONDS: Final = 0.1  # how often a blocking worker looks whether it should stop

P = ParamSpec("P")
T = TypeVar("T")


class Runtime(AsyncRuntime):
    """A durable runtime for one graph, for `with` and for `async with`, there on one event loop.

    Each async `averb` has a blocking twin `verb`, which takes and returns the same.

    `graph`: any `StateGraph`, ours or your own, compiled or not. `database_url`: Postgres 15 or newer; without
    it `STANDFAST_DATABASE_URL`, and without that the embedded server. `name` and `version` are kept with each
    thread: it is driven by code of the same name only. Code of another version drives it if its graph has the same
    nodes, edges and fields, or if `takes_over` names the thread's version, as {"1"}; else it is refused with
    `GraphChanged`. Workers come for the threads of their own version and of those that they take over. `registry`
    names the types that state may hold beside the built-in ones; those that the graph's schema reaches must be in it.
    `model`: for the built-in agent, such as `openai:NAME`. `step_limit` bounds the steps of one drive. With
    `stream_models` the models that nodes call by themselves stream their answers into the run's events, as the
    built-in agent's do without it. `authenticator` establishes from a `token` who acts: an `OIDC`, or an async
    function of your own; without it, that of the environment. With one, vouched names are refused unless
    `accept_vouched`. `channels` take the messages that any run of this database sends from now on, as
    long as a worker, or `adispatch`, serves them; by default a webhook, if the settings name one. `policy`: who
    decides about which calls, or the YAML or TOML file that says so; it is checked here against the graph's
    operations; without it `STANDFAST_POLICY_FILE`. Times are in seconds. Raises the `ConfigurationError`s,
    `InvalidPolicy` here and the others when it is entered.
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
        except BaseException as error:
            self._close_portal()
            if isinstance(error, errors.StandfastError):
                raise shortened(error)  # noqa: B904 - what caused it stays with it
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

    invoke = twin(AsyncRuntime.ainvoke)
    submit = twin(AsyncRuntime.asubmit)
    resume = twin(AsyncRuntime.aresume)
    cancel = twin(AsyncRuntime.acancel)
    state = twin(AsyncRuntime.astate)
    history = twin(AsyncRuntime.ahistory)
    diff = twin(AsyncRuntime.adiff)
    fork = twin(AsyncRuntime.afork)
    timeline = twin(AsyncRuntime.atimeline)
    ledger = twin(AsyncRuntime.aledger)
    picture = twin(AsyncRuntime.apicture)
    threads = twin(AsyncRuntime.athreads)
    runs = twin(AsyncRuntime.aruns)
    open_waits = twin(AsyncRuntime.aopen_waits)
    workers = twin(AsyncRuntime.aworkers)
    unserved = twin(AsyncRuntime.aunserved)
    audit = twin(AsyncRuntime.aaudit)
    export_audit = iterating_twin(AsyncRuntime.aexport_audit)
    verify_audit = twin(AsyncRuntime.averify_audit)
    anchor_audit = twin(AsyncRuntime.aanchor_audit)
    set_member = twin(AsyncRuntime.aset_member)
    members = twin(AsyncRuntime.amembers)
    retry = twin(AsyncRuntime.aretry)
    release = twin(AsyncRuntime.arelease)
    park = twin(AsyncRuntime.apark)
    deliveries = twin(AsyncRuntime.adeliveries)
    message = twin(AsyncRuntime.amessage)
    resend = twin(AsyncRuntime.aresend)
    dispatch = twin(AsyncRuntime.adispatch)
    forget_channel = twin(AsyncRuntime.aforget_channel)
    artifacts = twin(AsyncRuntime.aartifacts)
    put_artifact = twin(AsyncRuntime.aput_artifact)
    read_artifact = twin(AsyncRuntime.aread_artifact)
    save_artifact = twin(AsyncRuntime.asave_artifact)
    sweep_artifacts = twin(AsyncRuntime.asweep_artifacts)
    prune = twin(AsyncRuntime.aprune)
    approvals = twin(AsyncRuntime.aapprovals)
    principal = twin(AsyncRuntime.aprincipal)
    result = twin(AsyncRuntime.aresult)
    emit = twin(AsyncRuntime.aemit)
    complete = twin(AsyncRuntime.acomplete)
    stream = iterating_twin(AsyncRuntime.astream)
    stream_parts = iterating_twin(AsyncRuntime.astream_parts)
    set_limit = twin(AsyncRuntime.aset_limit)
    clear_limit = twin(AsyncRuntime.aclear_limit)
    limits = twin(AsyncRuntime.alimits)
    add_schedule = twin(AsyncRuntime.aadd_schedule)
    schedules = twin(AsyncRuntime.aschedules)
    pause_schedule = twin(AsyncRuntime.apause_schedule)
    resume_schedule = twin(AsyncRuntime.aresume_schedule)
    remove_schedule = twin(AsyncRuntime.aremove_schedule)
    run_schedule = twin(AsyncRuntime.arun_schedule)

    @takes(WorkerSettings, like=WorkerOptions)
    def work(self, *, stop: threading.Event | None = None, **options: Unpack[WorkerSettings]) -> None:
        """Serve this graph in this process, as `standfast worker` does, until `stop` is set or Ctrl-C.

        Both drain: the steps under way finish, their threads stay due. Options: as of `awork`.
        """

        async def working() -> None:
            stopping = asyncio.Event()
            relay = asyncio.create_task(_relay(stop, stopping))
            try:
                await self.awork(stop=stopping, **options)
            finally:
                relay.cancel()

        self._wait(working)

    def _wait(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the runtime's thread and wait; Ctrl-C cancels it there and waits for it."""
        if self._portal is None:
            if self._opened is not None:
                raise errors.WrongLoop(
                    "this runtime was opened with `async with`; use its async methods, such as ainvoke"
                )
            raise errors.RuntimeClosed(CLOSED)
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


async def _relay(stop: threading.Event | None, stopping: asyncio.Event) -> None:
    while stop is None or not stop.is_set():  # noqa: ASYNC110 - an event of threads cannot be awaited
        await asyncio.sleep(_STOP_SECONDS)
    stopping.set()
