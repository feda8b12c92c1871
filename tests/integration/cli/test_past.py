"""`history`, `state`, `diff`, `fork`: the past from a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Propose = Callable[..., str]


def test_a_thread_s_history_names_checkpoints_that_state_and_diff_take(cli: Any, propose: Propose) -> None:
    cli("approve", propose())
    listed = cli("history", "t")
    assert 0 == listed.code
    assert "CHECKPOINT" in listed.out
    assert "standfast fork t@CHECKPOINT" in listed.err
    entries = cli("history", "t", "--json").json
    assert {"record": 1} == entries[1]["next"]
    first = entries[-2]["checkpoint_id"]
    then = cli("state", f"t@{first}", "--json").json
    assert ["human"] == [one["type"] for one in then["values"]["messages"]]
    assert then == cli("state", "t", "--at", first[:30], "--json").json
    assert "next: analysis" in cli("state", f"t@{first}").out
    assert "outcome: null -> " in cli("diff", f"t@{first}", "t").out
    assert "They do not differ." in cli("diff", "t", "t").err
    page = cli("history", "t", "--limit", "2", "--json").json
    assert entries[2:4] == cli("history", "t", "--limit", "2", "--before", page[-1]["checkpoint_id"], "--json").json


def test_a_fork_goes_on_from_a_checkpoint_and_publishes_nothing_again(
    cli: Any, propose: Propose, tmp_path: Path
) -> None:
    cli("approve", propose())
    before = sorted(path.name for path in tmp_path.rglob("*.md"))
    entries = cli("history", "t", "--json").json
    start = entries[-2]["checkpoint_id"]
    forked = cli("fork", "t", "--at", start, "--to", "again", "--json")
    assert 0 == forked.code
    assert "may only read" in forked.err
    assert ("again", "succeeded") == (forked.json["thread_id"], forked.json["status"])
    assert before == sorted(path.name for path in tmp_path.rglob("*.md"))
    request = "What does the licence say about warranty? Publish a report"
    message = cli("state", f"t@{start}", "--json").json["values"]["messages"][0]
    values = json.dumps({"messages": [{"type": "human", "content": request, "id": message["id"]}]})
    other = cli(
        "fork", f"t@{start}", "--to", "other", "--values", values, "--as-node", "__start__", "--allow-effects", "--json"
    )
    assert 3 == other.code
    assert "waiting" == other.json["status"]
    assert 1 == len(cli("approvals", "--thread", "other", "--json").json)


def test_a_place_that_cannot_be_is_refused_with_one_sentence(cli: Any, propose: Propose) -> None:
    propose()
    assert "standfast history t" in cli("state", "t@0123abcd").sentence
    assert "not both" in cli("state", "t@0123", "--at", "0123").sentence
    assert "THREAD@CHECKPOINT" in cli("diff", "t@", "t").sentence
    assert "no thread 'nobody'" in cli("fork", "nobody").sentence
    assert "--values" in cli("fork", "t", "--values", "[1]").sentence
    assert 2 == cli("fork", "t", "--values", '{"colour": 1}').code
