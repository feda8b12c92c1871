"""Who a principal is."""

from __future__ import annotations

import os

import pytest

from standfast.tools.principals import Principal


def test_an_account_without_a_name_is_known_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    assert Principal("uid-54321", on_word=False) == Principal.operating_system()
