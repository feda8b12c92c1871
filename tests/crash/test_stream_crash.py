"""A run's stream outlives the processes that write and read it: stored before shown, once, in order, whole."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from standfast.graph import Runtime, StreamEvent, build_agent, fold_text
from tests.crash.support.processes import Nursery
from tests.servers.process import ServerProcess

Query = Callable[..., list[tuple[Any, ...]]]
pytestmark = pytest.mark.guarantee("G9")
MODEL = "openai:test-model"
WORDS = "".join(f"word{number} " for number in range(200))

WORKER = """
import asyncio, sys
from standfast.graph import Runtime, build_agent
async def main():
    async with Runtime(build_agent(), database_url=sys.argv[1], lease_seconds=1.0) as runtime:
        await runtime.awork()
asyncio.run(main())
"""

TELLER = """
import asyncio, os, signal, sys
from standfast.graph import Runtime, build_agent
def told(event):
    os.write(1, f"{event.seq} {event.kind}\\n".encode())
    if event.seq >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
async def main():
    async with Runtime(build_agent(), database_url=sys.argv[1], model=sys.argv[3], lease_seconds=1.0) as runtime:
        await runtime.ainvoke("say it", thread_id="t", on_event=told)
asyncio.run(main())
"""


@pytest.fixture
def environment(openai_process: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Where this process and its children find the model."""
    given = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{openai_process.url}/v1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return given


@pytest.fixture
def worker(environment: dict[str, str], database_url: str) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a worker process; all are killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", WORKER, database_url]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Runtime]:
    async with Runtime(build_agent(), database_url=url, model=MODEL, lease_seconds=1.0) as runtime:
        yield runtime


def answers(messages: list[BaseMessage]) -> dict[str, str]:
    return {str(one.id): str(one.text) for one in messages if isinstance(one, AIMessage)}


async def stored(runtime: Runtime) -> list[StreamEvent]:
    run_id = (await runtime.store.threads.get("t")).run_id
    assert run_id is not None
    return await runtime.store.run_events.read("t", run_id, after=0, limit=10_000)


@pytest.mark.timeout(120)
async def test_a_reader_cut_at_random_sees_a_killed_speech_once_in_order_and_as_it_was_stored(
    database_url: str, openai_process: ServerProcess, worker: Callable[[], subprocess.Popen[bytes]]
) -> None:
    openai_process.script({"text": "lost " * 200, "pace": 0.03}, {"text": WORDS, "pace": 0.02})
    dice = random.Random(9)
    first = worker()
    got: list[StreamEvent] = []
    cuts = 0
    async with reading(database_url) as runtime:
        await runtime.asubmit("say it", thread_id="t")
        while not got or got[-1].kind != "run_end":
            budget = dice.randint(0, 1)
            async with aclosing(runtime.astream("t", after=got[-1].seq if got else 0)) as events:
                async for one in events:
                    got.append(one)
                    if first.poll() is None and sum(event.kind == "token" for event in got) == 5:
                        first.kill()
                        first.wait()
                        worker()
                    if budget == 0 and cuts < 50:
                        cuts += 1
                        break
                    budget -= 1
        assert cuts >= 30
        assert await stored(runtime) == got
        assert list(range(1, len(got) + 1)) == [one.seq for one in got]
        result = await runtime.aresult("t")
        assert "succeeded" == result.status
        assert "lost" in "".join(one.data["text"] for one in got if one.kind == "token")
        assert answers(result.messages) == fold_text(got)
        assert WORDS.strip() == next(iter(fold_text(got).values())).strip()
        assert len({one.epoch for one in got if one.kind == "token"}) == 2


@pytest.mark.parametrize(
    "point", ["model.called", "model.recorded", "node.analysis", "saver.committed", "drive.ending"]
)
async def test_the_folded_text_is_the_stored_message_wherever_the_kill_fell(
    database_url: str, openai_process: ServerProcess, environment: dict[str, str], nursery: Nursery, point: str
) -> None:
    openai_process.script({"text": WORDS, "pace": 0.002}, {"text": WORDS, "pace": 0.002})
    order = {"url": database_url, "thread": "t", "request": "say it", "model": MODEL, "env": environment}
    ended = await asyncio.to_thread(nursery.run, "ask", kill=[point, 1], **order)
    assert signal.SIGKILL == ended.signal
    async with reading(database_url) as runtime:
        result = await runtime.aresume("t")
        assert "succeeded" == result.status, result
        events = await stored(runtime)
        assert list(range(1, len(events) + 1)) == [one.seq for one in events]
        assert answers(result.messages) == fold_text(events)
        assert [WORDS.strip()] == [text.strip() for text in fold_text(events).values()]


@pytest.mark.parametrize("last", [1, 2, 4, 6])
async def test_what_is_shown_is_stored(
    database_url: str, openai_process: ServerProcess, environment: dict[str, str], query: Query, last: int
) -> None:
    openai_process.script({"text": WORDS, "pace": 0.01})
    teller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TELLER, database_url, str(last), MODEL,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, **environment},
    )  # fmt: skip
    output, _ = await teller.communicate()
    assert -signal.SIGKILL == teller.returncode
    shown = [(int(seq), kind) for seq, kind in (line.split() for line in output.decode().splitlines())]
    assert last == len(shown)
    async with reading(database_url) as runtime:
        assert shown == [(one.seq, one.kind) for one in await stored(runtime)][:last]
