"""A model that reads what to say from the request, and operations whose effects an outside server counts.

Invariant: the model's answer is a function of the messages alone, so any process gets the same one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import httpx
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from standfast.graph import Effect, Operation, OperationContext, Policy, RetryPolicy, operation

Turn = str | Sequence[Mapping[str, Any]]
"""What the model says in one turn: a text, or calls `{"name", "args", "id"?, "malformed"?}`."""


def script(*turns: Turn) -> str:
    """A request that makes the scripted model say these turns, one after the other; then `done`."""
    return json.dumps({"turns": turns})


def call(name: str, **args: Any) -> dict[str, Any]:
    """A tool call of a scripted turn."""
    return {"name": name, "args": args}


class ScriptedModel(BaseChatModel):
    """Says the turns of the last request that holds a script."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=list(tools), **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        start = max(
            (at for at, one in enumerate(messages) if isinstance(one, HumanMessage) and str(one.text).startswith("{")),
            default=None,
        )
        if start is None:
            return AIMessage("done")
        turns = json.loads(str(messages[start].text))["turns"]
        # An empty answer is shown to the model as a reminder of the person's; it was a turn all the same.
        said = sum(isinstance(one, AIMessage | HumanMessage) for one in messages[start + 1 :])
        return _message(turns[said] if said < len(turns) else "done", said)


def _message(turn: Turn, number: int) -> AIMessage:
    if isinstance(turn, str):
        return AIMessage(turn)
    calls, broken = [], []
    for index, one in enumerate(turn):
        identifier = one.get("id", f"call-{number}-{index}")
        if one.get("malformed"):
            broken.append({"name": one["name"], "args": str(one["args"]), "id": identifier, "error": one["malformed"]})
        else:
            calls.append({"name": one["name"], "args": one["args"], "id": identifier})
    return AIMessage("", tool_calls=calls, invalid_tool_calls=[{**one, "type": "invalid_tool_call"} for one in broken])


async def post(text: str, context: OperationContext) -> str:
    """Have the receiver make a report, under the operation's key."""
    url = context.run.settings.reports_url
    assert url is not None
    async with httpx.AsyncClient(timeout=30) as client:
        headers = {"Idempotency-Key": context.operation_id}
        answer = await client.post(url, json={"text": text, "thread": context.thread_id}, headers=headers)
    answer.raise_for_status()
    return f"noted {text}"


@operation(policy=Policy(effect=Effect.IDEMPOTENT, approval=True))
async def note(text: str, context: OperationContext) -> str:
    """Write a note, which a person must allow."""
    return await post(text, context)


@operation(policy=Policy(effect=Effect.IDEMPOTENT))
async def jot(text: str, context: OperationContext) -> str:
    """Write a note without asking."""
    return await post(text, context)


@operation(policy=Policy(effect=Effect.IDEMPOTENT))
async def jot_slowly(text: str, until: str, context: OperationContext) -> str:
    """Write a note without asking, once the file `until` exists."""
    while not await anyio.Path(until).exists():
        await anyio.sleep(0.01)
    return await post(text, context)


@operation(policy=Policy(effect=Effect.IDEMPOTENT, retry=RetryPolicy(3, 0.05)))
async def insist(text: str, context: OperationContext) -> str:
    """Write a note without asking, in three attempts."""
    return await post(text, context)


@operation(policy=Policy(effect=Effect.AT_MOST_ONCE))
async def shout(text: str, context: OperationContext) -> str:
    """Write a note where nobody knows keys."""
    return await post(text, context)


@operation(policy=Policy(effect=Effect.TRANSACTIONAL))
async def enter(text: str, context: OperationContext) -> str:
    """Enter a line into the table `entries` of the same database."""
    await context.connection.execute("insert into public.entries (text) values (%s)", (text,))
    return f"entered {text}"


OPERATIONS: Sequence[Operation] = (note, jot, jot_slowly, insist, shout, enter)
