"""A process that is killed between two attempts takes nothing of their count with it."""

from __future__ import annotations

import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.crash.support.processes import Nursery
from tests.crash.support.scripted_model import call, script
from tests.servers.openai import OpenAIServer, Reply
from tests.servers.process import ServerProcess

pytestmark = pytest.mark.guarantee("G8")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_operation_is_attempted_no_more_often_than_without_the_kill(
    nursery: Nursery, shared_database_url: str, reports: ServerProcess, n: int
) -> None:
    thread = f"insist-{n}-{uuid.uuid4().hex[:6]}"
    common: dict[str, Any] = {
        "url": shared_database_url,
        "scripted": True,
        "thread": thread,
        "env": {"STANDFAST_REPORTS_URL": f"{reports.url}/reports"},
    }
    reports.script({"when": thread, "status": 503, "times": None})
    killed = nursery.run("ask", **common, request=script([call("insist", text="x")]), kill=["operation.failed", n])
    end = nursery.run("resume", **common).value["did"]
    seen = nursery.run("look", **common).value["did"]

    assert signal.SIGKILL == killed.signal
    assert "succeeded" == end["status"]  # the model was told, and said something else
    assert [("failed", 3)] == [
        (one["state"], one["attempts"]) for one in seen["operations"].values() if one["name"] == "insist"
    ]
    assert 3 == sum(one["body"].get("thread") == thread for one in reports.requests())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_model_is_asked_no_more_often_than_without_the_kill(
    nursery: Nursery, shared_database_url: str, tmp_path: Path, n: int
) -> None:
    with OpenAIServer(tmp_path / "openai.jsonl") as model:
        model.always(Reply(status=503))
        common: dict[str, Any] = {
            "url": shared_database_url,
            "thread": f"absent-{n}",
            "model": "openai:test-model",
            "env": {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": model.base_url},
        }
        killed = nursery.run("ask", **common, request="Are you there?", kill=["operation.failed", n])
        end = nursery.run("resume", **common).value["did"]
        asked = len(model.requests())
        again = nursery.run("resume", **common).value["did"]

        assert signal.SIGKILL == killed.signal
        assert ("needs_attention", 3) == (end["status"], asked)
        assert ("needs_attention", 6) == (again["status"], len(model.requests()))  # a person asked for more
