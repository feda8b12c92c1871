"""The agent and the runtime that drives it. What people use is exported here.

The names are loaded when they are first used, so that a command that needs no graph does not pay for one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from standfast.checkpoint.shown import show_with

if TYPE_CHECKING:
    from standfast.checkpoint.approvals import Approval, Terms
    from standfast.checkpoint.artifact import Artifact
    from standfast.checkpoint.artifacts import KeptArtifact
    from standfast.checkpoint.audit import Anchor, Entry, Finding, Verification
    from standfast.checkpoint.budget import Budget, Price
    from standfast.checkpoint.child import Child, ChildEnd
    from standfast.checkpoint.differences import Change
    from standfast.checkpoint.events import Event
    from standfast.checkpoint.fleet import Unserved, WorkerRow
    from standfast.checkpoint.flow import Limit, LimitRow
    from standfast.checkpoint.groups import Member
    from standfast.checkpoint.listing import OpenWait, RunRow
    from standfast.checkpoint.memory import Memory
    from standfast.checkpoint.operations import Attempt
    from standfast.checkpoint.outbox import Delivery, Message
    from standfast.checkpoint.schedules import Schedule
    from standfast.checkpoint.settings import Settings
    from standfast.checkpoint.stored_types import TypeRegistry
    from standfast.checkpoint.threads import Run, Status, Thread
    from standfast.checkpoint.waits import Wait
    from standfast.graph.answers import Said
    from standfast.graph.blocking import Runtime
    from standfast.graph.builder import DEFAULT_OPERATIONS, AgentGraph, build_agent, operation_graph
    from standfast.graph.events import StreamEvent, fold_text
    from standfast.graph.history import Diff, History, HistoryEntry
    from standfast.graph.pictures.buttons import decide_here
    from standfast.graph.pictures.chart import chart
    from standfast.graph.pictures.diagram import Mark, Picture, picture_of
    from standfast.graph.result import Result
    from standfast.graph.retention import Pruned
    from standfast.graph.routing import after_approval, after_operate, after_validation
    from standfast.graph.rows import Rows
    from standfast.graph.served import Served
    from standfast.graph.timeline import Ledger, Step, Timeline
    from standfast.nodes.approval import approval_node
    from standfast.nodes.operate import operate_node
    from standfast.nodes.state import OperationResult, OperationState, ToolCall, proposal
    from standfast.nodes.validation import validation_node
    from standfast.tools.approval_policy import ApprovalPolicy
    from standfast.tools.artifacts import ThreadArtifacts
    from standfast.tools.authenticators import OIDC, Authenticator
    from standfast.tools.channels import Channel, FunctionChannel, LogChannel, Redelivery, Webhook
    from standfast.tools.children import end_of, join, map, spawn
    from standfast.tools.conditions import Condition
    from standfast.tools.dispatcher import Dispatched
    from standfast.tools.drive import artifacts
    from standfast.tools.failures import Failure, FailureClass, InvalidArguments, register_classifier
    from standfast.tools.notify import notify
    from standfast.tools.operations import (
        CheckContext,
        Effect,
        Operation,
        OperationContext,
        OutcomeContext,
        Policy,
        Registry,
        operation,
    )
    from standfast.tools.outcomes import CannotTell, DidNotHappen, Failed, Happened, Pending
    from standfast.tools.principals import Principal
    from standfast.tools.questions import ask
    from standfast.tools.recorded import durable_step, now, random, uuid
    from standfast.tools.remember import remember
    from standfast.tools.retries import Backoff, RetryPolicy
    from standfast.tools.rules import Rule
    from standfast.tools.waits import (
        ChildWait,
        Ended,
        EventWait,
        TimerWait,
        all_of,
        event,
        first_of,
        sleep,
        timer,
        wait_for_event,
    )

__all__ = [
    "DEFAULT_OPERATIONS",
    "OIDC",
    "AgentGraph",
    "Anchor",
    "Approval",
    "ApprovalPolicy",
    "Artifact",
    "Attempt",
    "Authenticator",
    "Backoff",
    "Budget",
    "CannotTell",
    "Change",
    "Channel",
    "CheckContext",
    "Child",
    "ChildEnd",
    "ChildWait",
    "Condition",
    "Delivery",
    "DidNotHappen",
    "Diff",
    "Dispatched",
    "Effect",
    "Ended",
    "Entry",
    "Event",
    "EventWait",
    "Failed",
    "Failure",
    "FailureClass",
    "Finding",
    "FunctionChannel",
    "Happened",
    "History",
    "HistoryEntry",
    "InvalidArguments",
    "KeptArtifact",
    "Ledger",
    "Limit",
    "LimitRow",
    "LogChannel",
    "Mark",
    "Member",
    "Memory",
    "Message",
    "OpenWait",
    "Operation",
    "OperationContext",
    "OperationResult",
    "OperationState",
    "OutcomeContext",
    "Pending",
    "Picture",
    "Policy",
    "Price",
    "Principal",
    "Pruned",
    "Redelivery",
    "Registry",
    "Result",
    "RetryPolicy",
    "Rows",
    "Rule",
    "Run",
    "RunRow",
    "Runtime",
    "Said",
    "Schedule",
    "Served",
    "Settings",
    "Status",
    "Step",
    "StreamEvent",
    "Terms",
    "Thread",
    "ThreadArtifacts",
    "Timeline",
    "TimerWait",
    "ToolCall",
    "TypeRegistry",
    "Unserved",
    "Verification",
    "Wait",
    "Webhook",
    "WorkerRow",
    "after_approval",
    "after_operate",
    "after_validation",
    "all_of",
    "approval_node",
    "artifacts",
    "ask",
    "build_agent",
    "chart",
    "decide_here",
    "durable_step",
    "end_of",
    "event",
    "first_of",
    "fold_text",
    "join",
    "map",
    "notify",
    "now",
    "operate_node",
    "operation",
    "operation_graph",
    "picture_of",
    "proposal",
    "random",
    "register_classifier",
    "remember",
    "sleep",
    "spawn",
    "timer",
    "uuid",
    "validation_node",
    "wait_for_event",
]

_HOMES: Final = {
    "DEFAULT_OPERATIONS": "standfast.graph.builder",
    "OIDC": "standfast.tools.authenticators",
    "AgentGraph": "standfast.graph.builder",
    "Anchor": "standfast.checkpoint.audit",
    "Approval": "standfast.checkpoint.approvals",
    "ApprovalPolicy": "standfast.tools.approval_policy",
    "Artifact": "standfast.checkpoint.artifact",
    "Attempt": "standfast.checkpoint.operations",
    "Authenticator": "standfast.tools.authenticators",
    "Backoff": "standfast.tools.retries",
    "Budget": "standfast.checkpoint.budget",
    "CannotTell": "standfast.tools.outcomes",
    "Change": "standfast.checkpoint.differences",
    "Channel": "standfast.tools.channels",
    "CheckContext": "standfast.tools.operations",
    "Child": "standfast.checkpoint.child",
    "ChildEnd": "standfast.checkpoint.child",
    "ChildWait": "standfast.tools.waits",
    "Condition": "standfast.tools.conditions",
    "Delivery": "standfast.checkpoint.outbox",
    "DidNotHappen": "standfast.tools.outcomes",
    "Diff": "standfast.graph.history",
    "Dispatched": "standfast.tools.dispatcher",
    "Effect": "standfast.tools.operations",
    "Ended": "standfast.tools.waits",
    "Entry": "standfast.checkpoint.audit",
    "Event": "standfast.checkpoint.events",
    "EventWait": "standfast.tools.waits",
    "Failed": "standfast.tools.outcomes",
    "Failure": "standfast.tools.failures",
    "FailureClass": "standfast.tools.failures",
    "Finding": "standfast.checkpoint.audit",
    "FunctionChannel": "standfast.tools.channels",
    "Happened": "standfast.tools.outcomes",
    "History": "standfast.graph.history",
    "HistoryEntry": "standfast.graph.history",
    "InvalidArguments": "standfast.tools.failures",
    "KeptArtifact": "standfast.checkpoint.artifacts",
    "Ledger": "standfast.graph.timeline",
    "Limit": "standfast.checkpoint.flow",
    "LimitRow": "standfast.checkpoint.flow",
    "LogChannel": "standfast.tools.channels",
    "Mark": "standfast.graph.pictures.diagram",
    "Member": "standfast.checkpoint.groups",
    "Memory": "standfast.checkpoint.memory",
    "Message": "standfast.checkpoint.outbox",
    "OpenWait": "standfast.checkpoint.listing",
    "Operation": "standfast.tools.operations",
    "OperationContext": "standfast.tools.operations",
    "OperationResult": "standfast.nodes.state",
    "OperationState": "standfast.nodes.state",
    "OutcomeContext": "standfast.tools.operations",
    "Pending": "standfast.tools.outcomes",
    "Picture": "standfast.graph.pictures.diagram",
    "Policy": "standfast.tools.operations",
    "Price": "standfast.checkpoint.budget",
    "Principal": "standfast.tools.principals",
    "Pruned": "standfast.graph.retention",
    "Redelivery": "standfast.tools.channels",
    "Registry": "standfast.tools.operations",
    "Result": "standfast.graph.result",
    "RetryPolicy": "standfast.tools.retries",
    "Rows": "standfast.graph.rows",
    "Rule": "standfast.tools.rules",
    "Run": "standfast.checkpoint.threads",
    "RunRow": "standfast.checkpoint.listing",
    "Runtime": "standfast.graph.blocking",
    "Said": "standfast.graph.answers",
    "Schedule": "standfast.checkpoint.schedules",
    "Served": "standfast.graph.served",
    "Settings": "standfast.checkpoint.settings",
    "Status": "standfast.checkpoint.threads",
    "Step": "standfast.graph.timeline",
    "StreamEvent": "standfast.graph.events",
    "Terms": "standfast.checkpoint.approvals",
    "Thread": "standfast.checkpoint.threads",
    "ThreadArtifacts": "standfast.tools.artifacts",
    "Timeline": "standfast.graph.timeline",
    "TimerWait": "standfast.tools.waits",
    "ToolCall": "standfast.nodes.state",
    "TypeRegistry": "standfast.checkpoint.stored_types",
    "Unserved": "standfast.checkpoint.fleet",
    "Verification": "standfast.checkpoint.audit",
    "Wait": "standfast.checkpoint.waits",
    "Webhook": "standfast.tools.channels",
    "WorkerRow": "standfast.checkpoint.fleet",
    "after_approval": "standfast.graph.routing",
    "after_operate": "standfast.graph.routing",
    "after_validation": "standfast.graph.routing",
    "all_of": "standfast.tools.waits",
    "approval_node": "standfast.nodes.approval",
    "artifacts": "standfast.tools.drive",
    "ask": "standfast.tools.questions",
    "build_agent": "standfast.graph.builder",
    "chart": "standfast.graph.pictures.chart",
    "decide_here": "standfast.graph.pictures.buttons",
    "durable_step": "standfast.tools.recorded",
    "end_of": "standfast.tools.children",
    "event": "standfast.tools.waits",
    "first_of": "standfast.tools.waits",
    "fold_text": "standfast.graph.events",
    "join": "standfast.tools.children",
    "map": "standfast.tools.children",
    "notify": "standfast.tools.notify",
    "now": "standfast.tools.recorded",
    "operate_node": "standfast.nodes.operate",
    "operation": "standfast.tools.operations",
    "operation_graph": "standfast.graph.builder",
    "picture_of": "standfast.graph.pictures.diagram",
    "proposal": "standfast.nodes.state",
    "random": "standfast.tools.recorded",
    "register_classifier": "standfast.tools.failures",
    "remember": "standfast.tools.remember",
    "sleep": "standfast.tools.waits",
    "spawn": "standfast.tools.children",
    "timer": "standfast.tools.waits",
    "uuid": "standfast.tools.recorded",
    "validation_node": "standfast.nodes.validation",
    "wait_for_event": "standfast.tools.waits",
}


def _face(value: object) -> str | None:
    shown: str | None = import_module("standfast.graph.pictures.faces").face_of(value)
    return shown


show_with(_face)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
