"""What the nodes of a graph find in their configuration while a runtime drives it.

Invariant: a drive belongs to one lease; it travels in `configurable` by reference and is never stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.store.base import BaseStore

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Approvals
from standfast.checkpoint.children import Children
from standfast.checkpoint.documents import Documents
from standfast.checkpoint.lease import Lease
from standfast.checkpoint.operations import Operations
from standfast.checkpoint.outgoing import StepMessages
from standfast.checkpoint.threads import Run
from standfast.tools.approval_policy import ApprovalPolicy
from standfast.tools.artifacts import ThreadArtifacts
from standfast.tools.ledger import Ledger
from standfast.tools.limits import Limits
from standfast.tools.lineage import Lineage

KEY: Final = "standfast.drive"


@dataclass(frozen=True)
class Drive:
    """One process driving one thread: the run, the lease, and the rows that its nodes may touch."""

    run: Run
    lease: Lease
    ledger: Ledger
    operations: Operations
    children: Children
    approvals: Approvals
    documents: Documents
    memory: BaseStore
    messages: StepMessages
    artifacts: ThreadArtifacts
    limits: Limits
    request: Callable[[Any, str], Any]  # a request for a run of this id, as the input of its graph
    clock: Callable[[], Awaitable[datetime]]
    tell: Callable[[str, tuple[str, ...], Any], None]  # record an event of the run: kind, path, data
    lineage: Lineage
    policy: ApprovalPolicy = field(default_factory=ApprovalPolicy)  # who decides about which calls


def artifacts() -> ThreadArtifacts:
    """The artifacts of the thread whose node or operation is at work. Raises `UsageError` outside a run."""
    try:
        config = get_config()
    except RuntimeError as error:
        raise errors.UsageError("artifacts() belongs to a thread, and none is being driven here") from error
    return drive_of(config).artifacts


def path_of(config: RunnableConfig) -> tuple[str, ...]:
    """The way to the node that runs under this configuration, by names."""
    namespace = config.get("configurable", {}).get("checkpoint_ns", "")
    return tuple(step.split(":", 1)[0] for step in namespace.split("|")) if namespace else ()


def drive_of(config: RunnableConfig) -> Drive:
    """The drive that a node runs under. Raises `UsageError` outside a runtime."""
    known = config.get("configurable", {})
    drive = known.get(KEY)
    if drive is None:  # plain LangGraph over our standalone saver
        drive_of_thread = getattr(known.get("__pregel_checkpointer"), "drive_of", None)
        drive = drive_of_thread(known["thread_id"]) if callable(drive_of_thread) else None
    if not isinstance(drive, Drive):
        raise errors.UsageError(
            "this node works only under standfast.graph.Runtime or over a standalone() saver, which hold the "
            "thread's lease"
        )
    return drive
