"""Nodes that cannot end the process that drives them.

Invariant: what a node raises is an `Exception`. `SystemExit` and `KeyboardInterrupt` would pass through asyncio's tasks
and end the event loop, and with it every other thread that is driven there; a person's Ctrl-C is no node's.
"""

from __future__ import annotations

import copy
import threading
from typing import Any, Final

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph._internal._runnable import RunnableCallable
from langgraph.pregel import Pregel

from standfast.checkpoint import errors
from standfast.graph.changed import Graph

_EXITS: Final = (SystemExit, KeyboardInterrupt)


def guarded(graph: Graph) -> Graph:
    """The same graph with guarded nodes, those of the graphs in it too; the given one is left as it is."""
    mine = copy.copy(graph)
    mine.nodes = {name: node.copy({"bound": _guarded(node.bound)}) for name, node in graph.nodes.items()}
    return mine


def _guarded(bound: Runnable[Any, Any]) -> Runnable[Any, Any]:
    if isinstance(bound, Pregel):
        return guarded(bound)  # type: ignore[arg-type]
    if type(bound) is not RunnableCallable:
        return bound
    node = Guarded.__new__(Guarded)  # its functions stay what they are: LangGraph looks into them for graphs
    vars(node).update(vars(bound))
    return node


class Guarded(RunnableCallable):
    """A node's function."""

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        try:
            return await super().ainvoke(input, config, **kwargs)
        except _EXITS as exit:
            by_hand = self.func is None and threading.current_thread() is threading.main_thread()
            if isinstance(exit, KeyboardInterrupt) and by_hand:
                raise
            said = f"sys.exit({exit.code!r})" if isinstance(exit, SystemExit) else "KeyboardInterrupt"
            raise errors.NodeExited(
                f"it raised {said}, which would end the process: a node ends by returning, and fails by an Exception"
            ).with_traceback(exit.__traceback__) from exit
