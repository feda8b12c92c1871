"""The guard of deploys: what a thread is about to do must exist in the loaded graph.

LangGraph drops a pending task whose node is gone: the thread looks finished, and a resume "succeeds" and does
nothing. So before a thread is driven, its pending tasks are read from the checkpoint itself: the trigger
channels that hold a value, and the packets of `Send`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from standfast.checkpoint import errors
from standfast.checkpoint.saver import LeasedSaver

_BRANCH: Final = "branch:to:"
_JOIN: Final = "join:"
_TASKS: Final = "__pregel_tasks"

Graph = CompiledStateGraph[Any, Any, Any, Any]


def fingerprint(graph: Graph) -> str:
    """A short hash of the graph's nodes, edges and state fields, subgraphs included."""
    return hashlib.sha256(json.dumps(_shape(graph), sort_keys=True).encode()).hexdigest()[:16]


def _shape(graph: Graph) -> dict[str, Any]:
    subgraphs = dict(graph.get_subgraphs())
    return {
        "nodes": {
            name: {
                "triggers": sorted(map(str, node.triggers)),
                "subgraph": _shape(subgraphs[name]) if name in subgraphs else None,  # type: ignore[arg-type]
            }
            for name, node in graph.nodes.items()
        },
        "fields": sorted(name for name in graph.channels if not name.startswith((_BRANCH, _JOIN, "__"))),
    }


async def refuse_if_changed(graph: Graph, saver: LeasedSaver, thread_id: str) -> None:
    """Raise `GraphChanged` if the thread waits for, or was about to run, a node that the graph has not.

    Looks at the root and at each subgraph call that is in flight. Nothing is written.
    """
    await _check(graph, saver, thread_id, "", ())


async def _check(graph: Graph, saver: LeasedSaver, thread_id: str, namespace: str, path: tuple[str, ...]) -> None:
    found = await saver.aget_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}})
    if found is None:
        return
    pending = pending_nodes(found.checkpoint["channel_values"])
    missing = sorted(pending - set(graph.nodes))
    if missing:
        place = "/".join((*path, missing[0]))
        has = ", ".join(name for name in graph.nodes if not name.startswith("__"))
        raise errors.GraphChanged(
            f"thread {thread_id!r} is at node {place!r}, which the loaded graph has not; it has: {has}. "
            "The thread was left as it was: drive it with the graph that it was started on",
            thread_id=thread_id,
            missing=place,
            nodes=tuple(graph.nodes),
        )
    for name, subgraph in graph.get_subgraphs():
        if name not in pending:
            continue
        for inner in await saver.live_namespaces(thread_id, f"{namespace}|{name}:" if namespace else f"{name}:"):
            await _check(subgraph, saver, thread_id, inner, (*path, name))  # type: ignore[arg-type]


def pending_nodes(values: Mapping[str, Any]) -> set[str]:
    """The nodes that a checkpoint is about to run, or that a join still gathers for."""
    names = {channel.removeprefix(_BRANCH) for channel in values if channel.startswith(_BRANCH)}
    names |= {channel.rsplit(":", 1)[1] for channel in values if channel.startswith(_JOIN)}
    names |= {packet.node for packet in values.get(_TASKS) or () if isinstance(packet, Send)}
    return names
