"""The agent and the runtime that drives it. What people use is exported here.

The names are loaded when they are first used, so that a command that needs no graph does not pay for one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from standfast.checkpoint.shown import show_with

if TYPE_CHECKING:
    from standfast.checkpoint.approvals import Approval
    from standfast.checkpoint.artifact import Artifact
    from standfast.checkpoint.budget import Budget, Price
    from standfast.checkpoint.child import Child, ChildEnd
    from standfast.checkpoint.events import Event
    from standfast.checkpoint.flow import Limit
    from standfast.checkpoint.outbox import Delivery, Message
    from standfast.checkpoint.stored_types import TypeRegistry
    from standfast.checkpoint.threads import Status, Thread
    from standfast.graph.answers import Said
    from standfast.graph.blocking import Runtime
    from standfast.graph.builder import DEFAULT_OPERATIONS, build_agent, operation_graph
    from standfast.graph.events import StreamEvent, fold_text
    from standfast.graph.pictures.buttons import decide_here
    from standfast.graph.pictures.chart import chart
    from standfast.graph.pictures.diagram import Picture, picture_of
    from standfast.graph.result import Result
    from standfast.graph.retention import Pruned
    from standfast.graph.routing import after_approval, after_operate, after_validation
    from standfast.graph.served import Served
    from standfast.graph.timeline import Ledger, Timeline
    from standfast.nodes.approval import approval_node
    from standfast.nodes.operate import operate_node
    from standfast.nodes.state import OperationState, proposal
    from standfast.nodes.validation import validation_node
    from standfast.tools.approval_policy import ApprovalPolicy
    from standfast.tools.authenticators import OIDC, Authenticator
    from standfast.tools.channels import Channel, FunctionChannel, LogChannel, Redelivery, Webhook
    from standfast.tools.children import end_of, join, map, spawn
    from standfast.tools.conditions import Condition
    from standfast.tools.drive import artifacts
    from standfast.tools.failures import FailureClass, InvalidArguments, register_classifier
    from standfast.tools.notify import notify
    from standfast.tools.operations import (
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
    from standfast.tools.waits import all_of, event, first_of, sleep, timer, wait_for_event

__all__ = [
    "DEFAULT_OPERATIONS",
    "OIDC",
    "Approval",
    "ApprovalPolicy",
    "Artifact",
    "Authenticator",
    "Backoff",
    "Budget",
    "CannotTell",
    "Channel",
    "Child",
    "ChildEnd",
    "Condition",
    "Delivery",
    "DidNotHappen",
    "Effect",
    "Event",
    "Failed",
    "FailureClass",
    "FunctionChannel",
    "Happened",
    "InvalidArguments",
    "Ledger",
    "Limit",
    "LogChannel",
    "Message",
    "Operation",
    "OperationContext",
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
    "Rule",
    "Runtime",
    "Said",
    "Served",
    "Status",
    "StreamEvent",
    "Thread",
    "Timeline",
    "TypeRegistry",
    "Webhook",
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
    "Approval": "standfast.checkpoint.approvals",
    "ApprovalPolicy": "standfast.tools.approval_policy",
    "Artifact": "standfast.checkpoint.artifact",
    "Authenticator": "standfast.tools.authenticators",
    "Backoff": "standfast.tools.retries",
    "Budget": "standfast.checkpoint.budget",
    "CannotTell": "standfast.tools.outcomes",
    "Channel": "standfast.tools.channels",
    "Child": "standfast.checkpoint.child",
    "ChildEnd": "standfast.checkpoint.child",
    "Condition": "standfast.tools.conditions",
    "Delivery": "standfast.checkpoint.outbox",
    "DidNotHappen": "standfast.tools.outcomes",
    "Effect": "standfast.tools.operations",
    "Event": "standfast.checkpoint.events",
    "Failed": "standfast.tools.outcomes",
    "FailureClass": "standfast.tools.failures",
    "FunctionChannel": "standfast.tools.channels",
    "Happened": "standfast.tools.outcomes",
    "InvalidArguments": "standfast.tools.failures",
    "Ledger": "standfast.graph.timeline",
    "Limit": "standfast.checkpoint.flow",
    "LogChannel": "standfast.tools.channels",
    "Message": "standfast.checkpoint.outbox",
    "Operation": "standfast.tools.operations",
    "OperationContext": "standfast.tools.operations",
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
    "Rule": "standfast.tools.rules",
    "Runtime": "standfast.graph.blocking",
    "Said": "standfast.graph.answers",
    "Served": "standfast.graph.served",
    "Status": "standfast.checkpoint.threads",
    "StreamEvent": "standfast.graph.events",
    "Thread": "standfast.checkpoint.threads",
    "Timeline": "standfast.graph.timeline",
    "TypeRegistry": "standfast.checkpoint.stored_types",
    "Webhook": "standfast.tools.channels",
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
