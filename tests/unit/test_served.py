"""Whom the development server believes, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.types import Command
from langgraph_sdk import Auth

from standfast.checkpoint import errors
from standfast.checkpoint.settings import Settings
from standfast.graph import served
from standfast.graph.served import _refuse_detours, _request, _who
from standfast.tools.principals import Principal

HERE = {"host": "127.0.0.1:2024"}


def settings(**given: Any) -> Settings:
    return Settings(**given)


@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
async def test_on_loopback_with_the_embedded_database_it_is_the_system_s_user(client: str) -> None:
    assert Principal.operating_system() == await _who(settings(), None, client, HERE)


@pytest.mark.parametrize("origin", ["https://smith.langchain.com", "http://localhost:3000", "http://127.0.0.1:5173"])
async def test_studio_and_pages_of_this_machine_may_use_it(origin: str) -> None:
    assert Principal.operating_system() == await _who(settings(), None, "127.0.0.1", {**HERE, "origin": origin})


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        ("192.168.1.7", HERE),
        (None, HERE),
        ("127.0.0.1", {**HERE, "origin": "https://attacker.example"}),
        ("127.0.0.1", {**HERE, "origin": "https://smith.langchain.com.attacker.example"}),
        ("127.0.0.1", {**HERE, "origin": "null"}),
        ("127.0.0.1", {"host": "rebound.attacker.example:2024"}),
    ],
    ids=["another machine", "no address", "another site", "a site that looks like it", "a sandbox", "a rebound name"],
)
async def test_others_are_refused_without_a_token(client: str | None, headers: dict[str, str]) -> None:
    with pytest.raises(errors.NotAuthenticated):
        await _who(settings(), None, client, headers)


async def test_a_database_of_one_s_own_needs_a_token() -> None:
    with pytest.raises(errors.NotAuthenticated, match="STANDFAST_STUDIO_TOKEN"):
        await _who(settings(database_url="postgresql://elsewhere/agents"), None, "127.0.0.1", HERE)


@pytest.mark.parametrize("token", [None, "", "guessed", "secret "])
async def test_with_a_token_only_the_token_counts(token: str | None) -> None:
    with pytest.raises(errors.NotAuthenticated):
        await _who(settings(studio_token="secret"), token, "127.0.0.1", HERE)
    assert "studio" == (await _who(settings(studio_token="secret"), "secret", "10.0.0.1", {})).name


def test_one_message_of_a_person_is_a_request() -> None:
    assert "hello" == _request({"messages": [{"role": "user", "content": "hello"}]})
    assert ["human", "ai"] == [one.type for one in _request({"messages": ["hello", ("ai", "yes?")]})["messages"]]
    assert {"amount": 4} == _request({"amount": 4})


@pytest.mark.parametrize(
    ("given", "where", "options"),
    [
        (None, {"checkpoint_id": "1ef"}, {}),
        (Command(goto="operate"), {}, {}),
        (Command(resume=True, update={"a": 1}), {}, {}),
        (Command(), {}, {}),
        ({"a": 1}, {}, {"interrupt_before": "*"}),
        ({"a": 1}, {}, {"interrupt_after": ["a"]}),
    ],
    ids=["checkpoint", "goto", "update", "nothing", "before", "after"],
)
def test_detours_are_refused(given: Any, where: dict[str, Any], options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest):
        _refuse_detours(given, where, options)


async def test_people_of_another_tenant_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def somebody(*_: Any) -> Principal:
        return Principal.vouched("eve", tenant="other")

    monkeypatch.setattr(served, "_who", somebody)
    request = SimpleNamespace(headers={}, client=None)
    authenticate = served._auth()._authenticate_handler
    assert authenticate is not None
    with pytest.raises(Auth.exceptions.HTTPException) as refused:
        await authenticate(request=request)  # type: ignore[call-arg]
    assert 403 == refused.value.status_code
