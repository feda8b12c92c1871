"""An invoice that is sent, waits a little, and then waits for its payment: the graph of notebook 05."""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from langgraph.graph import END, START, StateGraph

from standfast.graph import sleep, wait_for_event


class Invoice(TypedDict, total=False):
    invoice: int
    state: str


async def send(state: Invoice) -> Invoice:
    return {"state": "sent"}


async def wait_a_little(state: Invoice) -> Invoice:
    await sleep(for_=timedelta(seconds=0.5))  # three days would hold nothing either
    return {}


async def collect(state: Invoice) -> Invoice:
    paid = await wait_for_event("paid", match={"invoice": state["invoice"]}, timeout=30 * 24 * 3600)
    return {"state": f"paid by {paid.payload['by']}" if paid else "overdue"}


graph = StateGraph(Invoice)
graph.add_node("send", send)
graph.add_node("wait_a_little", wait_a_little)
graph.add_node("collect", collect)
graph.add_edge(START, "send")
graph.add_edge("send", "wait_a_little")
graph.add_edge("wait_a_little", "collect")
graph.add_edge("collect", END)
