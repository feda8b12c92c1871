"""What a conversation costs to keep: `python tests/benchmarks/messages.py`.

The same thread, one 2 kB message a step, with the messages kept as `add_messages` keeps them (the whole list in each
checkpoint) and as a `DeltaChannel` with snapshots at different distances. The decision that rests on it is
docs/decisions/0001-messages.md.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import string
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NotRequired, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.graph.message import _messages_delta_reducer
from place import fresh_database
from psycopg import AsyncConnection
from rich.console import Console
from rich.table import Table

from standfast.graph import Runtime
from standfast.nodes.state import Messages

SIZE: Final = 2000  # characters of a message
CUT: Final = (50, 200, 500)
DISTANCES: Final = (1000, 200, 100, 50, 20)

Kept = Any  # an annotated list of messages: a type made at run time
OURS: Final[Kept] = Messages
WHOLE_LIST: Final[Kept] = Annotated[list[AnyMessage], add_messages]
REDUCER: Final[Any] = _messages_delta_reducer


@dataclass(frozen=True)
class Cost:
    """A thread of `steps` steps: bytes in the checkpoint tables, seconds to make it and to read its state."""

    steps: int
    stored: int
    making: float
    reading: float


def delta(distance: int) -> Kept:
    """Messages as deltas, the whole list again after `distance` updates."""
    return Annotated[list[AnyMessage], DeltaChannel(REDUCER, snapshot_frequency=distance)]


def conversation(kept: Kept) -> StateGraph[Any, Any, Any, Any]:
    """A loop that adds one message a step until there are `steps`."""
    # A class would hide the run-time type behind a postponed annotation.
    state = TypedDict("state", {"messages": kept, "step": NotRequired[int], "steps": int})  # noqa: UP013
    words = random.Random(1)  # the same text each time, which compresses like text and not like a repeated line

    async def talk(state: Any) -> dict[str, Any]:
        step = state.get("step", 0) + 1
        text = "".join(words.choices(string.ascii_lowercase + "     ", k=SIZE))
        return {"messages": [AIMessage(text, id=f"message-{step}")], "step": step}

    graph = StateGraph(state)
    graph.add_node("talk", talk)
    graph.add_edge(START, "talk")
    graph.add_conditional_edges("talk", lambda state: "talk" if state["step"] < state["steps"] else END)
    return graph


async def cost(url: str, kept: Kept, steps: int) -> Cost:
    """Make one thread of `steps` steps and measure it."""
    thread = str(uuid.uuid4())
    async with Runtime(conversation(kept), database_url=url, name="conversation") as runtime:
        began = time.perf_counter()
        request = {"messages": [HumanMessage("Go on.", id="message-0")], "steps": steps}
        await runtime.ainvoke(request, thread_id=thread)
        making = time.perf_counter() - began
        began = time.perf_counter()
        state = await runtime.astate(thread)
        reading = time.perf_counter() - began
        assert len(state.values["messages"]) == steps + 1
    return Cost(steps, await stored(url, thread), making, reading)


async def stored(url: str, thread: str) -> int:
    """Bytes of a thread's rows in the checkpoint tables, as they are stored (compressed), without indexes."""
    async with await AsyncConnection.connect(url) as conn:
        cursor = await conn.execute(
            """select sum(size) from (
                   select pg_column_size(c.*) as size from standfast.checkpoints c where thread_id = %(t)s
                   union all
                   select pg_column_size(b.*) from standfast.checkpoint_blobs b where thread_id = %(t)s
                   union all
                   select pg_column_size(w.*) from standfast.checkpoint_writes w where thread_id = %(t)s) as rows""",
            {"t": thread},
        )
        row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def stored_per_step(url: str, kept: Kept, steps: int) -> float:
    """Bytes stored for each step of a thread of `steps` steps."""
    return (await cost(url, kept, steps)).stored / steps


async def compare(url: str, cut: Sequence[int]) -> Table:
    """All shapes at all lengths."""
    shown = Table(title="Messages of 2 kB, one a step")
    for column in ("kept as", "steps", "MB", "kB a step", "ms a step", "ms to read"):
        shown.add_column(column, justify="left" if column == "kept as" else "right")
    shapes: dict[str, Kept] = {"whole list": WHOLE_LIST}
    shapes |= {f"deltas, snapshot after {distance}": delta(distance) for distance in DISTANCES}
    for name, kept in shapes.items():
        for steps in cut:
            one = await cost(url, kept, steps)
            shown.add_row(
                name,
                str(steps),
                f"{one.stored / 1e6:.2f}",
                f"{one.stored / steps / 1e3:.1f}",
                f"{one.making / steps * 1e3:.2f}",
                f"{one.reading * 1e3:.0f}",
            )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description="What a conversation costs to keep.")
    parser.add_argument("--url", help="a Postgres server where a database may be made; by default an embedded one")
    parser.add_argument("--steps", type=int, nargs="+", default=CUT, help="lengths of the threads")
    options = parser.parse_args()
    with fresh_database(options.url) as url:
        console = Console()
        console = console if console.is_terminal else Console(width=100)  # a log has no width of its own
        console.print(asyncio.run(compare(url, options.steps)))


if __name__ == "__main__":
    main()
