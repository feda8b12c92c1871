"""On the command line a token says who acts; it is read from a file or the environment, never an argument."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers.oidc import AUDIENCE, OIDCServer

pytestmark = pytest.mark.guarantee("G6")


@pytest.fixture
def approval(propose: Callable[[], str], monkeypatch: pytest.MonkeyPatch, oidc_server: OIDCServer) -> str:
    """An open approval; from now on the environment names an OpenID provider."""
    found = propose()
    monkeypatch.setenv("STANDFAST_OIDC_ISSUER", oidc_server.issuer)
    monkeypatch.setenv("STANDFAST_OIDC_AUDIENCE", AUDIENCE)
    return found


def test_a_token_in_a_file_decides(cli: Any, approval: str, tmp_path: Path, oidc_server: OIDCServer) -> None:
    (tmp_path / "token").write_text(oidc_server.token() + "\n")
    done = cli("approve", approval, "--token-file", str(tmp_path / "token"), "--no-wait", "--json")
    assert (0, "kim", False) == (done.code, done.json["decided_by"], done.json["vouched"]), done.err


def test_a_token_in_the_environment_decides(
    cli: Any, approval: str, monkeypatch: pytest.MonkeyPatch, oidc_server: OIDCServer
) -> None:
    monkeypatch.setenv("STANDFAST_TOKEN", oidc_server.token())
    assert "kim" == cli("reject", approval, "--reason", "no", "--no-wait", "--json").json["decided_by"]


@pytest.mark.parametrize("arguments", [[], ["--as", "kim"]])
def test_without_a_token_nothing_is_decided(cli: Any, approval: str, arguments: list[str]) -> None:
    done = cli("approve", approval, *arguments)
    assert 2 == done.code
    assert "STANDFAST_TOKEN" in done.sentence
    assert "open" == cli("approvals", "--json").json[0]["state"]


def test_an_expired_token_decides_nothing(
    cli: Any, approval: str, monkeypatch: pytest.MonkeyPatch, oidc_server: OIDCServer
) -> None:
    token = oidc_server.token(exp=int(time.time()) - 3600)
    monkeypatch.setenv("STANDFAST_TOKEN", token)
    done = cli("approve", approval)
    assert 2 == done.code
    assert "expired" in done.sentence
    assert token not in done.err


def test_a_provider_that_is_down_is_a_failure_that_time_can_mend(
    cli: Any, approval: str, monkeypatch: pytest.MonkeyPatch, oidc_server: OIDCServer
) -> None:
    monkeypatch.setenv("STANDFAST_TOKEN", oidc_server.token())
    oidc_server.stop()
    assert 1 == cli("approve", approval).code


@pytest.mark.parametrize("content", [None, "", "tök€n"], ids=["missing", "empty", "not ASCII"])
def test_a_token_file_that_cannot_be_used_is_refused(
    cli: Any, approval: str, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    done = cli("--token-file", str(tmp_path / "token"), "approve", approval)
    assert 2 == done.code
    assert str(tmp_path / "token") in done.sentence


def test_half_a_set_up_is_refused(cli: Any, approval: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_OIDC_AUDIENCE")
    done = cli("approve", approval)
    assert 2 == done.code
    assert "STANDFAST_OIDC_AUDIENCE" in done.sentence


def test_with_a_provider_only_administrators_change_groups(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oidc_server: OIDCServer
) -> None:
    monkeypatch.setenv("STANDFAST_OIDC_ISSUER", oidc_server.issuer)
    monkeypatch.setenv("STANDFAST_OIDC_AUDIENCE", AUDIENCE)
    monkeypatch.setenv("STANDFAST_TOKEN", oidc_server.token())
    refused = cli("groups", "add", "finance", "kim")
    assert (2, True) == (refused.code, "group_admins: NAME" in refused.sentence)
    (tmp_path / "policy.yaml").write_text("groups: {admins: [kim]}\noperations: {}\ngroup_admins: admins\n")
    monkeypatch.setenv("STANDFAST_POLICY_FILE", str(tmp_path / "policy.yaml"))
    assert "kim is in finance." == cli("groups", "add", "finance", "kim").sentence
    monkeypatch.setenv("STANDFAST_TOKEN", oidc_server.token(sub="sam"))
    assert "'sam' is not in the group 'admins'" in cli("groups", "add", "finance", "sam").sentence


def test_who_verified_a_name_is_shown(
    cli: Any, approval: str, monkeypatch: pytest.MonkeyPatch, oidc_server: OIDCServer
) -> None:
    monkeypatch.setenv("STANDFAST_TOKEN", oidc_server.token())
    assert 0 == cli("reject", approval, "--reason", "no", "--no-wait").code
    assert f"rejected by kim (verified by oidc:{oidc_server.issuer}): no" in cli("show", "t").out
    assert f"oidc:{oidc_server.issuer}" == cli("approvals", "--all", "--json").json[0]["verified_by"]
