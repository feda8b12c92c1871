"""The benchmarks run and say what they should; what a conversation costs does not grow with its length.

No bar is tested: a test runs on a busy machine, and its numbers are few.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph

from standfast.graph import Runtime
from standfast.nodes.state import Messages
from tests.benchmarks import scaling

Query = Callable[..., list[tuple[Any, ...]]]

BENCH: Final = Path(__file__).with_name("bench.py")
MESSAGE: Final = 2000  # characters


class Conversation(TypedDict):
    """The agent's messages, one a step."""

    messages: Messages
    step: NotRequired[int]


def talk(steps: int) -> StateGraph[Conversation, None, Conversation, Conversation]:
    """A loop of `steps` steps that each add a message of its own, which does not compress well."""

    async def step(state: Conversation) -> dict[str, Any]:
        number = state.get("step", 0) + 1
        text = "".join(f"{number * place * 2654435761 % 2**32:08x}" for place in range(1, MESSAGE // 8 + 1))
        return {"messages": [AIMessage(text, id=f"message-{number}")], "step": number}

    graph = StateGraph(Conversation)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: "step" if state["step"] < steps else END)
    return graph


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCH), *arguments], capture_output=True, text=True, timeout=110)


def test_the_short_form_compares_in_one_run_and_exits_0_whether_a_bar_is_met_or_not(
    server_url: str, tmp_path: Path
) -> None:
    done = run("--short", "--url", server_url, "--json", str(tmp_path / "bench.json"))
    assert (0, "") == (done.returncode, done.stderr)
    measurements = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    barred = [one for one in measurements if one["bar"] is not None]

    assert 5 == len(barred)
    for one in barred:
        word, bar = one["bar"].rsplit(" ", 1)
        assert one["spread"][0] <= one["ratio"] <= one["spread"][1]
        assert one["met"] is (one["ratio"] <= float(bar) if word == "at most" else one["ratio"] >= float(bar))
        assert ("met" if one["met"] else "MISSED") in done.stdout
    for one in measurements:
        assert {"name", "value", "unit", "baseline", "ratio", "spread", "bar", "met"} == one.keys()
        assert one["value"] > 0


def test_a_wrong_argument_exits_2() -> None:
    assert 2 == run("--shrot").returncode


@pytest.mark.guarantee("G13")
async def test_bytes_stored_per_step_do_not_grow_with_the_length_of_the_conversation(
    database_url: str, query: Query
) -> None:
    async with Runtime(talk(200), database_url=database_url, name="talk") as runtime:
        result = await runtime.ainvoke({"messages": [HumanMessage("Go on.", id="message-0")]}, thread_id="long")
    assert 201 == len(result.values["messages"])

    after = [stored(query, "long", steps) for steps in (50, 100, 150, 200)]
    early, _, late = (later - sooner for sooner, later in pairwise(after))
    assert early / 50 > MESSAGE
    assert late / early < 1.3


def stored(query: Query, thread: str, steps: int) -> int:
    """Bytes of everything that was stored for a thread up to the end of a step."""
    [(head,)] = query(
        "select checkpoint_id from checkpoints where thread_id = %s and (metadata ->> 'step')::int = %s", thread, steps
    )
    total = 0
    for statement in (
        "select sum(pg_column_size(c.*)) from checkpoints c where thread_id = %s and checkpoint_id <= %s",
        "select sum(pg_column_size(w.*)) from checkpoint_writes w where thread_id = %s and checkpoint_id < %s",
        """select sum(pg_column_size(b.*)) from checkpoint_blobs b where thread_id = %s and exists (
               select 1 from checkpoints c where c.thread_id = b.thread_id and c.checkpoint_id <= %s
                  and c.checkpoint -> 'channel_versions' ->> b.channel = b.version)""",
    ):
        [(size,)] = query(statement, thread, head)
        total += int(size or 0)
    return total


async def test_what_a_step_and_a_waiting_thread_cost_is_measured(server_url: str) -> None:
    step = await scaling.costs(server_url, scaling.stepping(), 2, scaling.STEPS)
    waiting = await scaling.costs(server_url, scaling.asking(), 4, 1)
    assert (20, 4) == (step.count, waiting.count)
    for cost in (step, waiting):
        assert cost.bytes_wal > 0
        assert cost.transactions >= 1
        assert cost.seconds > 0
