"""The agent and the runtime that drives it. What people use is exported here."""

from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.checkpoint.threads import Status, Thread
from standfast.graph.blocking import Runtime
from standfast.graph.builder import DEFAULT_OPERATIONS, build_agent
from standfast.graph.events import StreamEvent
from standfast.graph.result import Result
from standfast.tools.operations import Effect, Operation, OperationContext, Policy, operation
from standfast.tools.principals import Principal

__all__ = [
    "DEFAULT_OPERATIONS",
    "Approval",
    "Effect",
    "Operation",
    "OperationContext",
    "Policy",
    "Principal",
    "Result",
    "Runtime",
    "Status",
    "StreamEvent",
    "Thread",
    "TypeRegistry",
    "build_agent",
    "operation",
]
