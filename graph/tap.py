"""What LangGraph tells of a drive, heard where it is told: no queue and no waiting task between.

Invariant: the graphs inside a graph are heard too, whichever way they are called; `hear` is called on the loop's
thread alone. The two private keys are those by which a graph tells the graph around it; a canary watches them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.config import get_config
from langgraph.pregel._messages import StreamMessagesHandler
from langgraph.pregel.protocol import StreamProtocol
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import StreamMode

_STREAM: Final = "__pregel_stream"
_RUNTIME: Final = "__pregel_runtime"

Part = tuple[tuple[str, ...], str, Any]  # the namespace, the mode, what is told
Hear = Callable[[tuple[str, ...], str, Any], None]


class Tap:
    """Hands each part of one drive's stream to `hear(namespace, mode, part)`, from whichever thread it comes."""

    def __init__(self, modes: Iterable[StreamMode], hear: Hear, *, store: BaseStore | None = None) -> None:
        self._store = store  # LangGraph takes a graph's store from here as soon as this stands there
        self._modes = set(modes)
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    @property
    def configurable(self) -> dict[str, Any]:
        """What makes a graph tell it."""
        own = self._modes - {"messages", "custom"}
        return {
            _STREAM: StreamProtocol(self._take, own),
            _RUNTIME: Runtime(stream_writer=self._written, store=self._store),
        }

    @property
    def callbacks(self) -> list[BaseCallbackHandler]:
        """What makes the models in a graph tell it."""
        return [StreamMessagesHandler(self._take, subgraphs=True)] if "messages" in self._modes else []

    def _take(self, part: Part) -> None:
        if threading.get_ident() == self._thread:
            self._hear(*part)
        else:
            self._loop.call_soon_threadsafe(self._hear, *part)

    def _written(self, part: Any) -> None:
        namespace = get_config()["configurable"]["checkpoint_ns"].split("|")
        self._take((tuple(namespace[:-1]), "custom", part))
