"""One test for each private part of a library that Standfast leans on: a new version that moves one fails here."""

from __future__ import annotations

import inspect
import operator
import uuid
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph._internal._constants import ERROR_SOURCE_NODE
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.base import id as id_clock
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import base
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.errors import UnknownInterruptError
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.pregel._checkpoint import achannels_from_checkpoint
from langgraph.types import Command, Send, interrupt


def test_checkpoint_ids_follow_last_v6_timestamp(monkeypatch: pytest.MonkeyPatch) -> None:
    hour_ahead = uuid.UUID(str(id_clock.uuid6())).int
    ticks = (((hour_ahead >> 80) << 12) | ((hour_ahead >> 64) & 0x0FFF)) + 3600 * 10_000_000
    monkeypatch.setattr(id_clock, "_last_v6_timestamp", ticks)
    following = id_clock.uuid6()
    assert ticks + 1 == ((following.int >> 80) << 12) | ((following.int >> 64) & 0x0FFF)
    assert ticks + 1 == id_clock._last_v6_timestamp


def columns(statement: str) -> list[str]:
    inside = statement.split("(", 1)[1].split(")", 1)[0]
    return [name.strip() for name in inside.split(",")]


def test_the_saver_s_statements_take_the_rows_that_we_give_them() -> None:
    writes = ["thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "task_path", "idx", "channel", "type", "blob"]
    assert writes == columns(AsyncPostgresSaver.UPSERT_CHECKPOINT_WRITES_SQL)
    assert writes == columns(AsyncPostgresSaver.INSERT_CHECKPOINT_WRITES_SQL)
    assert "DO NOTHING" in AsyncPostgresSaver.INSERT_CHECKPOINT_WRITES_SQL
    blobs = ["thread_id", "checkpoint_ns", "channel", "version", "type", "blob"]
    assert blobs == columns(AsyncPostgresSaver.UPSERT_CHECKPOINT_BLOBS_SQL)
    checkpoints = ["thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "checkpoint", "metadata"]
    assert checkpoints == columns(AsyncPostgresSaver.UPSERT_CHECKPOINTS_SQL)


def test_the_saver_s_reads_have_the_columns_that_we_open() -> None:
    statement = AsyncPostgresSaver.SELECT_SQL
    assert "array_agg(array[bl.channel::bytea, bl.type::bytea, bl.blob])" in statement
    assert (
        "array_agg(array[cw.task_id::text::bytea, cw.channel::bytea, cw.type::bytea, cw.blob, "
        "convert_to(cw.task_path, 'UTF8'), cw.idx::text::bytea])" in statement
    )
    for name in ("channel_values", "pending_writes", "parent_checkpoint_id", "metadata"):
        assert name in statement


def test_the_saver_s_reads_go_through_cursor_and_load_checkpoint_tuple() -> None:
    for read in (AsyncPostgresSaver.aget_tuple, AsyncPostgresSaver.alist):
        source = inspect.getsource(read)
        assert "self._cursor(" in source
        assert "await self._load_checkpoint_tuple(" in source
        assert "self.conn" not in source
        assert "self.lock" not in source
    assert "self._cursor(" in inspect.getsource(AsyncPostgresSaver.aget_delta_channel_history)
    assert ["self", "pipeline"] == list(inspect.signature(AsyncPostgresSaver._cursor).parameters)
    assert ["self", "value"] == list(inspect.signature(AsyncPostgresSaver._load_checkpoint_tuple).parameters)


def test_there_are_two_strategies_of_pruning() -> None:
    assert ("keep_latest", "delete") == base.PRUNE_STRATEGIES


def test_what_a_delta_channel_holds_is_read_by_a_function_and_kept_as_a_snapshot_of_one_value() -> None:
    assert ["specs", "checkpoint", "saver", "config"] == list(inspect.signature(achannels_from_checkpoint).parameters)
    assert ("value",) == _DeltaSnapshot._fields


def test_errors_questions_and_answers_have_fixed_places_and_the_error_marker_its_name() -> None:
    assert {"__error__", "__scheduled__", "__interrupt__", "__resume__"} == WRITES_IDX_MAP.keys()
    assert "__error_source_node__" == ERROR_SOURCE_NODE


def test_messages_delta_reducer_adds_replaces_and_removes_in_batches() -> None:
    first = _messages_delta_reducer([], [[HumanMessage("one", id="1")], [AIMessage("two", id="2")]])
    assert ["one", "two"] == [message.content for message in first]
    second = _messages_delta_reducer(first, [[AIMessage("second", id="2")], [RemoveMessage(id="1")]])
    assert ["second"] == [message.content for message in second]


class Answers(TypedDict, total=False):
    answers: Annotated[list[Any], operator.add]
    calls: list[str]


def compiled(builder: StateGraph[Any, Any, Any, Any]) -> Any:
    return builder.compile(checkpointer=InMemorySaver())


async def test_strict_resume_refuses_an_id_that_is_not_open() -> None:
    builder = StateGraph(Answers)
    builder.add_node("ask", lambda _: {"answers": [interrupt("?")]})
    builder.add_edge(START, "ask")
    graph = compiled(builder)
    config: Any = {"configurable": {"thread_id": "t", "__pregel_strict_resume": True}}
    waiting = await graph.ainvoke({"answers": []}, config)
    with pytest.raises(UnknownInterruptError):
        await graph.ainvoke(Command(resume={"0" * 32: "wrong"}), config)
    identifier = waiting["__interrupt__"][0].id
    assert ["right"] == (await graph.ainvoke(Command(resume={identifier: "right"}), config))["answers"]
    with pytest.raises(UnknownInterruptError):
        await graph.ainvoke(Command(resume={identifier: "again"}), config)


def pending_channels(graph: Any) -> dict[str, Any]:
    found = graph.checkpointer.get_tuple({"configurable": {"thread_id": "t"}})
    return dict(found.checkpoint["channel_values"])


def stopped_before(node: str, builder: StateGraph[Any, Any, Any, Any]) -> dict[str, Any]:
    graph = builder.compile(checkpointer=InMemorySaver(), interrupt_before=[node])
    graph.invoke({"answers": []}, {"configurable": {"thread_id": "t"}})
    return pending_channels(graph)


def test_a_node_that_an_edge_leads_to_waits_in_branch_to() -> None:
    builder = StateGraph(Answers)
    builder.add_node("first", lambda _: {})
    builder.add_node("second", lambda _: {})
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    assert ["branch:to:second"] == [name for name in stopped_before("second", builder) if name.startswith("branch:")]


def test_a_node_that_a_condition_leads_to_waits_in_branch_to() -> None:
    builder = StateGraph(Answers)
    builder.add_node("first", lambda _: {})
    builder.add_node("second", lambda _: {})
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", lambda _: "second", ["second"])
    assert ["branch:to:second"] == [name for name in stopped_before("second", builder) if name.startswith("branch:")]


def test_a_join_gathers_in_join_with_its_node_last() -> None:
    builder = StateGraph(Answers)
    for name in ("start", "short", "long1", "long2", "last"):
        builder.add_node(name, lambda _: {})
    builder.add_edge(START, "start")
    builder.add_edge("start", "short")
    builder.add_edge("start", "long1")
    builder.add_edge("long1", "long2")
    builder.add_edge(["short", "long2"], "last")
    assert ["join:short+long2:last"] == [name for name in stopped_before("long2", builder) if name.startswith("join:")]


def test_packets_of_send_wait_in_pregel_tasks() -> None:
    builder = StateGraph(Answers)
    builder.add_node("first", lambda _: {})
    builder.add_node("call", lambda _: {})
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", lambda _: [Send("call", {"calls": ["a"]})], ["call"])
    assert ["call"] == [packet.node for packet in stopped_before("call", builder)["__pregel_tasks"]]


def test_a_delta_channel_takes_our_snapshot_frequency() -> None:
    assert {"snapshot_frequency"} <= inspect.signature(DeltaChannel).parameters.keys()
