"""What LangGraph's development server is given: a graph, a saver to look with, and who may do what.

Invariants: a run of the server is a drive of ours, under the thread's lease and with every rule of the fleet; the
server's own way to write a state is closed. An answer goes through the same door as anybody's and comes from whoever
the request proved to be. What has no safe meaning here is refused by name, before anything is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hmac
import ipaddress
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from langchain_core.messages import AIMessageChunk, convert_to_messages
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Command
from langgraph_sdk import Auth, get_client
from langgraph_sdk.runtime import ServerRuntime

from standfast.checkpoint import errors
from standfast.checkpoint.run_events import RunEvent
from standfast.checkpoint.saver import LeasedSaver
from standfast.checkpoint.settings import Settings
from standfast.checkpoint.threads import Status
from standfast.checkpoint.viewer import ViewingSaver
from standfast.graph.identity import Identity, configured_authenticator
from standfast.graph.parts import MODES, Parts
from standfast.graph.recorder import TOKEN
from standfast.graph.runtime import AsyncRuntime
from standfast.tools.principals import OPERATING_SYSTEM, Principal

_STUDIO: Final = "https://smith.langchain.com"
_SYNC_SECONDS: Final = 1.0
_TENANT: Final = "default"  # whose threads this server is told of
_OURS: Final = frozenset({"model", "documents", "reports_dir"})  # of a context: options of the built-in agent's run
_DOWN: Final = frozenset({Status.FAILED, Status.CANCELLED, Status.NEEDS_ATTENTION})
_OPEN: Final[dict[tuple[asyncio.AbstractEventLoop, str], AsyncRuntime]] = {}


class Served:
    """A graph for `langgraph dev`: `agent`, `checkpointer` and `auth` are what `langgraph.json` names.

    `graph`, `name`, `version` and the other options are those of `Runtime`; threads of the same name are shown,
    whoever made them.
    """

    def __init__(self, graph: StateGraph[Any, Any, Any, Any], *, name: str = "agent", **options: Any) -> None:
        self._graph = graph
        self._name = name
        self._options = options
        self._compiled: CompiledStateGraph[Any, Any, Any, Any] = graph.compile()
        self.auth = _auth()

    @contextlib.asynccontextmanager
    async def checkpointer(self) -> AsyncIterator[ViewingSaver]:
        """Open the database for as long as the server runs."""
        runtime = AsyncRuntime(self._graph, name=self._name, **self._options)
        async with runtime:
            here = asyncio.get_running_loop(), self._name
            _OPEN[here] = runtime
            showing = asyncio.create_task(_show_threads(runtime))
            try:
                store = runtime.store
                reader = LeasedSaver(store.database, store.sealer, artifacts=store.artifacts, shows=True)
                yield ViewingSaver(reader, store.threads.named)
            finally:
                del _OPEN[here]
                showing.cancel()
                await asyncio.wait([showing])

    @contextlib.asynccontextmanager
    async def agent(self, config: dict[str, Any], runtime: ServerRuntime[Any]) -> AsyncIterator[ServedGraph]:
        """The graph, bound to whoever asks."""
        open_runtime = _OPEN.get((asyncio.get_running_loop(), self._name))
        yield ServedGraph.of(self._compiled, open_runtime, _principal_of(runtime.user))


class ServedGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """A compiled graph whose runs are drives of a runtime. Its shape and schemas are the graph's own."""

    _runtime: AsyncRuntime | None
    _principal: Principal | None

    @classmethod
    def of(
        cls,
        graph: CompiledStateGraph[Any, Any, Any, Any],
        runtime: AsyncRuntime | None,
        principal: Principal | None,
    ) -> ServedGraph:
        mine: Any = copy.copy(graph)
        mine.__class__ = cls
        mine._runtime, mine._principal = runtime, principal
        return mine  # type: ignore[no-any-return]

    def copy(self, update: dict[str, Any] | None = None) -> ServedGraph:
        mine = copy.copy(self)
        for name, value in (update or {}).items():
            setattr(mine, name, value)
        return mine

    async def astream(  # type: ignore[override]
        self,
        input: Any,
        config: Any = None,
        *,
        context: Any = None,
        stream_mode: Any = "values",
        subgraphs: bool = False,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Drive the thread and yield LangGraph's parts.

        What refuses a run, an answer or a way around them is raised as a `RuntimeError` of its name: the server tells
        its callers the messages of Python's own errors only.
        """
        options |= {"context": context, "stream_mode": stream_mode, "subgraphs": subgraphs}
        try:
            async for part in self._drive(input, config, **options):
                yield part
        except errors.StandfastError as error:
            raise type(type(error).__name__, (RuntimeError,), {})(str(error)) from error

    async def _drive(
        self, input: Any, config: Any, *, context: Any, stream_mode: Any, subgraphs: bool, **options: Any
    ) -> AsyncIterator[Any]:
        runtime = self._runtime
        if runtime is None:
            raise errors.RuntimeClosed("the server has not opened its checkpointer; langgraph.json must name it")
        where = config["configurable"]
        _refuse_detours(input, where, options)
        uuid = str(where["thread_id"])
        thread = await runtime.store.threads.named(uuid)
        parts = _Parts(stream_mode, subgraphs=subgraphs)
        if input is None or isinstance(input, Command):
            answer = () if input is None else (input.resume,)
            drive = runtime.aresume(thread, *answer, as_=self._principal, on_event=parts)
        else:
            given = {"thread_id": thread, "as_": self._principal, **_options(runtime, context)}
            if where.get("run_id"):  # the server starts a run of its own again after it was killed
                given["client_key"] = f"studio:{where['run_id']}"
            drive = runtime.ainvoke(_request(input), on_event=parts, **given)
        driving = asyncio.create_task(drive)
        driving.add_done_callback(lambda _: parts.end())
        try:
            async for part in parts:
                yield _shown(part, uuid)
            result = await driving
        finally:
            # The server cancels a run by leaving: the step under way is lost, the thread stays due.
            driving.cancel()
            await asyncio.wait([driving])
        if result.status in _DOWN:
            raise result.error or errors.RunFailed(
                f"thread {thread!r} {result.status.replace('_', ' ')}: {result.reason}; see: standfast show {thread}",
                thread_id=thread,
            )

    async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:
        last: Any = None
        async for part in self.astream(input, config, **{**options, "stream_mode": "values"}):
            last = part
        return last

    async def astream_events(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        raise errors.InvalidRequest(
            "the stream mode events is not served here: take values, updates, messages, custom, tasks or debug"
        )
        yield

    async def aupdate_state(self, *args: Any, **options: Any) -> Any:
        raise errors.InvalidRequest(
            "a thread's state is not edited here: a change could lead past a person or repeat an effect. Nothing was "
            "changed; try it on a fork: standfast fork THREAD --at CHECKPOINT --values '{...}'"
        )

    async def abulk_update_state(self, *args: Any, **options: Any) -> Any:
        await self.aupdate_state()


class _Parts(Parts):
    """The parts of a drive; what models say meanwhile is taken from the run's events, where it is stored already."""

    def __init__(self, modes: Sequence[str], *, subgraphs: bool) -> None:
        self._tokens = "messages" in modes
        super().__init__([one for one in MODES if one in modes and one != "messages"], subgraphs=subgraphs)

    def __call__(self, event: RunEvent) -> None:
        if self._tokens and event.kind == TOKEN:
            chunk = AIMessageChunk(content=event.data["text"], id=event.data["message"])
            self.put((), "messages", (chunk, {"langgraph_node": event.path[-1] if event.path else ""}))


def _refuse_detours(input: Any, where: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if where.get("checkpoint_id"):
        raise errors.InvalidRequest(
            "a run from an older checkpoint is not made on the thread itself: its later effects would be behind it. "
            "Nothing was started; make a fork: standfast fork THREAD --at CHECKPOINT"
        )
    if isinstance(input, Command) and (input.goto or input.update or input.graph or input.resume is None):
        raise errors.InvalidRequest(
            "a command may only answer (resume): goto and update could lead past a person; nothing was done"
        )
    if options.get("interrupt_before") or options.get("interrupt_after"):
        raise errors.InvalidRequest(
            "breakpoints between nodes are not served here: the thread would wait without a question that anybody "
            "could answer; nothing was started"
        )


def _request(input: Any) -> Any:
    """One message of a person is a request as anybody's; other input is the graph's."""
    if not isinstance(input, Mapping) or not isinstance(input.get("messages"), list):
        return input
    messages = convert_to_messages(input["messages"])
    if len(messages) == 1 and messages[0].type == "human" and isinstance(messages[0].content, str) and len(input) == 1:
        return messages[0].content
    return {**input, "messages": messages}


def _options(runtime: AsyncRuntime, context: Any) -> dict[str, Any]:
    known = dict(context) if isinstance(context, Mapping) else {}
    options = {key: known.pop(key) for key in _OURS & known.keys() if known[key]}
    files = sorted(options.keys() & {"documents", "reports_dir"})
    if files and not runtime.embedded:
        raise errors.InvalidRequest(
            f"{' and '.join(files)} name files of the server's machine, and are taken only where the server is its "
            "user's own, with the embedded database; nothing was started"
        )
    return {**options, "context": known or None}


def _shown(part: Any, uuid: str) -> Any:
    """A part as the server may know it: the thread by its UUID, and nothing of the drive."""
    *_, mode, chunk = part
    if mode == "debug" and chunk["type"] == "checkpoint":
        chunk = {**chunk, "payload": _clean(chunk["payload"], uuid)}
    elif mode == "checkpoints":
        chunk = _clean(chunk, uuid)
    return (*part[:-1], chunk)


def _clean(payload: Mapping[str, Any], uuid: str) -> dict[str, Any]:
    tasks = [{**one, "state": _place(one["state"], uuid)} if one.get("state") else one for one in payload["tasks"]]
    places = {key: _place(payload[key], uuid) for key in ("config", "parent_config") if payload.get(key)}
    return {**payload, **places, "tasks": tasks}


def _place(config: Any, uuid: str) -> Any:
    if not isinstance(config, Mapping) or "configurable" not in config:
        return config
    where = config["configurable"]
    kept = {key: where[key] for key in ("checkpoint_ns", "checkpoint_id", "checkpoint_map") if key in where}
    return {"configurable": {**kept, "thread_id": uuid}}


async def _show_threads(runtime: AsyncRuntime) -> None:
    """Tell the server of the threads that it has not made itself."""
    client = get_client()
    known: set[str] = set()
    while True:
        with contextlib.suppress(Exception):  # the server is starting, or the database is away: the next time
            for thread in await runtime.athreads(graph=runtime.name, limit=1000):
                if thread.uuid not in known:
                    await client.threads.create(
                        thread_id=thread.uuid,
                        graph_id=runtime.name,
                        if_exists="do_nothing",
                        metadata={"thread": thread.id},
                    )
                    known.add(thread.uuid)
        await asyncio.sleep(_SYNC_SECONDS)


# -- who asks


def _auth() -> Auth:
    auth = Auth()

    @auth.authenticate
    async def authenticate(request: Any) -> dict[str, Any]:
        settings = Settings()
        headers = request.headers
        token = _bearer(headers.get("authorization")) or headers.get("x-api-key")
        client = request.client.host if request.client else None
        try:
            principal = await _who(settings, token, client, headers)
        except errors.NotAuthenticated as error:
            raise Auth.exceptions.HTTPException(status_code=401, detail=str(error)) from error
        if principal.tenant != _TENANT:
            raise Auth.exceptions.HTTPException(
                status_code=403, detail=f"this server shows the threads of tenant {_TENANT!r} to people of that tenant"
            )
        return {
            "identity": principal.name,
            "groups": sorted(principal.groups),
            "tenant": principal.tenant,
            "verified_by": principal.verified_by,
        }

    @auth.on
    async def allow(ctx: Auth.types.AuthContext, value: Any) -> bool:
        """Whoever is let in looks at everything here: it is all of one tenant."""
        return True

    @auth.on.threads.delete
    async def refuse_deleting(ctx: Auth.types.AuthContext, value: Any) -> bool:
        raise Auth.exceptions.HTTPException(
            status_code=403, detail="a thread, its ledger and its approvals are not deleted from Studio"
        )

    @auth.on.threads.update
    async def refuse_updating(ctx: Auth.types.AuthContext, value: Any) -> bool:
        raise Auth.exceptions.HTTPException(
            status_code=403,
            detail="a thread's state is not edited here; nothing was changed. Try it on a fork: standfast fork THREAD",
        )

    @auth.on.crons
    async def refuse_crons(ctx: Auth.types.AuthContext, value: Any) -> bool:
        raise Auth.exceptions.HTTPException(status_code=403, detail="schedules are kept by timers, not by this server")

    return auth


async def _who(settings: Settings, token: str | None, client: str | None, headers: Mapping[str, str]) -> Principal:
    authenticator = configured_authenticator(settings)
    if authenticator is not None:
        if token is None:
            raise errors.NotAuthenticated("give a token: this server believes nobody without one")
        return await Identity(authenticator).who(None, token)
    if settings.studio_token is not None:
        if token is None or not hmac.compare_digest(token, settings.studio_token.get_secret_value()):
            raise errors.NotAuthenticated("give the token of STANDFAST_STUDIO_TOKEN as a bearer token or x-api-key")
        return Principal.verified("studio", by="token")
    if settings.database_url is not None or not _is_loopback(client):
        raise errors.NotAuthenticated(
            "without a token only the embedded database is served, and only to this machine; "
            "set STANDFAST_STUDIO_TOKEN, or an authenticator"
        )
    _refuse_other_sites(headers)
    return Principal.operating_system()


def _refuse_other_sites(headers: Mapping[str, str]) -> None:
    """A web page of anybody's can reach this machine through its user's browser: only Studio's and our own may."""
    host = urlsplit(f"//{headers.get('host', '')}").hostname
    if host is not None and host != "localhost" and not _is_loopback(host):
        raise errors.NotAuthenticated(f"this server is {host!r} to its caller, not this machine")
    origin = headers.get("origin")
    if origin is None or origin == _STUDIO:
        return
    site = urlsplit(origin).hostname
    if site != "localhost" and not _is_loopback(site):
        raise errors.NotAuthenticated(f"a page of {origin} may not use this server")


def _is_loopback(host: str | None) -> bool:
    try:
        return host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bearer(header: str | None) -> str | None:
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _principal_of(user: Any) -> Principal | None:
    if user is None:
        return None
    if getattr(user, "verified_by", None) == OPERATING_SYSTEM:
        return Principal.operating_system()
    return Principal.from_langgraph(user)


__all__: Sequence[str] = ("Served", "ServedGraph")
