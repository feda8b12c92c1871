"""The node between a proposed call and its approval: is it a call at all, and does it hold what it claims?

What fails a check goes back to the model with the reason, at most twice; then a person is shown the failed checks.
An operation that has refused its calls as invalid three times is not called again in this run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp

from standfast.checkpoint import errors
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.plain_text import storable_text
from standfast.nodes.planned import executable, identified
from standfast.nodes.state import Node, OperationState, ToolCall
from standfast.tools.digests import operation_id
from standfast.tools.drive import Drive, drive_of
from standfast.tools.failures import InvalidArguments, said
from standfast.tools.operations import Check, CheckContext, Operation, Registry

MENDABLE: Final = "failed_checks"  # marks, in a tool message, that the model was asked to mend its call
INVALID: Final = "invalid_call"  # marks, in a tool message, that the call was made and refused as invalid
MOST_INVALID: Final = 3
_MOST_MENDS: Final = 2
_READERS: Final = frozenset({"search_documents", "read_document"})


def validation_node(
    registry: Registry,
) -> Node[OperationState]:
    """A node that turns `call` into `planned`, or into the tool message that says what is wrong with it."""

    async def validation(state: OperationState, config: RunnableConfig) -> dict[str, Any]:
        drive, call = drive_of(config), state["call"]
        identifier = await call_id(drive, call)
        reach("node.validation")
        if call["malformed"]:
            return {"messages": [refusal(call, identifier, f"The call could not be read: {call['malformed']}")]}
        if call.get("refused", 0) >= MOST_INVALID:
            reason = (
                f"{call['name']} was refused as invalid {MOST_INVALID} times and is not called again; go on without it."
            )
            return {"messages": [refusal(call, identifier, reason)]}
        try:
            operation = registry.get(call["name"])
            arguments = operation.validate(call["args"])
            here, inherited = await identified(drive, call, arguments)  # refuses what could not be stored
        except (errors.UnknownOperation, InvalidArguments, errors.UnstorableValue) as error:
            return {"messages": [refusal(call, identifier, str(error))]}
        failed = await failed_checks(operation, arguments, drive)
        if failed and call["mended"] < _MOST_MENDS:
            reasons = "\n".join(f"- {one}" for one in failed)
            return {"messages": [refusal(call, identifier, f"Mend the call and send it again:\n{reasons}")]}
        rule = drive.policy.asks(operation, arguments, objected=bool(failed))
        return {
            "planned": {
                "operation_id": here,
                "arguments": arguments,
                "proposed": arguments,
                "needs_person": rule is not None and await executable(drive, operation, inherited=inherited),
                "failed_checks": failed,
                "edited_by": None,
            }
        }

    return validation


async def call_id(drive: Drive, call: ToolCall) -> str:
    """The id of this call's place: that of its operation, but for a fork's new ones, which get ids of their own."""
    return operation_id(*await drive.lineage.origin(), call["namespace"], call["turn"], call["index"], "tool")


def refusal(call: ToolCall, operation_id: str, reason: str) -> ToolMessage:
    """The tool message of a call that goes back to the model. Its id is the operation's: a repeat replaces it."""
    return ToolMessage(
        reason,
        id=f"result-{operation_id}",
        tool_call_id=call["id"],
        name=call["name"],
        status="error",
        additional_kwargs={MENDABLE: True},
    )


async def failed_checks(operation: Operation, arguments: dict[str, Any], drive: Drive) -> list[str]:
    """What the operation's checks object to."""
    if not operation.checks:
        return []
    read: set[tuple[str, int]] = set()
    for done in await drive.operations.list(drive.run.thread_id, drive.run.id):
        if done.name in _READERS and done.state == "succeeded":
            read.update(_passages(done.result))
    context = CheckContext(drive.run, drive.documents, frozenset(read))
    return [problem for check in operation.checks for problem in await _problems(check, arguments, context)]


def _passages(result: Any) -> Iterator[tuple[str, int]]:
    """The passages in a reader's result; an operation of the same name may return anything."""
    for one in result if isinstance(result, list) else ():
        if isinstance(one, Mapping):
            document, passage = one.get("document"), one.get("passage")
            if isinstance(document, str) and isinstance(passage, int):
                yield document, passage


async def _problems(check: Check, arguments: dict[str, Any], context: CheckContext) -> Sequence[str]:
    try:
        return [storable_text(str(problem)) for problem in await check(arguments, context)]
    except (errors.LeaseLost, errors.StorageUnavailable, GraphBubbleUp):
        raise
    except Exception as error:  # noqa: BLE001 - the check is the user's code: what it could not check, it objects to
        name = getattr(check, "__name__", type(check).__name__)
        return [storable_text(f"the check {name} could not be made: {said(error)}")]
