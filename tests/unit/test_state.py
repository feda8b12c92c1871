"""The conversation that a provider is sent: every tool call answered once, in its place."""

from __future__ import annotations

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from standfast.nodes.state import answered, last_answer, messages_of_run, request_id


def asks(*ids: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": one, "type": "tool_call"} for one in ids])


def results(messages: list[AnyMessage]) -> list[tuple[str, str]]:
    return [(one.tool_call_id, one.status) for one in messages if isinstance(one, ToolMessage)]


def test_an_answered_call_is_left_as_it_is() -> None:
    messages: list[AnyMessage] = [HumanMessage("a"), asks("1"), ToolMessage("ok", tool_call_id="1"), AIMessage("b")]
    assert messages == answered(messages)


def test_a_call_that_its_run_left_open_is_closed_before_the_next_request() -> None:
    messages: list[AnyMessage] = [
        HumanMessage("a"),
        asks("1", "2"),
        ToolMessage("ok", tool_call_id="1"),
        HumanMessage("b"),
    ]
    whole = answered(messages)
    assert [("2", "error"), ("1", "success")] == results(whole)
    assert ["human", "ai", "tool", "tool", "human"] == [one.type for one in whole]


def test_a_repeated_call_id_is_matched_within_its_own_turn() -> None:
    messages: list[AnyMessage] = [asks("1"), ToolMessage("ok", tool_call_id="1"), asks("1"), HumanMessage("b")]
    assert [("1", "success"), ("1", "error")] == results(answered(messages))


def test_a_call_whose_arguments_could_not_be_read_is_closed_too() -> None:
    broken = AIMessage(
        "", invalid_tool_calls=[{"name": "f", "args": "{", "id": "9", "error": "cut", "type": "invalid_tool_call"}]
    )
    assert [("9", "error")] == results(answered([broken, HumanMessage("b")]))


def test_the_messages_of_a_run_begin_with_its_request() -> None:
    first, second = HumanMessage("a", id=request_id("r1")), HumanMessage("b", id=request_id("r2"))
    messages: list[AnyMessage] = [first, AIMessage("x"), second, AIMessage("y")]
    assert messages[2:] == messages_of_run(messages, "r2")
    assert messages == messages_of_run(messages, "r1")


def test_the_last_answer_belongs_to_the_last_request() -> None:
    assert "" == last_answer([AIMessage("x"), HumanMessage("b")])
    assert "y" == last_answer([HumanMessage("b"), AIMessage("y"), ToolMessage("t", tool_call_id="1")])
