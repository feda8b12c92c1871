"""A planned call as it stands in the run that reaches it: under which id, and whether it can still be executed.

Invariant: the id is that of the call's place in this run, or that of what the source of a fork has done there. A fork
that begins between two nodes finds its source's id in the state, and has no new effect under it.
"""

from __future__ import annotations

from typing import Any

from standfast.nodes.state import OperationState, ToolCall
from standfast.tools.digests import call_digest
from standfast.tools.drive import Drive
from standfast.tools.operations import Effect, Operation


async def identified(drive: Drive, call: ToolCall, arguments: dict[str, Any]) -> tuple[str, bool]:
    """The id of the operation at this place, and whether a fork has inherited it with its end."""
    place = call["namespace"], call["turn"], call["index"]
    return await drive.lineage.operation("tool", *place, call_digest(call["name"], arguments))


async def in_this_run(drive: Drive, state: OperationState) -> tuple[OperationState, bool]:
    """The state with its planned call under the id that it has in this run, and whether that is inherited."""
    planned = state["planned"]
    identifier, inherited = await identified(drive, state["call"], planned["arguments"])
    return {**state, "planned": {**planned, "operation_id": identifier}}, inherited


async def executable(drive: Drive, operation: Operation, *, inherited: bool) -> bool:
    """Whether the ledger may call anybody for it, so that a person is to be asked first.

    It answers what a fork has inherited, and refuses what is new in a fork that may only read.
    """
    fork = await drive.lineage.fork()
    reading = fork is not None and not fork.effects
    return not inherited and not (reading and operation.policy.effect is not Effect.READ)
