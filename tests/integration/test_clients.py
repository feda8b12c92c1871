"""What LangGraph's known clients are shown and send: it decides, or is refused with the reason; no thread breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from standfast.checkpoint import errors
from standfast.graph import Principal, Result
from tests.crash.support.scripted_model import call, script
from tests.servers.reports import ReportsServer

pytestmark = pytest.mark.guarantee("G6")

Open = Callable[..., Any]
WHO = Principal.vouched("approver@example.com")
REQUEST = script([call("note", text="draft")])
MALFORMED: list[Any] = [
    None,
    7,
    {},
    [],
    "yes",
    {"approve": True},
    {"type": "aprove"},
    {"decisions": []},
    {"decisions": [{"type": "approve"}, {"type": "approve"}]},
    {"decisions": [{"type": "edit", "edited_action": {"name": "shout", "args": {"text": "x"}}}]},
    {"decisions": [{"type": "edit", "edited_action": {"name": "note", "args": {"text": 7}}}]},
    [{"type": "edit", "args": {"action": "note", "args": {"txt": "x"}}}],
]
RIGHT: list[tuple[Any, str]] = [
    ({"decisions": [{"type": "approve"}]}, "noted draft"),
    ([{"type": "accept", "args": None}], "noted draft"),
    ({"approved": True}, "noted draft"),
    (True, "noted draft"),
    ({"type": "reject", "message": "no"}, f"Rejected by {WHO.name}: no"),
    (False, f"Rejected by {WHO.name}."),
    ([{"type": "response", "args": "by hand"}], "by hand"),
    ("It was noted by hand.", "It was noted by hand."),
    (
        {"decisions": [{"type": "edit", "edited_action": {"name": "note", "args": {"text": "final"}}}]},
        f"{WHO.name} edited the call before approving it.\nnoted final",
    ),
]


def texts(result: Result) -> list[str]:
    return [str(one.text) for one in result.messages if isinstance(one, ToolMessage)]


async def test_a_client_finds_every_key_that_it_may_look_for(opened: Open) -> None:
    async with opened() as runtime:
        [approval] = (await runtime.ainvoke(REQUEST, thread_id="t")).approvals
        [question] = (await runtime.astate("t")).interrupts
    shown = question.value
    [action], [review] = shown["action_requests"], shown["review_configs"]
    assert ("note", {"text": "draft"}, {"text": "draft"}) == (action["name"], action["args"], action["arguments"])
    assert review["allowed_decisions"] == review["allowedDecisions"] == ["approve", "reject", "edit", "respond"]
    assert "note" == review["action_name"] == review["actionName"] == shown["action_request"]["action"]
    assert {"allow_accept", "allow_edit", "allow_respond", "allow_ignore"} == set(shown["config"])
    assert approval.expires_at.isoformat() == shown["expires_at"]
    assert ["type"] == shown["response_schema"]["required"]
    assert (approval.id, approval.digest, 1) == tuple(shown["approval"][key] for key in ("id", "digest", "required"))
    assert "call-0-0" == shown["tool_call_id"]


async def test_whatever_is_malformed_is_refused_and_the_request_can_still_be_decided(
    opened: Open, reports_server: ReportsServer
) -> None:
    async with opened() as runtime:
        [approval] = (await runtime.ainvoke(REQUEST, thread_id="t")).approvals
        for answer in MALFORMED:
            with pytest.raises(errors.InvalidRequest):
                await runtime.aresume("t", answer, as_=WHO)
            assert [approval.id] == [one.id for one in (await runtime.aresume("t")).approvals], answer
        assert [] == reports_server.effects()
        end = await runtime.aresume("t", Command(resume={"decisions": [{"type": "approve"}]}), as_=WHO)
    assert ("succeeded", ["noted draft"]) == (end.status, texts(end))


@pytest.mark.parametrize(("answer", "expected"), RIGHT)
async def test_every_right_form_decides(opened: Open, answer: Any, expected: str) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(REQUEST, thread_id="t")
        end = await runtime.aresume("t", answer, as_=WHO)
    assert ("succeeded", [expected]) == (end.status, texts(end))
