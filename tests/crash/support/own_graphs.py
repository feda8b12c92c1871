"""Graphs as LangGraph's users write them; nothing in them is made for this runtime but a durable step here and there.

What a node has done is a line in the file `STANDFAST_TEST_LOG`.
"""

from __future__ import annotations

import operator
import os
import random
from typing import Annotated, Any, Literal, TypedDict

import anyio
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from standfast.graph import (
    OperationContext,
    OperationState,
    Policy,
    Registry,
    after_approval,
    after_operate,
    after_validation,
    approval_node,
    durable_step,
    join,
    map,
    operate_node,
    operation,
    proposal,
    spawn,
    validation_node,
)
from tests.crash.support.scripted_model import ScriptedModel, call, script


def log(what: str) -> None:
    with open(os.environ["STANDFAST_TEST_LOG"], "a") as file:
        file.write(what + "\n")


# -- a router with parallel branches, that meet in a node which asks


class Ticket(TypedDict, total=False):
    text: str
    notes: Annotated[list[str], operator.add]
    answer: str


@durable_step
async def look_up(source: str, text: str) -> str:
    await anyio.sleep(0.01)
    log(f"{source} looked up")
    return f"{source} knows {text}"


def classify(state: Ticket) -> list[Literal["billing", "history"]]:
    return ["billing", "history"] if "money" in state["text"] else ["history"]


async def billing(state: Ticket) -> Ticket:
    return {"notes": [await look_up("billing", state["text"])]}


async def history(state: Ticket) -> Ticket:
    return {"notes": [await look_up("history", state["text"])]}


def reply(state: Ticket) -> Ticket:
    draft = "; ".join(sorted(state["notes"]))
    return {"answer": f"{draft}; {interrupt({'draft': draft})}"}


def router() -> Any:
    graph = StateGraph(Ticket)
    graph.add_node("billing", billing)
    graph.add_node("history", history)
    graph.add_node("reply", reply, defer=True)
    graph.add_conditional_edges(START, classify)
    graph.add_edge("billing", "reply")
    graph.add_edge("history", "reply")
    graph.add_edge("reply", END)
    return graph


# -- map and reduce by Send


class Pages(TypedDict, total=False):
    pages: list[str]
    counts: Annotated[list[tuple[str, int]], operator.add]
    total: int


class Page(TypedDict):
    page: str


@durable_step(name="count the words")
def count(page: str) -> int:
    log(f"counted {page}")
    return len(page.split())


async def count_page(state: Page) -> Pages:
    return {"counts": [(state["page"], await count(state["page"]))]}


async def reduce(state: Pages) -> Pages:
    return {"total": sum(number for _, number in state["counts"])}


def map_reduce() -> Any:
    graph = StateGraph(Pages)
    graph.add_node("count_page", count_page)
    graph.add_node("reduce", reduce)
    graph.add_conditional_edges(START, lambda state: [Send("count_page", {"page": one}) for one in state["pages"]])
    graph.add_edge("count_page", "reduce")
    graph.add_edge("reduce", END)
    return graph


# -- a supervisor over two of LangChain's agents, one of which asks before it acts


@durable_step
async def reserve(what: str, where: str) -> str:
    log(f"booked {what} {where}")
    return f"{what} {where} is booked"


@tool
async def book_flight(where: str) -> str:
    """Book a flight."""
    return await reserve("flight", where)


@tool
async def book_hotel(where: str) -> str:
    """Book a hotel."""
    return await reserve("hotel", where)


class Trip(MessagesState, total=False):
    where: str


def supervise(state: Trip) -> Command[Literal["flights", "hotels", "__end__"]]:
    said = [one.text for one in state["messages"] if isinstance(one, AIMessage)]
    where = state["where"]
    if "hotel done" in said:
        return Command(goto=END)
    if "flight done" in said:
        request = script([call("book_hotel", where=where)], "hotel done")
        return Command(goto="hotels", update={"messages": [HumanMessage(request)]})
    request = script([call("book_flight", where=where)], "flight done")
    return Command(goto="flights", update={"messages": [HumanMessage(request)]})


def supervisor() -> Any:
    asking = HumanInTheLoopMiddleware(interrupt_on={"book_flight": True})
    graph = StateGraph(Trip)
    graph.add_node("supervisor", supervise)
    graph.add_node("flights", create_agent(ScriptedModel(), [book_flight], middleware=[asking], name="flights"))
    graph.add_node("hotels", create_agent(ScriptedModel(), [book_hotel], name="hotels"))
    graph.add_edge(START, "supervisor")
    graph.add_edge("flights", "supervisor")
    graph.add_edge("hotels", "supervisor")
    return graph


# -- a family: a graph that gives parts of its work to threads of the same graph


class Part(TypedDict, total=False):
    name: str
    parts: list[str]
    sizes: list[int]


async def give_out(state: Part) -> Part:
    if not state.get("parts"):
        log(f"measured {state['name']}")
        return {"sizes": [len(state["name"])]}
    first, *others = state["parts"]
    child = await spawn({"name": first})
    ends = [await join(child), *await map([{"name": one} for one in others], concurrency=2)]
    return {"sizes": [size for end in ends if end is not None for size in end.output["sizes"]]}


family = StateGraph(Part)
family.add_node("give_out", give_out)
family.add_edge(START, "give_out")


# -- documents that are too large for a checkpoint, in a state of the graph's own


class Desk(TypedDict, total=False):
    document: bytes
    pages: Annotated[list[str], operator.add]
    sizes: list[int]


def document(seed: int) -> bytes:
    return random.Random(seed).randbytes(400_000)


async def scan(state: Desk) -> Desk:
    log(f"scanned {len(state.get('pages', []))}")
    return {"document": document(len(state.get("pages", []))), "pages": [f"{len(state.get('pages', []))} " * 150_000]}


async def measure(state: Desk) -> Desk:
    assert document(2) == state["document"]
    assert [f"{seed} " * 150_000 for seed in range(3)] == state["pages"]
    log("measured")
    return {"sizes": [len(page) for page in state["pages"]]}


def desk() -> Any:
    graph = StateGraph(Desk)
    graph.add_node("scan", scan)
    graph.add_node("measure", measure)
    graph.add_edge(START, "scan")
    graph.add_conditional_edges("scan", lambda state: "scan" if len(state["pages"]) < 3 else "measure")
    graph.add_edge("measure", END)
    return graph


# -- an operation, piece by piece: its approval is a node of the root graph, and a checkpoint stands before it


@operation(policy=Policy(effect="idempotent", approval=True))
async def post(text: str, context: OperationContext) -> str:
    """Post a notice, which a person must allow."""
    log(f"{context.thread_id} posted {text} as {context.operation_id}")
    return f"{text} is posted"


class Notice(OperationState, total=False):
    text: str
    reply: str


async def draft(state: Notice) -> dict[str, Any]:
    return {"call": proposal("post", {"text": state["text"]}, at="draft")}


def close(state: Notice) -> dict[str, Any]:
    return {"reply": state["messages"][-1].text}


def noticing() -> Any:
    registry = Registry([post])
    graph = StateGraph(Notice)
    graph.add_node("draft", draft)
    graph.add_node("validation", validation_node(registry))
    graph.add_node("approval", approval_node(registry))
    graph.add_node("operate", operate_node(registry))
    graph.add_node("close", close)
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "validation")
    graph.add_conditional_edges("validation", after_validation, {"approval": "approval", END: "close"})
    graph.add_conditional_edges(
        "approval", after_approval, {"operate": "operate", "approval": "approval", END: "close"}
    )
    graph.add_conditional_edges("operate", after_operate, {"approval": "approval", END: "close"})
    graph.add_edge("close", END)
    return graph
