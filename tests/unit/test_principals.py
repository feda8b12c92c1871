"""Who a principal is."""

from __future__ import annotations

import os
from typing import Any

import pytest
from langgraph_sdk.auth.types import StudioUser

from standfast.checkpoint import errors
from standfast.tools.principals import Principal


def test_an_account_without_a_name_is_known_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    assert Principal("uid-54321", verified_by="operating-system") == Principal.operating_system()


def test_a_vouched_name_says_that_nobody_verified_it() -> None:
    assert Principal.vouched("robin").on_word
    assert not Principal.verified("robin", by="sso").on_word


@pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 256, None, 7])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(errors.InvalidRequest):
        Principal.vouched(name)


def test_one_text_is_not_a_collection_of_groups() -> None:
    with pytest.raises(errors.InvalidRequest):
        Principal("robin", None, groups="admins")  # type: ignore[arg-type]


class AuthUser:
    """What LangGraph's server makes of the mapping that an Auth handler returned: attributes and items."""

    def __init__(self, *, is_authenticated: bool = True, **fields: Any) -> None:
        self.is_authenticated = is_authenticated
        self._fields = fields

    @property
    def identity(self) -> Any:
        return self._fields["identity"]

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]


@pytest.mark.parametrize("make", [AuthUser, dict])
def test_a_user_of_langgraphs_auth_brings_his_groups_and_his_tenant(make: Any) -> None:
    user = make(identity="kim", groups=["finance"], tenant="acme")
    assert Principal("kim", "langgraph-auth", frozenset({"finance"}), "acme") == Principal.from_langgraph(user)


@pytest.mark.parametrize(
    "user",
    [
        AuthUser(identity="kim", is_authenticated=False),
        {"identity": "kim", "is_authenticated": False},
        {"is_authenticated": True},
        StudioUser("kim", is_authenticated=True),
        None,
    ],
    ids=["not authenticated", "mapping says no", "no identity", "Studio", "nobody"],
)
def test_a_user_whom_no_auth_handler_established_is_refused(user: Any) -> None:
    with pytest.raises(errors.NotAuthenticated):
        Principal.from_langgraph(user)
