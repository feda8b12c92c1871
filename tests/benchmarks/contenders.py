"""What is compared: the same graph on the same server, through Standfast and through plain LangGraph.

Each contender drives one thread of `STEPS` supersteps to its end. All have a pool of the same size, the same
connection settings, and `durability="sync"`: the only mode that keeps every finished step.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TypedDict

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from standfast.graph import Runtime

STEPS: Final = 10
POOL_SIZE: Final = 20  # Standfast's default

Drive = Callable[[], Awaitable[None]]


class State(TypedDict):
    """A small dict and a message-like text, both written anew by each step."""

    step: int
    record: dict[str, Any]
    text: str


async def work(state: State) -> State:
    """One step that computes nothing: what remains is the cost of keeping it."""
    step = state["step"] + 1
    record = {"step": step, "customer": "C-1042", "amount": "129.50", "open": step < STEPS, "tags": ["a", "b"]}
    return {"step": step, "record": record, "text": f"Step {step}: the order was checked and may go on. " * 4}


def onward(state: State) -> Literal["work", "__end__"]:
    """A loop of `STEPS` supersteps."""
    return "work" if state["step"] < STEPS else "__end__"


def loop() -> StateGraph[State, None, State, State]:
    """The graph of all contenders."""
    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", onward, {"work": "work", "__end__": END})
    return graph


def first() -> State:
    """The input of a thread."""
    return {"step": 0, "record": {}, "text": "Check the order."}


@asynccontextmanager
async def contenders(url: str) -> AsyncIterator[Mapping[str, Drive]]:
    """The three by name: `standfast`, `one shared saver`, `one saver per run`. Tables live side by side in `url`."""
    plain: AsyncConnectionPool[Any] = AsyncConnectionPool(
        url,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
        min_size=1,
        max_size=POOL_SIZE,
        timeout=120.0,
        open=False,
    )
    async with Runtime(loop(), database_url=url, name="bench") as runtime, plain:
        shared = AsyncPostgresSaver(plain)
        await shared.setup()
        graph: CompiledStateGraph[State, None, State, State] = loop().compile(checkpointer=shared)

        async def standfast() -> None:
            result = await runtime.ainvoke(first(), thread_id=uuid.uuid4())
            assert result.values["step"] == STEPS, result

        async def one_shared_saver() -> None:
            await _plain(graph)

        async def one_saver_per_run() -> None:
            own = copy.copy(graph)  # compiling again would cost it a millisecond
            own.checkpointer = AsyncPostgresSaver(plain)
            await _plain(own)

        yield {
            "standfast": standfast,
            "one shared saver": one_shared_saver,
            "one saver per run": one_saver_per_run,
        }


async def _plain(graph: CompiledStateGraph[State, None, State, State]) -> None:
    values = await graph.ainvoke(first(), {"configurable": {"thread_id": str(uuid.uuid4())}}, durability="sync")
    assert values["step"] == STEPS, values
