"""The node that ends a run: it writes down what the run came to, from the ledger and the conversation."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig

from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.operations import Operation
from standfast.nodes.state import AgentState, Outcome, last_answer, messages_of_run
from standfast.tools.drive import Drive, drive_of
from standfast.tools.failures import FailureClass
from standfast.tools.ledger import ABANDONED
from standfast.tools.operations import Effect


async def record(state: AgentState, config: RunnableConfig) -> dict[str, Any]:
    """Write the outcome: the answer, every effect that happened, every proposal that was declined."""
    drive = drive_of(config)
    messages = messages_of_run(state["messages"], drive.run.id)
    operations = await drive.operations.list(drive.run.thread_id, drive.run.id)
    acted = [one for one in operations if one.kind == "tool" and one.effect != Effect.READ]
    outcome: Outcome = {
        "status": "done",
        "answer": last_answer(messages),
        "effects": [
            {"operation": one.name, "operation_id": one.id, "result": one.result} for one in acted if _happened(one)
        ],
        "rejected": _declined(messages),
    }
    if given_up := [one for one in acted if one.failure_class == ABANDONED]:
        outcome["unknown"] = [
            {"operation": one.name, "operation_id": one.id, "reason": one.failure_message} for one in given_up
        ]
    unknown = [one for one in acted if one.state == "unknown"]
    if unknown:
        outcome["status"] = "unknown_outcome"
        outcome["reason"] = (
            f"it is not known whether {unknown[0].name} ({unknown[0].id}) took effect; "
            f"look at the receiver, then: standfast cancel {drive.run.thread_id}"
        )
    elif failed := _failed_for_good(acted, await _allowed(drive)):
        outcome["status"] = "failed"
        outcome["reason"] = f"{failed.name} failed: {failed.failure_message}"
    elif not outcome["answer"]:
        outcome["status"] = "failed"
        outcome["reason"] = _why(messages)
    reach("node.record")
    return {"outcome": outcome}


async def _allowed(drive: Drive) -> set[str]:
    """The operations that a person has said yes to."""
    approvals = await drive.approvals.list(thread_id=drive.run.thread_id, state="approved", limit=None)
    return {one.operation_id for one in approvals}


def _failed_for_good(acted: list[Operation], allowed: set[str]) -> Operation | None:
    """An effect that a person allowed, that failed, and that no later call of the same operation has made good."""
    done = {one.name: one.created_at for one in acted if _happened(one)}
    for one in acted:
        for_good = one.name not in done or done[one.name] < one.created_at
        if one.id in allowed and _has_failed(one) and for_good:
            return one
    return None


def _happened(one: Operation) -> bool:
    return one.state == "succeeded" or (one.state == "reconciled" and one.failure_class is None)


def _has_failed(one: Operation) -> bool:
    failed = one.state == "failed" or (one.state == "reconciled" and one.failure_class not in (None, ABANDONED))
    return failed and one.failure_class != FailureClass.INVALID


def _declined(messages: list[AnyMessage]) -> list[dict[str, Any]]:
    return [
        {"operation": one.name, "approval": one.additional_kwargs["approval"], "reason": str(one.text)}
        for one in messages
        if isinstance(one, ToolMessage) and one.status == "error" and "approval" in one.additional_kwargs
    ]


def _why(messages: list[AnyMessage]) -> str:
    answers = sum(isinstance(one, AIMessage) for one in messages)
    return f"the model gave no answer in {answers} turns"
