"""Several approvals at once, answers in a tool's place, withdrawals, and the policy's own command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Propose = Callable[..., str]


def test_several_are_shown_and_each_is_one_row(cli: Any, propose: Propose, query: Any) -> None:
    ids = [propose(thread) for thread in ("a", "b")]
    done = cli("approve", *ids, "apr-unknown", "--as", "alex")
    assert 2 == done.code
    for identifier in ids:
        assert f"approval    {identifier}" in done.out
        assert f"Approved publish_report ({identifier}) as alex." in done.err
    assert "there is no approval 'apr-unknown'" in done.err
    rows = query("select approval_id, decision, principal from decisions order by 1")
    assert sorted((identifier, "approve", "alex") for identifier in ids) == rows


def test_a_response_is_what_the_agent_gets(cli: Any, propose: Propose, tmp_path: Path) -> None:
    done = cli("respond", propose(), "It stands on the intranet.", "--as", "alex")
    assert 0 == done.code, done.err
    assert "Answered in place of publish_report" in done.err
    assert not (tmp_path / "reports").exists()


def test_a_request_is_withdrawn(cli: Any, propose: Propose, tmp_path: Path) -> None:
    done = cli("withdraw", propose(), "--reason", "not yet")
    assert 0 == done.code, done.err
    assert "withdrawn by pat: not yet" in done.out
    assert not (tmp_path / "reports").exists()


POLICY = """\
groups:
  editors: [alex, kim]
operations:
  publish_report:
    - approvers: editors
      required: 2
"""


def test_a_policy_of_the_environment_is_what_the_command_line_obeys(
    cli: Any, propose: Propose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.setenv("STANDFAST_POLICY_FILE", str(tmp_path / "policy.yaml"))
    identifier = propose()
    assert "is not in the group 'editors'" in cli("approve", identifier, "--as", "pat").sentence
    one = cli("approve", identifier, "--as", "alex")
    assert (3, True) == (one.code, "1 of 2" in one.err)
    assert "2 of the group editors (alex, kim); so far alex" in cli("show", "t").out
    assert 0 == cli("approve", identifier, "--as", "kim").code


def test_the_policys_command_shows_the_rules_or_says_where_they_are_wrong(cli_alone: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    shown = cli_alone("policy", str(path))
    assert (0, True) == (shown.code, "2 of editors" in shown.out)
    path.write_text(POLICY.replace("publish_report", "publish"))
    wrong = cli_alone("policy", str(path))
    assert 2 == wrong.code
    assert f"{path}, line 4" in wrong.sentence


def test_a_policy_that_changed_since_a_request_is_said_where_the_request_is_shown(
    cli: Any, propose: Propose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.setenv("STANDFAST_POLICY_FILE", str(tmp_path / "policy.yaml"))
    identifier = propose()
    for shown in (cli("show", "t").out, cli("approvals").out):
        assert "policy has changed" not in shown
        assert "policy changed" not in shown
    (tmp_path / "policy.yaml").write_text(POLICY.replace("2", "1"))
    assert "the policy has changed since it was asked" in cli("show", "t").out
    assert "open, policy changed" in cli("approvals").out
    assert [True] == [one["policy_changed"] for one in cli("approvals", "--json").json]
    assert [True] == [one["policy_changed"] for one in cli("show", "t", "--json").json["approvals"]]
    cli("approve", identifier, "--as", "alex")
    again = cli("approve", identifier, "--as", "kim")
    assert (3, True) == (again.code, "no valid grant" in again.out)
    assert "policy changed" not in cli("approvals").out
