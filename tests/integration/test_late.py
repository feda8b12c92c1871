"""Blocking work that nothing can stop: what it does after a cancel is recorded, and overwrites nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool

from standfast.checkpoint.operations import Attempt
from standfast.graph import Policy, Runtime, operation
from standfast.graph.cli.show import timeline_json
from tests.crash.support.scripted_model import call, script

pytestmark = pytest.mark.guarantee("G4")
Open = Callable[..., Any]
PRESS = script([call("press", text="x")])


class Press:
    """Blocks until it is let go."""

    def __init__(self) -> None:
        self.calls = 0
        self.begun = threading.Event()
        self.go = threading.Event()

    def press(self, text: str) -> str:
        """Press it, slowly."""
        self.calls += 1
        self.begun.set()
        assert self.go.wait(60)
        if text == "jam":
            raise ValueError("jammed")
        return f"pressed {text}"


@pytest.fixture
def slow() -> Iterator[Press]:
    press = Press()
    yield press
    press.go.set()


async def attempts(runtime: Runtime) -> list[Attempt]:
    return [one for one in await runtime.store.operations.attempts("t") if one.state != "succeeded"]


async def until_late(runtime: Runtime) -> Attempt:
    async with asyncio.timeout(20):
        while True:
            [attempt] = await attempts(runtime)
            if attempt.late is not None:
                return attempt
            await asyncio.sleep(0.01)


def as_function(press: Press, effect: Any) -> Any:
    return operation(press.press, name="press", policy=Policy(effect=effect))


def as_tool(press: Press, effect: Any) -> Any:
    tool = StructuredTool.from_function(press.press, name="press", description="Press it.")
    return operation(tool, policy=Policy(effect=effect))


@pytest.mark.parametrize("made", [as_function, as_tool])
@pytest.mark.parametrize(
    ("effect", "text", "late", "state"),
    [
        ("idempotent", "x", ("succeeded", None), "planned"),
        ("at_most_once", "x", ("succeeded", None), "unknown"),
        ("idempotent", "jam", ("failed", "ValueError: jammed"), "planned"),
    ],
)
async def test_an_effect_that_ends_after_its_run_was_cancelled_is_recorded_as_late(
    opened: Open, slow: Press, made: Any, effect: str, text: str, late: Any, state: str
) -> None:
    async with opened(made(slow, effect)) as runtime:
        driving = asyncio.create_task(runtime.ainvoke(script([call("press", text=text)]), thread_id="t"))
        await asyncio.to_thread(slow.begun.wait)
        assert "cancelled" == (await runtime.acancel("t")).status
        assert "cancelled" == (await driving).status
        assert [None] == [one.late for one in await attempts(runtime)]
        slow.go.set()
        attempt = await until_late(runtime)
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "press"]
        shown = timeline_json(await runtime.atimeline("t"))

    assert ("abandoned", *late) == (attempt.state, attempt.late, attempt.late_message)
    assert (state, None) == (known.state, known.result)
    assert [late[0]] == [
        attempt["late"] for one in shown["operations"] if one["name"] == "press" for attempt in one["attempts"]
    ]


async def test_what_ends_late_while_somebody_still_wants_to_know_settles_the_doubt(opened: Open, slow: Press) -> None:
    """The drive was interrupted, the run goes on: the thread that could not be stopped tells the end itself."""
    async with opened(as_function(slow, "at_most_once")) as runtime:
        driving = asyncio.create_task(runtime.ainvoke(PRESS, thread_id="t"))
        await asyncio.to_thread(slow.begun.wait)
        driving.cancel()
        with suppress(asyncio.CancelledError):
            await driving
        asked = await runtime.aresume("t")
        slow.go.set()
        async with asyncio.timeout(20):
            while await runtime.aapprovals():
                await asyncio.sleep(0.01)
        end = await runtime.aresume("t")
        [known] = [one for one in await runtime.store.operations.list("t") if one.name == "press"]

    assert ["outcome"] == [one.kind for one in asked.approvals]
    assert ("succeeded", "reconciled", 1) == (end.status, known.state, slow.calls)
    assert ["pressed x"] == [str(one.text) for one in end.messages if isinstance(one, ToolMessage)]
