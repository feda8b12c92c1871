"""The agent: a graph of analysis, operations with their approvals, specialists and a record. Read it top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel, Field

from standfast.checkpoint.shown import Shown
from standfast.graph.pictures.diagram import picture_of
from standfast.graph.routing import DELEGATE, after_analysis, after_approval, after_operate, after_validation
from standfast.nodes.analysis import MODEL_RETRY, ModelFor, analysis_node
from standfast.nodes.approval import approval_node
from standfast.nodes.models import load_model
from standfast.nodes.operate import operate_node
from standfast.nodes.record import record
from standfast.nodes.specialist import specialist_node
from standfast.nodes.state import (
    AgentContext,
    AgentInput,
    AgentOutput,
    AgentState,
    OperationResult,
    OperationState,
    SpecialistState,
)
from standfast.nodes.validation import validation_node
from standfast.tools.documents import read_document, search_documents
from standfast.tools.drive import Drive
from standfast.tools.operations import Effect, Operation, OperationContext, Policy, Registry
from standfast.tools.reports import publish_report
from standfast.tools.retries import RetryPolicy

DEFAULT_OPERATIONS: Final = (search_documents, read_document, publish_report)
EXTRACTOR: Final = "extractor"

INSTRUCTIONS: Final = (
    "You carry out a request about documents. Search them, read the passages that matter, let the specialist "
    f"'{EXTRACTOR}' pick out sentences, and answer from what you read. If a report is asked for, propose "
    "publish_report with quotations that stand word for word in the passages you read and in the body, and with "
    "every quoted document as a source. Say plainly what you could not find. A person decides about publishing; "
    "accept the decision."
)
SPECIALIST_INSTRUCTIONS: Final = (
    f"You are the specialist '{EXTRACTOR}'. Find and return, word for word and with document and passage number, "
    "the sentences of the documents that bear on the task. You search and read; you decide nothing."
)


class Delegate(BaseModel):
    """Give a task to a specialist, who works with its own messages and returns its findings."""

    specialist: str = Field(description=f"Who: {EXTRACTOR!r} finds sentences that bear on a task")
    task: str = Field(min_length=1, description="What to find, in one or two sentences")


class AgentGraph(StateGraph[AgentState, AgentContext, AgentInput, AgentOutput], Shown):
    """The agent's graph, with the operations that its nodes know. A notebook shows it as a picture."""

    registry: Registry
    asks_named_model: bool = False  # whom a run asks is kept with it, not built into the graph

    def compile(self, *args: Any, **options: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
        """LangGraph's `compile`; of the compiled graph too a notebook shows our picture, not that of a web service."""
        compiled = super().compile(*args, **options)
        # An attribute of the object is what IPython finds before LangGraph's method, which sends the graph away.
        compiled._repr_mimebundle_ = partial(_mimebundle, self)  # type: ignore[method-assign]
        return compiled


def build_agent(
    *,
    model: BaseChatModel | None = None,
    operations: Sequence[Operation] = DEFAULT_OPERATIONS,
    instructions: str = INSTRUCTIONS,
    max_turns: int = 25,
    model_retry: RetryPolicy = MODEL_RETRY,
) -> AgentGraph:
    """The agent as an uncompiled graph, to be given to `Runtime`.

    `model` answers every run; without it the model that each run was accepted with does. `operations` is
    everything the agent can do (`[*DEFAULT_OPERATIONS, mine]` adds to the built-in ones). `max_turns` bounds
    the model's answers in one run; `model_retry` says when a model that failed is asked again. Raises
    `DuplicateOperation` and `InvalidOperation`.
    """
    readers = [one for one in operations if isinstance(one, Operation) and one in (search_documents, read_document)]
    registry = Registry(operations)
    delegates = [delegate] if readers else []
    model_for = _model_for(model)

    graph = AgentGraph(AgentState, AgentContext, input_schema=AgentInput, output_schema=AgentOutput)
    graph.registry = registry
    graph.asks_named_model = model is None
    graph.add_node("analysis", analysis_node(model_for, [*registry, *delegates], instructions, model_retry))
    graph.add_node("operation", operation_graph(registry).compile())
    graph.add_node("specialist", specialist_node(_specialist(model_for, readers, model_retry).compile()))
    graph.add_node("record", record)

    graph.add_edge(START, "analysis")
    graph.add_conditional_edges(
        "analysis",
        after_analysis(specialists={EXTRACTOR} if readers else set(), max_turns=max_turns, finish="record"),
        ["operation", "specialist", "analysis", "record"],
    )
    graph.add_edge("operation", "analysis")
    graph.add_edge("specialist", "analysis")
    graph.add_edge("record", END)
    return graph


def registry_of(graph: Any) -> Registry | None:
    """The operations that a graph brings along, if it does, compiled or not."""
    builder = graph.builder if isinstance(graph, CompiledStateGraph) else graph
    found: Registry | None = getattr(builder, "registry", None)
    return found


def asks_named_model(graph: Any) -> bool:
    """Whether the model's name that is kept with a run says who answers in this graph, compiled or not."""
    builder = graph.builder if isinstance(graph, CompiledStateGraph) else graph
    return bool(getattr(builder, "asks_named_model", False))


def operation_graph(registry: Registry) -> StateGraph[OperationState, None, OperationState, OperationResult]:
    """The subgraph of one tool call: validation, approval, operate. Each call has its own, and waits by itself."""
    graph = StateGraph(OperationState, output_schema=OperationResult)
    graph.add_node("validation", validation_node(registry))
    graph.add_node("approval", approval_node(registry))
    graph.add_node("operate", operate_node(registry))

    graph.add_edge(START, "validation")
    graph.add_conditional_edges("validation", after_validation, ["approval", END])
    graph.add_conditional_edges("approval", after_approval, ["operate", "approval", END])
    graph.add_conditional_edges("operate", after_operate, ["approval", END])
    return graph


def _mimebundle(graph: AgentGraph, **_: Any) -> dict[str, Any]:
    return {"text/plain": repr(picture_of(graph)), "text/html": graph._repr_html_()}


def _specialist(
    model_for: ModelFor, readers: Sequence[Operation], model_retry: RetryPolicy
) -> StateGraph[SpecialistState, None, SpecialistState, SpecialistState]:
    registry = Registry(readers)
    graph = StateGraph(SpecialistState)
    graph.add_node("analysis", analysis_node(model_for, registry, SPECIALIST_INSTRUCTIONS, model_retry))
    graph.add_node("operation", operation_graph(registry).compile())

    graph.add_edge(START, "analysis")
    graph.add_conditional_edges(
        "analysis", after_analysis(specialists=(), max_turns=8, finish=END), ["operation", "analysis", END]
    )
    graph.add_edge("operation", "analysis")
    return graph


def _model_for(model: BaseChatModel | None) -> ModelFor:
    def choose(drive: Drive) -> BaseChatModel:
        return model if model is not None else load_model(drive.run.model or "offline")

    return choose


async def _routed(arguments: Any, context: OperationContext) -> Any:
    raise AssertionError("a delegation is routed to its specialist, never executed as an operation")


delegate: Final = Operation(DELEGATE, Delegate.__doc__ or "", Policy(effect=Effect.READ), Delegate, _routed)
