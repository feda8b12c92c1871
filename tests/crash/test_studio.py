"""LangGraph's development server drives our threads under our rules, or refuses."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import AuthenticationError, PermissionDeniedError

from tests.crash.support.processes import Nursery
from tests.crash.support.scripted_model import call, script
from tests.servers.process import ServerProcess

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("langgraph_api") is None,
    reason='the development server is not installed: pip install "langgraph-cli[inmem]"',
)

ROOT: Final = Path(__file__).parents[2]
TOKEN: Final = "a token for the tests"
START_SECONDS: Final = 120.0


class DevServer:
    """`langgraph dev` as a process, offline."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = directory / "server.log"
        configuration = json.loads((ROOT / "langgraph.json").read_text())
        module = "tests.crash.support.studio_agent"
        configuration["dependencies"] = [str(ROOT)]
        configuration["graphs"]["agent"]["path"] = f"{module}:agent"
        configuration["checkpointer"]["path"] = f"{module}.checkpointer"
        configuration["auth"]["path"] = f"{module}:auth"
        (directory / "langgraph.json").write_text(json.dumps(configuration))
        program = str(Path(sys.executable).with_name("langgraph"))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, "dev", "--port", str(self.port), "--no-browser", "--no-reload"],
                cwd=directory,
                env={**os.environ, **environment, "PYTHONPATH": str(ROOT), "LANGSMITH_TRACING": "false"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def ready(self) -> None:
        async with asyncio.timeout(START_SECONDS), httpx.AsyncClient() as client:
            while True:
                assert self._process.poll() is None, self.log.read_text()[-4000:]
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{self.url}/ok")).status_code == 200:
                        return
                await asyncio.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL, the server and what it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self.kill()


@dataclass(frozen=True)
class Studio:
    """A client of the server, and the world around."""

    client: LangGraphClient
    url: str
    database_url: str
    nursery: Nursery
    reports: ServerProcess

    def elsewhere(self, job: str, thread: str, **order: Any) -> Any:
        """Another process of the fleet does a job."""
        environment = {"STANDFAST_REPORTS_URL": f"{self.reports.url}/reports"}
        ended = self.nursery.run(job, url=self.database_url, thread=thread, env=environment, scripted=True, **order)
        return ended.value["did"]

    def notes(self, thread: str) -> Counter[str]:
        effects = [one["report"]["body"] for one in self.reports.effects()]
        return Counter(one["text"] for one in effects if one["thread"] == thread)

    async def thread(self) -> str:
        return str((await self.client.threads.create())["thread_id"])

    async def run(self, thread: str, **what: Any) -> list[str]:
        """Run to the end and return what went wrong."""
        parts = [part async for part in self.client.runs.stream(thread, "agent", **what)]
        return [part.data["message"] for part in parts if part.event == "error"]

    async def ask(self, thread: str, *turns: Any) -> list[str]:
        return await self.run(thread, input={"messages": [{"role": "user", "content": script(*turns)}]})

    async def question(self, thread: str) -> Any:
        """The one question that the thread shows."""
        state = await self.client.threads.get_state(thread)
        ((question,),) = [task["interrupts"] for task in state["tasks"]]
        return question


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, shared_database_url: str, reports: ServerProcess
) -> Iterator[Callable[[], DevServer]]:
    """`server()` is the running one; it is started again after a test has killed it."""
    environment = {
        "STANDFAST_DATABASE_URL": shared_database_url,
        "STANDFAST_STUDIO_TOKEN": TOKEN,
        "STANDFAST_REPORTS_URL": f"{reports.url}/reports",
    }
    servers: list[DevServer] = []

    def running() -> DevServer:
        if not servers or servers[-1]._process.poll() is not None:
            servers.append(DevServer(tmp_path_factory.mktemp("studio"), environment))
        return servers[-1]

    yield running
    for one in servers:
        one.stop()


@pytest.fixture
async def studio(
    server: Callable[[], DevServer], shared_database_url: str, nursery: Nursery, reports: ServerProcess
) -> AsyncIterator[Studio]:
    running = server()
    await running.ready()
    async with get_client(url=running.url, api_key=TOKEN) as client:
        yield Studio(client, running.url, shared_database_url, nursery, reports)


async def test_a_run_stops_at_its_question_and_goes_on_with_the_answer(studio: Studio) -> None:
    thread = await studio.thread()
    assert [] == await studio.ask(thread, [call("note", text="hello")], "It is noted.")
    assert "interrupted" == (await studio.client.threads.get(thread))["status"]
    question = await studio.question(thread)
    assert {"text": "hello"} == question["value"]["action_requests"][0]["args"]
    assert Counter() == studio.notes(thread)
    assert [] == await studio.run(thread, command={"resume": {"decisions": [{"type": "approve"}]}})
    state = await studio.client.threads.get_state(thread)
    assert "It is noted." == state["values"]["messages"][-1]["content"]
    assert Counter(["hello"]) == studio.notes(thread)
    seen = studio.elsewhere("look", thread)
    assert ["approved"] == list(seen["approvals"].values())


async def test_a_thread_that_was_made_elsewhere_is_shown_with_its_history_and_answered_here(studio: Studio) -> None:
    asked = studio.elsewhere("ask", "made-elsewhere", request=script([call("note", text="from afar")], "Done."))
    assert "waiting" == asked["status"]
    async with asyncio.timeout(30):
        while not (found := await studio.client.threads.search(metadata={"thread": "made-elsewhere"})):
            await asyncio.sleep(0.1)
    thread = str(found[0]["thread_id"])
    history = await studio.client.threads.get_history(thread)
    assert 3 == len(history)
    assert {thread} == {one["checkpoint"]["thread_id"] for one in history}
    assert "from afar" == (await studio.question(thread))["value"]["action_requests"][0]["args"]["text"]
    assert [] == await studio.run(thread, command={"resume": {"decisions": [{"type": "approve"}]}})
    assert Counter(["from afar"]) == studio.notes("made-elsewhere")


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    "command",
    [
        {"resume": "approve"},
        {"resume": {"decisions": [{"type": "approve"}, {"type": "approve"}]}},
        {"resume": {"decisions": [{"type": "edit", "edited_action": {"name": "shout", "args": {"text": "other"}}}]}},
        {"resume": [{"type": "accept", "args": {"action": "note", "args": {"text": "other"}}}]},
        {"resume": {"0123456789abcdef0123456789abcdef": {"type": "approve"}}},
        {"goto": "operation"},
        {"resume": {"decisions": [{"type": "approve"}]}, "update": {"messages": []}},
    ],
    ids=["text", "two decisions", "another tool", "other arguments", "another question", "goto", "update"],
)
async def test_a_forged_answer_is_refused_and_the_question_stays(studio: Studio, command: Any) -> None:
    thread = await studio.thread()
    await studio.ask(thread, [call("note", text="forged")], "Done.")
    before = await studio.question(thread)
    (refused,) = await studio.run(thread, command=command)
    assert "internal error" not in refused
    assert before == await studio.question(thread)
    assert Counter() == studio.notes(thread)
    assert ["open"] == list(studio.elsewhere("look", thread)["approvals"].values())


@pytest.mark.guarantee("G3")
async def test_two_answers_at_once_have_one_effect(studio: Studio) -> None:
    thread = await studio.thread()
    await studio.ask(thread, [call("note", text="once")], "Done.")
    yes = {"resume": {"decisions": [{"type": "approve"}]}}
    here, also_here, _ = await asyncio.gather(
        studio.run(thread, command=yes),
        studio.run(thread, command=yes, multitask_strategy="enqueue"),
        asyncio.to_thread(studio.elsewhere, "resume", thread),
    )
    assert 1 >= len(here) + len(also_here)
    assert "succeeded" == studio.elsewhere("resume", thread)["status"]
    assert Counter(["once"]) == studio.notes(thread)


@pytest.mark.guarantee("G1")
async def test_a_killed_server_s_run_is_carried_on_elsewhere(
    studio: Studio, server: Callable[[], DevServer], tmp_path: Path
) -> None:
    thread, gate = await studio.thread(), tmp_path / "gate"
    turns = ([call("jot", text="before")], [call("jot_slowly", text="after", until=str(gate))], "Done.")
    request = {"messages": [{"role": "user", "content": script(*turns)}]}
    await studio.client.runs.create(thread, "agent", input=request)
    async with asyncio.timeout(30):
        while not studio.notes(thread):
            await asyncio.sleep(0.05)
    server().kill()
    gate.touch()
    assert "succeeded" == studio.elsewhere("resume", thread)["status"]
    assert Counter(["before", "after"]) == studio.notes(thread)


@pytest.mark.guarantee("G6")
async def test_ways_around_a_person_are_refused_by_name(studio: Studio) -> None:
    thread = await studio.thread()
    await studio.ask(thread, [call("note", text="around")], "Done.")
    (first, *_) = await studio.client.threads.get_history(thread)
    with pytest.raises(PermissionDeniedError, match="not edited here"):
        await studio.client.threads.update_state(thread, {"messages": []}, as_node="operation")
    with pytest.raises(PermissionDeniedError, match="not deleted"):
        await studio.client.threads.delete(thread)
    (older,) = await studio.run(thread, input=None, checkpoint_id=first["checkpoint"]["checkpoint_id"])
    (paused,) = await studio.run(thread, input=None, interrupt_before=["operation"])
    (again,) = await studio.ask(thread, "Something else.")
    assert "make a fork" in older
    assert "breakpoints" in paused
    assert "unfinished run" in again
    assert Counter() == studio.notes(thread)


async def test_nobody_without_the_token_is_served(studio: Studio) -> None:
    for key in (None, "another token"):
        async with get_client(url=studio.url, api_key=key) as stranger:
            with pytest.raises(AuthenticationError):
                await stranger.threads.search()
        headers = {"x-auth-scheme": "langsmith", "x-api-key": key or ""}
        async with httpx.AsyncClient(headers=headers) as stranger_as_studio:
            answer = await stranger_as_studio.post(f"{studio.url}/threads/search", json={})
        assert 401 == answer.status_code


async def test_forms_have_titles_and_descriptions(studio: Studio) -> None:
    (assistant,) = await studio.client.assistants.search()
    schemas: Any = await studio.client.assistants.get_schemas(assistant["assistant_id"])
    for schema in (schemas["input_schema"], schemas["output_schema"], schemas["context_schema"]):
        assert schema["description"]
        for field in schema["properties"].values():
            assert field["title"]
            assert field["description"]
    assert ["documents", "model", "reports_dir"] == sorted(schemas["context_schema"]["properties"])


async def test_a_thread_s_id_there_is_its_uuid(studio: Studio) -> None:
    thread = await studio.thread()
    await studio.ask(thread, "Hello.")
    assert str(uuid.UUID(thread)) == studio.elsewhere("look", thread)["uuid"]
