"""The agent and the runtime that drives it. What people use is exported here.

The names are loaded when they are first used, so that a command that needs no graph does not pay for one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from standfast.checkpoint.approvals import Approval
    from standfast.checkpoint.events import Event
    from standfast.checkpoint.outbox import Delivery, Message
    from standfast.checkpoint.stored_types import TypeRegistry
    from standfast.checkpoint.threads import Status, Thread
    from standfast.graph.blocking import Runtime
    from standfast.graph.builder import DEFAULT_OPERATIONS, build_agent
    from standfast.graph.events import StreamEvent, fold_text
    from standfast.graph.result import Result
    from standfast.tools.authenticators import OIDC, Authenticator
    from standfast.tools.channels import Channel, FunctionChannel, LogChannel, Redelivery, Webhook
    from standfast.tools.failures import FailureClass, InvalidArguments, register_classifier
    from standfast.tools.notify import notify
    from standfast.tools.operations import Effect, Operation, OperationContext, Policy, operation
    from standfast.tools.principals import Principal
    from standfast.tools.remember import remember
    from standfast.tools.waits import all_of, event, first_of, sleep, timer, wait_for_event

__all__ = [
    "DEFAULT_OPERATIONS",
    "OIDC",
    "Approval",
    "Authenticator",
    "Channel",
    "Delivery",
    "Effect",
    "Event",
    "FailureClass",
    "FunctionChannel",
    "InvalidArguments",
    "LogChannel",
    "Message",
    "Operation",
    "OperationContext",
    "Policy",
    "Principal",
    "Redelivery",
    "Result",
    "Runtime",
    "Status",
    "StreamEvent",
    "Thread",
    "TypeRegistry",
    "Webhook",
    "all_of",
    "build_agent",
    "event",
    "first_of",
    "fold_text",
    "notify",
    "operation",
    "register_classifier",
    "remember",
    "sleep",
    "timer",
    "wait_for_event",
]

_HOMES: Final = {
    "DEFAULT_OPERATIONS": "standfast.graph.builder",
    "Approval": "standfast.checkpoint.approvals",
    "Authenticator": "standfast.tools.authenticators",
    "OIDC": "standfast.tools.authenticators",
    "Effect": "standfast.tools.operations",
    "FailureClass": "standfast.tools.failures",
    "InvalidArguments": "standfast.tools.failures",
    "Operation": "standfast.tools.operations",
    "OperationContext": "standfast.tools.operations",
    "Policy": "standfast.tools.operations",
    "notify": "standfast.tools.notify",
    "Channel": "standfast.tools.channels",
    "FunctionChannel": "standfast.tools.channels",
    "LogChannel": "standfast.tools.channels",
    "Redelivery": "standfast.tools.channels",
    "Webhook": "standfast.tools.channels",
    "Delivery": "standfast.checkpoint.outbox",
    "Message": "standfast.checkpoint.outbox",
    "Principal": "standfast.tools.principals",
    "Result": "standfast.graph.result",
    "Runtime": "standfast.graph.blocking",
    "Status": "standfast.checkpoint.threads",
    "StreamEvent": "standfast.graph.events",
    "Event": "standfast.checkpoint.events",
    "all_of": "standfast.tools.waits",
    "event": "standfast.tools.waits",
    "first_of": "standfast.tools.waits",
    "fold_text": "standfast.graph.events",
    "register_classifier": "standfast.tools.failures",
    "sleep": "standfast.tools.waits",
    "timer": "standfast.tools.waits",
    "wait_for_event": "standfast.tools.waits",
    "Thread": "standfast.checkpoint.threads",
    "TypeRegistry": "standfast.checkpoint.stored_types",
    "build_agent": "standfast.graph.builder",
    "operation": "standfast.tools.operations",
    "remember": "standfast.tools.remember",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
