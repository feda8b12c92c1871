"""`audit` and `groups` on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.guarantee("G6")

DOCS = Path(__file__).parents[3] / "docs" / "audit.md"


@pytest.fixture
def rejected(cli: Any, propose: Callable[[], str]) -> str:
    """An approval that kim has rejected for a reason."""
    approval = propose()
    assert 0 == cli("reject", approval, "--reason", "not now", "--as", "kim", "--no-wait").code
    return approval


def test_an_audit_as_it_was_written_says_so(cli: Any, rejected: str) -> None:
    anchor = cli("audit", "anchor").out.strip()
    done = cli("audit", "verify", "--anchor", anchor)
    assert 0 == done.code
    assert "3 entries in 1 chain, 1 anchor: as written." == done.out.splitlines()[0]
    assert anchor in done.out
    assert anchor == cli("audit", "anchor").out.strip()


def test_what_was_changed_is_named_and_is_a_failure(cli: Any, rejected: str, query: Any) -> None:
    query("set standfast.audit_may_change = 'yes'; delete from audit where seq = 2")
    done = cli("audit", "verify")
    assert 1 == done.code
    assert "REMOVED  thread t: entry 2 of 3 is missing" in done.out
    assert {"removed", "unrecorded"} == {one["fault"] for one in cli("audit", "verify", "--json").json["findings"]}


@pytest.mark.parametrize("anchor", ["1", "x:y", "1:abc", ":"])
def test_what_is_no_anchor_is_refused(cli_alone: Any, anchor: str) -> None:
    done = cli_alone("audit", "verify", "--anchor", anchor)
    assert 2 == done.code
    assert "NUMBER:HASH" in done.sentence


def test_the_export_has_the_values_and_can_be_recomputed_as_the_docs_say(cli: Any, rejected: str) -> None:
    cli("groups", "add", "finance", "kim")
    lines = cli("audit", "export").out.splitlines()
    [recompute] = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {}
    exec(recompute, scope)
    scope["recompute"](lines)
    with pytest.raises(AssertionError):
        scope["recompute"]([line.replace('"kim"', '"sam"') for line in lines])
    told = {one["entry"]["kind"]: one for one in map(json.loads, lines)}
    assert {"group", "request", "decision", "outcome"} == set(told)
    assert "not now" == told["decision"]["values"]["reason"]
    assert "body" in told["request"]["values"]["arguments"]


def test_values_that_are_not_what_the_chain_tells_are_left_out(cli: Any, rejected: str, query: Any) -> None:
    query("set session_replication_role = replica; update decisions set reason = 'gladly'")
    told = {one["entry"]["kind"]: one for one in map(json.loads, cli("audit", "export").out.splitlines())}
    assert "values" not in told["decision"]


def test_people_are_put_into_groups_and_taken_out(cli: Any) -> None:
    assert "kim is in finance." == cli("groups", "add", "finance", "kim", "--as", "pat").sentence
    assert "kim is in finance already." == cli("groups", "add", "finance", "kim").sentence
    [member] = cli("groups", "list", "finance", "--json").json
    assert ("finance", "kim", "pat") == (member["group"], member["principal"], member["added_by"])
    assert "kim is no longer in finance." == cli("groups", "remove", "finance", "kim").sentence
    assert "Nobody is in finance." == cli("groups", "list", "finance").sentence
