"""What the ledger adds to a tool's call: against LangGraph's ToolNode calling the same tool, in commits of one row."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import psycopg
from contenders import first, loop
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from standfast.checkpoint.lease import claim
from standfast.checkpoint.operations import Call
from standfast.graph import Runtime
from standfast.tools.digests import call_digest
from standfast.tools.flow import Gate
from standfast.tools.ledger import Ledger
from standfast.tools.operations import Effect, Policy

COMMIT: Final = b"insert into public.commits (value) values (%s)"
POLICY: Final = Policy(Effect.IDEMPOTENT)
ROUNDS: Final = 5
ARGUMENTS: Final = {"customer": "C-1042", "amount": "129.50"}


@dataclass(frozen=True)
class Costs:
    """Seconds, a median for each round, of one tool call through the ledger and by ToolNode, and of one commit."""

    operation: list[float]
    tool_node: list[float]
    commit: list[float]

    @property
    def commits(self) -> list[float]:
        """What the ledger adds to a call, as so many commits, in each round."""
        rounds = zip(self.operation, self.tool_node, self.commit, strict=True)
        return [(ours - theirs) / commit for ours, theirs, commit in rounds]


async def refund(customer: str, amount: str) -> str:
    """Refund a customer."""
    return f"{amount} to {customer}"


async def ledger_costs(url: str, operations: int) -> Costs:
    """The three take turns, `operations` times each; both calls are the one node of a graph without a saver."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("create table public.commits (value text)")
    async with Runtime(loop(), database_url=url, name="bench") as runtime:
        store = runtime.store
        thread = str(uuid.uuid4())
        run = await runtime.asubmit(first(), thread_id=thread)
        lease = await claim(store.database, thread, seconds=600)
        ledger = Ledger(store.operations, lease, Gate(store.flow, lease, store.database.clock, parks=True))

        async def operate(state: MessagesState) -> dict[str, Any]:
            proposed = state["messages"][-1]
            assert isinstance(proposed, AIMessage)
            [asked] = proposed.tool_calls
            outcome = await ledger.execute(
                _call(run.run_id, asked), POLICY, lambda attempt, connection: refund(**asked["args"])
            )
            return {"messages": [ToolMessage(outcome.result, tool_call_id=asked["id"])]}

        through_the_ledger, by_tool_node = _graph(operate), _graph(ToolNode([tool(refund)]))
        contenders: dict[str, Callable[[int], Awaitable[Any]]] = {
            "operation": lambda number: through_the_ledger.ainvoke({"messages": [_proposal(number)]}),
            "tool_node": lambda number: by_tool_node.ainvoke({"messages": [_proposal(number)]}),
            "commit": lambda number: store.database.fetch_none(COMMIT, ("x" * 200,)),
        }
        spent: dict[str, list[list[float]]] = {name: [[] for _ in range(ROUNDS)] for name in contenders}
        for number in range(operations):
            for name, work in contenders.items():
                began = time.perf_counter()
                await work(number)
                spent[name][number * ROUNDS // operations].append(time.perf_counter() - began)
    return Costs(**{name: [median(one) for one in rounds if one] for name, rounds in spent.items()})


def _graph(node: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    return graph.compile()


def _proposal(number: int) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "refund", "args": ARGUMENTS, "id": f"op-{number}"}])


def _call(run_id: str, asked: Any) -> Call:
    return Call(
        id=asked["id"],
        run_id=run_id,
        kind="tool",
        name=asked["name"],
        namespace="",
        turn=0,
        index=0,
        effect="idempotent",
        digest=call_digest(asked["name"], asked["args"]),
        arguments=asked["args"],
    )
