"""An agent whose specialist may act: its calls wait for a person inside the specialist's own graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langgraph.graph import END, START, StateGraph

from standfast.graph import Operation
from standfast.graph.builder import AgentGraph, delegate, operation_graph
from standfast.graph.routing import after_analysis
from standfast.nodes.analysis import analysis_node
from standfast.nodes.record import record
from standfast.nodes.specialist import specialist_node
from standfast.nodes.state import AgentState, SpecialistState
from standfast.tools.operations import Registry
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel


def nested_agent(inner: str = "operation", operations: Iterable[Operation] = OPERATIONS) -> AgentGraph:
    """An agent that delegates to `writer`; `inner` is the name of the specialist's node for its calls."""
    registry = Registry(operations)
    model = ScriptedModel()

    specialist: Any = StateGraph(SpecialistState)
    specialist.add_node("analysis", analysis_node(lambda drive: model, registry, "You are the specialist."))
    specialist.add_node(inner, operation_graph(registry).compile())
    specialist.add_edge(START, "analysis")
    route = after_analysis(specialists=(), max_turns=8, finish=END)

    def to_inner(state: Any) -> Any:
        sent = route(state)
        if isinstance(sent, str):
            return sent
        for one in sent:
            one.node = inner
        return sent

    specialist.add_conditional_edges("analysis", to_inner, [inner, "analysis", END])
    specialist.add_edge(inner, "analysis")

    graph = AgentGraph(AgentState)
    graph.registry = registry
    graph.add_node("analysis", analysis_node(lambda drive: model, [*registry, delegate], "You delegate."))
    graph.add_node("operation", operation_graph(registry).compile())
    graph.add_node("specialist", specialist_node(specialist.compile()))
    graph.add_node("record", record)
    graph.add_edge(START, "analysis")
    graph.add_conditional_edges(
        "analysis",
        after_analysis(specialists={"writer"}, max_turns=8, finish="record"),
        ["operation", "specialist", "analysis", "record"],
    )
    graph.add_edge("operation", "analysis")
    graph.add_edge("specialist", "analysis")
    graph.add_edge("record", END)
    return graph
