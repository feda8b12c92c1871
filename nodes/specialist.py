"""The node that delegates: a specialist works on one task with its own messages, tools and bound of turns.

Invariant: it runs as a graph inside the node, so its progress is checkpointed under the node's namespace and
nothing but its answer reaches the parent.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig

from standfast.checkpoint.crashpoints import reach
from standfast.nodes.state import Delegation, Node, last_answer
from standfast.nodes.validation import call_id
from standfast.tools.drive import drive_of


def specialist_node(
    graph: Runnable[Any, Any],
) -> Node[Delegation]:
    """A node that lets `graph` (over `SpecialistState`) work on a delegated task."""

    async def specialist(state: Delegation, config: RunnableConfig) -> dict[str, Any]:
        call = state["call"]
        identifier = await call_id(drive_of(config), call)
        task = str(call["args"].get("task", ""))
        answer = await graph.ainvoke(
            {
                "messages": [HumanMessage(task, id=f"task-{identifier}")],
                "namespace": f"specialist:{identifier}",
            },
            config,
        )
        text = last_answer(answer["messages"])
        reach("node.specialist")
        return {
            "messages": [
                ToolMessage(
                    text or "The specialist found no answer within its bound of turns.",
                    id=f"result-{identifier}",
                    tool_call_id=call["id"],
                    name=call["name"],
                    status="success" if text else "error",
                )
            ]
        }

    return specialist
