"""A specialist's own calls wait, crash and end like any others."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from standfast.checkpoint import errors
from standfast.checkpoint.settings import Settings
from standfast.graph import Runtime
from tests.crash.support.nested_agent import nested_agent
from tests.crash.support.processes import Nursery
from tests.crash.support.scripted_model import call, script
from tests.servers.process import ServerProcess
from tests.servers.reports import ReportsServer

AT_ONCE = 4
KILLS = (
    ("node.approval", 1),
    ("node.approval", 2),
    ("operation.begun", 1),
    ("operation.done", 1),
    ("operation.recorded", 1),
    ("node.operate", 1),
    ("saver.committed", 1),
    ("model.recorded", 1),
    ("node.specialist", 1),
)


def delegated(text: str) -> dict[str, Any]:
    return call("delegate", specialist="writer", task=script([call("note", text=text)], f"{text} was written"))


REQUEST = script([delegated("first"), delegated("second"), call("jot", text="beside")], "All done.")


@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G4")
def test_a_call_inside_a_specialist_survives_a_kill_and_the_one_beside_it_stays_open(
    nursery: Nursery, shared_database_url: str, reports: ServerProcess
) -> None:
    def run(kill: tuple[str, int]) -> dict[str, Any]:
        thread = f"nested-{kill[0]}-{kill[1]}-{uuid.uuid4().hex[:6]}"
        common: dict[str, Any] = {
            "url": shared_database_url,
            "thread": thread,
            "scripted": "nested",
            "env": {"STANDFAST_REPORTS_URL": f"{reports.url}/reports"},
        }
        waiting = nursery.run("ask", **common, request=REQUEST).value["did"]
        ids = {one["arguments"]["text"]: one["id"] for one in waiting["approvals"]}
        killed = nursery.run("resume", **common, answer={"approve": ids["first"]}, kill=kill)
        recovered = nursery.run("resume", **common).value["did"]
        end = nursery.run("resume", **common, answer={"approve": ids["second"]}).value["did"]
        seen = nursery.run("look", **common).value["did"]
        effects = [one["report"]["body"] for one in reports.effects()]
        return {
            "signal": killed.signal,
            "asked": sorted(ids),
            "open": [one["id"] for one in recovered["approvals"]] == [ids["second"]],
            "end": end["status"],
            "answers": [one["text"] for one in seen["messages"] if one["type"] == "tool"],
            "notes": dict(Counter(one["text"] for one in effects if one["thread"] == thread)),
            "again": [one["name"] for one in seen["operations"].values() if one["attempts"] > 2],
        }

    with ThreadPoolExecutor(AT_ONCE) as pool:
        ran = dict(zip(KILLS, pool.map(run, KILLS), strict=True))

    expected: dict[str, Any] = {
        "signal": signal.SIGKILL,
        "asked": ["first", "second"],
        "open": True,
        "end": "succeeded",
        "answers": ["first was written", "second was written", "noted beside"],
        "notes": {"first": 1, "second": 1, "beside": 1},
        "again": [],
    }
    assert dict.fromkeys(KILLS, expected) == ran


@pytest.mark.guarantee("G10")
async def test_a_node_that_is_gone_inside_a_specialist_is_found(
    database_url: str, reports_server: ReportsServer
) -> None:
    settings = Settings(reports_url=f"{reports_server.url}/reports")
    async with Runtime(nested_agent(), database_url=database_url, settings=settings) as before:
        waiting = await before.ainvoke(script([delegated("first")]), thread_id="inner")
    approval = waiting.approvals[0].id
    async with Runtime(nested_agent("renamed"), database_url=database_url, settings=settings) as deployed:
        with pytest.raises(errors.GraphChanged, match="'specialist/operation'"):
            await deployed.aresume("inner", approve=approval)
        assert [] == reports_server.effects()
    async with Runtime(nested_agent(), database_url=database_url, settings=settings) as before:
        end = await before.aresume("inner")

    assert "succeeded" == end.status
    assert 1 == len(reports_server.effects())
