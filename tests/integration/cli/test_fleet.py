"""`limits` and `schedules` on the command line."""

from __future__ import annotations

from typing import Any

import pytest


def test_limits_are_set_listed_and_taken_away(cli: Any) -> None:
    assert 0 == cli("limits", "set", "model:openai", "--rate", "500/1m", "--burst", "20").code
    assert 0 == cli("limits", "set", "graph:agent", "--concurrency", "3", "--queued", "10").code
    listed = {one["key"]: one for one in cli("limits", "list", "--json").json}
    assert (500, 60.0, 20) == tuple(listed["model:openai"][key] for key in ("rate", "per", "burst"))
    assert (3, 10, 0) == tuple(listed["graph:agent"][key] for key in ("concurrency", "queued", "used"))
    assert 0 == cli("limits", "clear", "model:openai").code
    assert 2 == cli("limits", "clear", "model:openai").code
    assert "graph:agent" in cli("limits", "list").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("graph:agent",),
        ("agent", "--concurrency", "3"),
        ("model:a", "--rate", "lots"),
        ("model:a", "--rate", "5/fortnight"),
    ],
)
def test_a_limit_that_cannot_be_read_is_refused(cli: Any, arguments: tuple[str, ...]) -> None:
    assert 2 == cli("limits", "set", *arguments).code
    assert [] == cli("limits", "list", "--json").json


def test_schedules_are_added_listed_paused_run_and_removed(cli: Any) -> None:
    added = cli("schedules", "add", "daily", "0 6 * * 1-5", "What is new?", "--timezone", "Europe/Berlin", "--json")
    assert (0, "daily", "last", "skip") == (
        added.code,
        added.json["name"],
        added.json["catch_up"],
        added.json["overlap"],
    )
    assert 2 == cli("schedules", "add", "daily", "0 6 * * 1-5", "What is new?").code
    limited = ("--deadline", "2h", "--budget", "model_calls=5", "--priority", "7")
    hurried = cli("schedules", "add", "hurried", "0 6 * * *", "What is new?", *limited, "--json").json
    assert (7200.0, 5, 7) == (hurried["deadline"], hurried["budget"]["model_calls"], hurried["priority"])
    assert 0 == cli("schedules", "remove", "hurried").code
    assert "Europe/Berlin" in cli("schedules", "list").out
    assert 0 == cli("schedules", "pause", "daily").code
    assert cli("schedules", "list", "--json").json[0]["paused"]
    assert 0 == cli("schedules", "resume", "daily").code
    thread = cli("schedules", "run", "daily", "--json").json["thread_id"]
    assert thread in cli("threads").out
    assert 0 == cli("schedules", "remove", "daily").code
    assert 2 == cli("schedules", "remove", "daily").code
    assert [] == cli("schedules", "list", "--json").json
