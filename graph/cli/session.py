"""What a command works with: the database it was pointed at, the graph it was given, who is at the keyboard.

Invariant: the embedded server is held for the whole command, a runtime only while something is done; while a
person thinks, no connection and no lease is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from langgraph.graph.state import CompiledStateGraph, StateGraph
from pydantic import ValidationError

from standfast.checkpoint import errors
from standfast.checkpoint.embedded import EmbeddedPostgres
from standfast.checkpoint.settings import Settings
from standfast.graph.builder import build_agent
from standfast.graph.cli.options import token_file
from standfast.graph.cli.output import note
from standfast.graph.identity import Identity, configured_authenticator
from standfast.graph.runtime import AsyncRuntime
from standfast.tools.approval_policy import ApprovalPolicy
from standfast.tools.channels import Channel
from standfast.tools.policy_file import read_policy
from standfast.tools.principals import Principal

T = TypeVar("T")

DEFAULT_NAME = "agent"


@dataclass(frozen=True)
class Session:
    """One command's database and graph. `graph` is the MODULE:ATTR that was given, if one was."""

    url: str
    embedded: bool
    settings: Settings
    graph: str | None
    given_url: bool
    strict: bool = False  # the graph is the one that the policy's file is for

    def run(
        self,
        work: Callable[[AsyncRuntime], Coroutine[Any, Any, T]],
        *,
        name: str | None = None,
        channels: Sequence[Channel] | None = None,
    ) -> T:
        """Open a runtime, do `work` with it, close it. Ctrl-C cancels `work`, waits for it, and is raised again."""
        graph: Any = build_agent() if self.graph is None else load_graph(self.graph)

        async def inside() -> T:
            known_as = name or (DEFAULT_NAME if self.graph is None else self.graph)
            async with AsyncRuntime(
                graph,
                database_url=self.url,
                name=known_as,
                settings=self.settings,
                channels=channels,
                policy=self._policy(graph),
            ) as runtime:
                runtime.identity = self.identity
                return await work(runtime)

        return asyncio.run(inside())

    def _policy(self, graph: Any) -> ApprovalPolicy | None:
        """The policy's file without the operations of other graphs, where no graph was named; else None: the whole."""
        if self.settings.policy_file is None or self.graph is not None or self.strict:
            return None
        return read_policy(self.settings.policy_file).policy.only(graph.registry)

    @property
    def identity(self) -> Identity:
        """What is believed of whoever is at the keyboard: the embedded server is reached by its own account only."""
        return Identity(configured_authenticator(self.settings), local=self.embedded)

    def principal(self, name: str | None) -> Principal:
        """Who acts: whoever the token proves, else `--as` on the caller's word, else the operating system's user.

        Raises `NotAuthenticated` and `AuthenticatorUnavailable`; `InvalidRequest` for `--as` beside a token.
        """
        token = read_token(self.settings)
        as_ = None if name is None else Principal.vouched(name)
        if as_ is None and token is None:
            as_ = Principal.operating_system()
        return asyncio.run(self.identity.who(as_, token))

    def line(self, command: str, *, with_graph: bool = True) -> str:
        """A command to type, with what this one was given to find the same thread again.

        Without `with_graph` for a command that works on rows alone, and takes no `--graph`.
        """
        url = '--database "..." ' if self.given_url else ""
        graph = f" --graph {self.graph}" if self.graph and with_graph else ""
        return f"standfast {url}{command}{graph}"


@contextlib.contextmanager
def session(database: str | None, graph: str | None = None, *, strict: bool = False) -> Iterator[Session]:
    """The database named by `--database` or the environment, else the embedded server, held until the end."""
    settings = read_settings()
    url = chosen_url(database, settings)
    if url is not None:
        yield Session(url, False, settings, graph, given_url=database is not None, strict=strict)
        return
    server = embedded_server(settings)
    try:
        yield Session(server.acquire(), True, settings, graph, given_url=False, strict=strict)
    finally:
        server.release()


def chosen_url(database: str | None, settings: Settings) -> str | None:
    """The URL of `--database`, else of the environment, else None. Raises `DatabaseMisconfigured` for an empty one."""
    if database is not None and not database.strip():
        raise errors.DatabaseMisconfigured(
            "the database URL is empty; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or leave --database out"
        )
    configured = settings.database_url
    return database if database is not None or configured is None else configured.get_secret_value()


def read_token(settings: Settings) -> str | None:
    """The token of `--token-file`, else of the environment. Raises `InvalidRequest` if its file cannot be read."""
    path = token_file.get() or settings.token_file
    if path is None:
        return None if settings.token is None else settings.token.get_secret_value()
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise errors.InvalidRequest(f"the token's file {str(path)!r} cannot be read: {why}") from error
    if not token:
        raise errors.InvalidRequest(f"the token's file {str(path)!r} is empty")
    return token


def embedded_server(settings: Settings) -> EmbeddedPostgres:
    """The embedded server of the configured directory; it says on stderr what a slow start waits for."""
    return EmbeddedPostgres(None if settings.data_dir is None else settings.data_dir / "postgres", log=note)


def read_settings() -> Settings:
    """The environment's settings. Raises `DatabaseMisconfigured` with the variable's name."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        variable = "STANDFAST_" + "_".join(map(str, first["loc"])).upper()
        raise errors.ConfigurationError(f"{variable} is not usable: {first['msg']}") from error


def load_graph(place: str) -> StateGraph[Any, Any, Any, Any] | CompiledStateGraph[Any, Any, Any, Any]:
    """The graph at `MODULE:ATTR`, or what the function there returns; the current folder is importable.

    Raises `InvalidRequest`.
    """
    found = _load(place, "--graph", StateGraph | CompiledStateGraph)
    if not isinstance(found, StateGraph | CompiledStateGraph):
        raise errors.InvalidRequest(
            f"--graph {place!r} is {type(found).__name__}, not a StateGraph or a function that returns one"
        )
    return found


def load_channels(place: str | None) -> Sequence[Channel] | None:
    """The channels at `MODULE:ATTR`, a list or a function that returns one; None for None. Raises `InvalidRequest`."""
    if place is None:
        return None
    found = _load(place, "--channels", list | tuple)
    if not isinstance(found, list | tuple) or not all(hasattr(one, "send") for one in found):
        raise errors.InvalidRequest(
            f"--channels {place!r} is {type(found).__name__}, not a list of channels or a function that returns one"
        )
    return found


def _load(place: str, option: str, wanted: Any) -> Any:
    """What stands at `MODULE:ATTR`; of what is not `wanted` but can be called, what it returns."""
    module_name, colon, attribute = place.partition(":")
    if not (module_name and colon and attribute):
        raise errors.InvalidRequest(f"{option} takes MODULE:ATTR, such as my_agent:graph, not {place!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise errors.InvalidRequest(
            f"{option} {place!r}: there is no module {error.name!r} here; run it where it can be imported"
        ) from error
    except AttributeError as error:
        raise errors.InvalidRequest(f"{option} {place!r}: {error}") from error
    except Exception as error:
        raise errors.InvalidRequest(
            f"{option} {place!r}: the module cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if isinstance(found, wanted) or not callable(found):
        return found
    try:
        return found()
    except Exception as error:
        raise errors.InvalidRequest(f"{option} {place!r}: calling it raised {type(error).__name__}: {error}") from error
