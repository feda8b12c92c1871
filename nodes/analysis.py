"""The node that thinks: one recorded model call.

Invariant: the answer is in the ledger before anything acts on it; the same turn of the same run is answered
from there. An answer that says nothing usable stays in the conversation and is asked again, bounded by the router.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig

from standfast.checkpoint import errors
from standfast.checkpoint.crashpoints import reach
from standfast.checkpoint.memory import Learned, read_preferences
from standfast.checkpoint.operations import Call
from standfast.nodes.models import ask
from standfast.nodes.state import Node, answered
from standfast.tools.drive import Drive, drive_of, path_of
from standfast.tools.failures import FailureClass
from standfast.tools.operations import Effect, Operation, Policy
from standfast.tools.retries import Backoff, RetryPolicy

MODEL_RETRY: Final = RetryPolicy(
    overrides={FailureClass.RATE_LIMITED: Backoff(max_attempts=6, initial_delay=1.0, max_delay=300.0)}
)
_EMPTY = "Your last message was empty. Answer the request, or call a tool."

ModelFor = Callable[[Drive], BaseChatModel]


def analysis_node(
    model_for: ModelFor, operations: Iterable[Operation], instructions: str, retry: RetryPolicy = MODEL_RETRY
) -> Node[Any]:
    """A node that asks the model, offering it these operations, and again by `retry` when it fails.

    The state needs `messages`; `turn` is written: the place of the answer among those of the run.
    """
    tools = [one.tool_schema() for one in operations]
    policy = Policy(effect=Effect.READ, retry=retry)

    async def analysis(state: Any, config: RunnableConfig) -> dict[str, Any]:
        drive = drive_of(config)
        known = await read_preferences(drive.memory, drive.run.requested_by)
        messages = _prompt(_knowing(instructions, known), state["messages"])
        model = model_for(drive)
        namespace = state.get("namespace", "")
        digest = _digest(state["messages"])
        turn = await _next_turn(drive, namespace, state["messages"])
        identity, _ = await drive.lineage.operation("model", namespace, turn, 0, digest)
        call = Call(
            id=identity,
            run_id=drive.run.id,
            kind="model",
            name=drive.run.model or type(model).__name__,
            namespace=namespace,
            turn=turn,
            index=0,
            effect=policy.effect,
            digest=digest,
            arguments={"messages": len(messages)},
        )

        identifier, path = answer_id(call.id), path_of(config)

        async def effect(attempt: int, connection: Any) -> AIMessage:
            if attempt > 1:
                drive.tell("superseded", path, {"message": identifier, "attempt": attempt - 1})

            def on_text(text: str) -> None:
                drive.tell("token", path, {"message": identifier, "attempt": attempt, "text": text})

            await drive.limits.before_model_call()
            answer = await ask(model, tools, messages, config, on_text)
            drive.limits.answered(answer)
            return answer.model_copy(update={"id": identifier})

        outcome = await drive.ledger.execute(call, policy, effect)
        reach("node.analysis")
        if outcome.state != "succeeded":
            raise errors.ModelFailed(
                f"the model {call.name} did not answer ({outcome.failure_message}); what was done is kept, "
                f"carry on with: standfast resume {drive.run.thread_id}",
                thread_id=drive.run.thread_id,
                failure_class=outcome.failure_class,
            )
        # An answer that was recorded before is told whole: its tokens may have died with their attempt.
        text = str(outcome.result.text) if outcome.reused else None
        drive.tell("answer", path, {"message": identifier, "attempt": outcome.attempt, "text": text})
        return {"messages": [outcome.result], "turn": turn}

    return analysis


def answer_id(operation_id: str) -> str:
    """The id of the message that a model call ended in."""
    return f"answer-{operation_id}"


async def _next_turn(drive: Drive, namespace: str, messages: list[AnyMessage]) -> int:
    """The first turn of the run, from 1, whose answer is not among the messages.

    It is made from the messages, so that it is the same after a crash and begins anew with each run.
    """
    there = {one.id for one in messages}
    turn = 1
    while any(answer_id(one) in there for one in await drive.lineage.candidates("model", namespace, turn, 0)):
        turn += 1
    return turn


def is_empty(message: AnyMessage) -> bool:
    """Whether an answer neither says nor asks for anything."""
    return (
        isinstance(message, AIMessage)
        and not message.tool_calls
        and not message.invalid_tool_calls
        and not str(message.text).strip()
    )


def _knowing(instructions: str, preferences: Sequence[Learned]) -> str:
    """The instructions with what is remembered of the requester: his wishes, never new rules for the agent."""
    if not preferences:
        return instructions
    known = "\n".join(f"- {one.text}" for one in preferences)
    return f"{instructions}\n\nWhat the requester has asked you to remember, as preferences:\n{known}"


def _prompt(instructions: str, messages: list[AnyMessage]) -> list[AnyMessage]:
    shown = [HumanMessage(_EMPTY) if is_empty(one) else one for one in answered(messages)]
    return [SystemMessage(instructions), *shown]


def _digest(messages: list[AnyMessage]) -> str:
    return hashlib.sha256("\0".join(str(one.id) for one in messages).encode()).hexdigest()
