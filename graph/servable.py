"""What a runtime can serve: a graph of nodes that nothing stops but their own questions, under a name and a version."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from langgraph.graph.state import CompiledStateGraph, StateGraph
from pydantic import BaseModel

from standfast.checkpoint import errors


def require_named(graph: object, *, name: object, version: object, takes_over: Collection[str]) -> None:
    """Raise `InvalidRequest` for what is no graph, or not named by texts."""
    if not isinstance(graph, StateGraph | CompiledStateGraph):
        raise errors.InvalidRequest(
            f"a runtime takes a StateGraph, or what its compile() returns, not {type(graph).__name__} {graph!r:.60}"
        )
    for what, given in (("name", name), ("version", version)):
        if not isinstance(given, str) or not given.strip():
            raise errors.InvalidRequest(f"the {what} of a graph is a text such as '2', not {given!r:.60}")
    if isinstance(takes_over, str):
        raise errors.InvalidRequest(f"takes_over is a collection of versions, such as {{{takes_over!r}}}, not a text")


def require_unbroken(graph: CompiledStateGraph[Any, Any, Any, Any], name: str) -> None:
    """Raise `InvalidRequest` for a graph that is compiled with breakpoints, also in a graph within it."""
    graphs: list[Any] = [graph, *(one for _, one in graph.get_subgraphs(recurse=True))]
    kinds = ("interrupt_before_nodes", "interrupt_after_nodes")
    stops = {node for one in graphs for kind in kinds for node in getattr(one, kind, ())}
    if stops:
        raise errors.InvalidRequest(
            f"graph {name!r} is compiled with breakpoints ({', '.join(sorted(stops))}): the thread would stop there "
            "without a question that anybody could answer. Ask in a node: interrupt(), or approval_node()"
        )


def state_fields(graph: CompiledStateGraph[Any, Any, Any, Any]) -> frozenset[str]:
    """The names under which a graph keeps values."""
    return frozenset(name for name in graph.channels if ":" not in name)


def fields_of(graph: CompiledStateGraph[Any, Any, Any, Any]) -> frozenset[str] | None:
    """The fields that a request may name; None if only the graph's own schema can tell."""
    schema = graph.builder.input_schema
    if "__root__" in graph.channels or (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return None
    return frozenset(name for name in state_fields(graph) if not name.startswith("__"))


def require_fields(given: Iterable[object], fields: frozenset[str], *, then: str) -> None:
    """Raise `InvalidRequest` for what is no field, with what follows from that: LangGraph drops it without a word."""
    unknown = sorted(set(map(str, given)) - fields)
    if unknown:
        raise errors.InvalidRequest(f"the graph's state has no field {', '.join(map(repr, unknown))}; {then}")
