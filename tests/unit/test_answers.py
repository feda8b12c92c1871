"""Every form in which the known clients answer: right ones are read, malformed ones are refused with the reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approval
from standfast.graph.answers import Said, decision_of

ARGUMENTS = {"amount": 900, "to": "Acme", "rate": 1.5, "urgent": False, "note": None, "lines": [1, 2], "at": {"n": 3}}
AT = datetime(2026, 1, 1, tzinfo=UTC)
APPROVAL = Approval(
    id="apr-1",
    thread_id="t",
    tenant="default",
    run_id="r",
    operation_id="op-1",
    operation="pay",
    operation_version="1",
    round=0,
    state="open",
    digest="d",
    policy_version="1",
    arguments=ARGUMENTS,
    proposed=ARGUMENTS,
    description="",
    failed_checks=(),
    requested_by="rob",
    requested_at=AT,
    expires_at=AT,
)
EDITED = {**ARGUMENTS, "amount": 90}
AS_TEXT = {
    "amount": "90",
    "to": "Acme",
    "rate": "1.5",
    "urgent": "false",
    "note": "null",
    "lines": "[1, 2]",
    "at": '{"n": 3}',
}
EDIT = Said("edit", arguments=EDITED)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        # LangChain's human-in-the-loop middleware
        ({"decisions": [{"type": "approve"}]}, Said("approve")),
        ({"decisions": [{"type": "reject", "message": "no"}]}, Said("reject", "no")),
        ({"decisions": [{"type": "edit", "edited_action": {"name": "pay", "args": EDITED}}]}, EDIT),
        ({"decisions": [{"type": "respond", "message": "done by hand"}]}, Said("respond", response="done by hand")),
        # deep-agents-ui
        ({"decisions": [{"type": "edit", "editedAction": {"name": "pay", "args": EDITED}}]}, EDIT),
        # Agent Inbox
        ([{"type": "accept", "args": None}], Said("approve")),
        ([{"type": "accept", "args": {"action": "pay", "args": ARGUMENTS}}], Said("approve")),
        ([{"type": "ignore", "args": None}], Said("reject")),
        ([{"type": "response", "args": "done by hand"}], Said("respond", response="done by hand")),
        ([{"type": "edit", "args": {"action": "pay", "args": AS_TEXT}}], EDIT),
        ([{"type": "edit", "args": {"action": "pay", "args": {**AS_TEXT, "amount": "900"}}}], Said("approve")),
        # one bare decision
        ({"type": "approve"}, Said("approve")),
        ({"type": "approve", "message": "checked"}, Said("approve", "checked")),
        ({"type": "reject"}, Said("reject")),
        ({"type": "reject", "reason": "no"}, Said("reject", "no")),
        ({"type": "edit", "edited_action": {"name": "pay", "args": EDITED}}, EDIT),
        # flags
        ({"approved": True}, Said("approve")),
        ({"approved": False, "reason": "no"}, Said("reject", "no")),
        ({"approved": True, "editedArgs": EDITED}, EDIT),
        ({"approved": True, "edited_args": AS_TEXT}, EDIT),
        # a bool, and text
        (True, Said("approve")),
        (False, Said("reject")),
        ("It was paid by hand.", Said("respond", response="It was paid by hand.")),
    ],
)
def test_a_known_form_is_read(answer: Any, expected: Said) -> None:
    assert expected == decision_of(answer, APPROVAL)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "not a decision"),
        (1, "not a decision"),
        ({}, "not a decision"),
        ([], "0 decisions"),
        ([{"type": "approve"}, {"type": "approve"}], "2 decisions"),
        ({"decisions": []}, "0 decisions"),
        ({"decisions": {"type": "approve"}}, "must be a list"),
        ({"decisions": None}, "must be a list"),
        ({"decisions": ["approve"]}, "not a decision"),
        ({"decisions": [{}]}, "not a decision"),
        ({"type": "aprove"}, "no decision 'aprove'"),
        ({"type": ["approve"]}, "no decision"),
        ({"type": None}, "no decision"),
        ({"approve": True}, "not a decision"),
        ({"approved": "yes"}, "not a decision"),
        ({"approved": 1}, "not a decision"),
        ({"type": "edit"}, "needs edited_action"),
        ({"type": "edit", "edited_action": {"name": "pay", "args": None}}, "needs edited_action"),
        ({"type": "edit", "edited_action": {"name": "refund", "args": EDITED}}, "switch to another"),
        ({"type": "edit", "edited_action": {"args": EDITED}}, "switch to another"),
        ([{"type": "edit", "args": {"action": "refund", "args": EDITED}}], "switch to another"),
        ([{"type": "accept", "args": {"action": "pay", "args": EDITED}}], "other arguments"),
        ([{"type": "accept", "args": {"action": "refund", "args": ARGUMENTS}}], "switch to another"),
        ({"type": "reject", "message": 7}, "a reason is text"),
        ({"type": "respond"}, "needs its text"),
        ({"type": "respond", "message": "  "}, "needs its text"),
        ({"approved": True, "editedArgs": "all"}, "needs edited_action"),
        ("", "needs its text"),
        ("approve", "not a decision"),
        (" Yes ", "not a decision"),
        ("no", "not a decision"),
    ],
)
def test_a_malformed_one_is_refused_with_the_reason_and_decides_nothing(answer: Any, why: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=why) as refused:
        decision_of(answer, APPROVAL)
    assert "stays open" in str(refused.value)


def test_text_in_a_form_becomes_the_type_that_was_there_and_nothing_else() -> None:
    def edited(**changes: Any) -> Any:
        said = decision_of({"approved": True, "editedArgs": {**ARGUMENTS, **changes}}, APPROVAL)
        return said.arguments

    assert 12 == edited(amount="12")["amount"]
    assert "twelve" == edited(amount="twelve")["amount"]
    assert "12" == edited(to="12")["to"]
    assert True is edited(urgent="True")["urgent"]
    assert "1" == edited(urgent="1")["urgent"]
    assert "true" == edited(amount="true")["amount"]
    assert {"n": 4} == edited(at={"n": "4"})["at"]
    assert "x" == edited(note="x")["note"]
