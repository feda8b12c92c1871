"""`standfast outbox` and `standfast artifacts`: what is listed, sent again, and handed out."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.graph import Runtime, build_agent
from tests.integration.cli.conftest import Cli, Done
from tests.servers.reports import ReportsServer
from tests.servers.scripted import Step

CHANNELS = """
import os
from standfast.graph import Redelivery, Webhook

def channels():
    secret = "whsec_" + "a2tra2tra2tra2tra2tra2s="
    once = Redelivery(attempts=1)
    return [Webhook("hook", os.environ["HOOK"], secret=secret, topics=["approval.*"], redelivery=once)]
"""


@pytest.fixture
def channels(tmp_path: Path, reports_server: ReportsServer, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_channels.py").write_text(CHANNELS)
    monkeypatch.setenv("HOOK", f"{reports_server.url}/reports")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_channels", raising=False)
    return "my_channels:channels"


def test_a_message_that_was_given_up_is_listed_shown_and_sent_again(
    cli: Cli, channels: str, propose: object, reports_server: ReportsServer
) -> None:
    assert 0 == cli("outbox", "dispatch", "--channels", channels).code  # from now on the channel is known
    approval = propose("t")  # type: ignore[operator]
    reports_server.script(Step(status=500))
    failed = cli("outbox", "dispatch", "--channels", channels, "--json")
    assert (1, {"delivered": 0, "failed": 0, "dead": 1}) == (failed.code, failed.json)

    [dead] = cli("outbox", "list", "--state", "dead", "--json").json
    shown = cli("outbox", "show", dead["message_id"], "--json").json
    assert ("approval.opened", approval) == (shown["topic"], shown["payload"]["approval_id"])
    assert "500" in cli("outbox", "show", dead["message_id"]).out
    assert "500" in cli("outbox", "list", "--thread", "t").out

    assert {"resent": 1} == cli("outbox", "retry", dead["message_id"], "--json").json
    assert {"delivered": 1, "failed": 0, "dead": 0} == cli("outbox", "dispatch", "--channels", channels, "--json").json
    ids = [one["headers"]["webhook-id"] for one in reports_server.requests()]
    assert [dead["message_id"]] * 2 == ids
    assert 0 == cli("outbox", "forget", "hook").code
    assert [] == cli("outbox", "list", "--state", "pending", "--json").json


def refused(done: Done) -> str:
    assert 2 == done.code
    return done.sentence


def test_what_cannot_be_done_is_refused_in_one_sentence(cli: Cli) -> None:
    assert "no message" in refused(cli("outbox", "show", "msg-none"))
    assert "no message" in refused(cli("outbox", "retry", "msg-none"))
    assert "--all" in refused(cli("outbox", "retry"))
    assert "no channel" in refused(cli("outbox", "dispatch"))
    assert "no channel" in refused(cli("outbox", "forget", "nobody"))
    assert "--channels" in refused(cli("outbox", "dispatch", "--channels", "os:sep"))
    assert "no artifact" in refused(cli("artifacts", "get", "f" * 64))
    assert "no folder" in refused(cli("artifacts", "get", "f" * 64, "--out", "nowhere/file"))


def test_half_a_webhook_is_refused_by_the_names_of_its_variables(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_WEBHOOK_URL", "https://example.com")
    assert "STANDFAST_WEBHOOK_SECRET" in refused(cli("outbox", "list"))


def test_artifacts_are_listed_and_written(cli: Cli, database_url: str, tmp_path: Path) -> None:
    with Runtime(build_agent(), database_url=database_url) as runtime:
        artifact = runtime.put_artifact(b"\x00\xff" * 1000, name="raw.bin")
        runtime.invoke({"messages": [], "outcome": artifact}, thread_id="t", model="offline")
    [listed] = cli("artifacts", "list", "--json").json
    assert ("raw.bin", 2000, "t", None) == (listed["name"], listed["size"], listed["thread_id"], listed["place"])
    assert artifact.sha256[:16] in cli("artifacts", "list", "--thread", "t").out
    out = tmp_path / "raw.bin"
    assert 0 == cli("artifacts", "get", artifact.sha256[:16], "--out", str(out)).code
    assert b"\x00\xff" * 1000 == out.read_bytes()
