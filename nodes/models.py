"""Which model answers, and what counts as its answer: the only place that names a provider.

Invariants: a model is known by a name that can be stored with a run; keys stay in the environment. An answer is
whole or it is a failure: a stream that ended early, or arguments that were cut off, never pass for what the
model meant. A provider's client, slow to import, is imported with the first of its models.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    InvalidToolCall,
    ToolCall,
    message_chunk_to_message,
)
from langchain_core.runnables import RunnableConfig

from standfast.checkpoint import errors
from standfast.nodes.offline import OfflineModel
from standfast.tools.failures import FailureClass, register_classifier

if TYPE_CHECKING:
    import openai

OFFLINE: Final = "offline"
TOLD: Final = "standfast:told"  # a tag: whoever asks tells the run's followers what the model says
_DEFAULT_OPENAI: Final = "gpt-4.1-mini"
_REQUEST_SECONDS: Final = 120.0


def default_model() -> str:
    """The model's name when none is given: OpenAI's if there is a key, else the offline model."""
    if os.environ.get("OPENAI_API_KEY"):
        return f"openai:{os.environ.get('OPENAI_MODEL') or _DEFAULT_OPENAI}"
    return OFFLINE


def load_model(name: str) -> BaseChatModel:
    """The chat model of this name: `offline` or `openai:NAME`. Raises `ModelNotConfigured`."""
    if name == OFFLINE:
        return OfflineModel()
    provider, _, model = name.partition(":")
    if provider != "openai" or not model:
        raise errors.ModelNotConfigured(f"there is no model {name!r}; use offline or openai:NAME", model=name)
    if not os.environ.get("OPENAI_API_KEY"):
        raise errors.ModelNotConfigured(
            f"model {name!r} needs OPENAI_API_KEY (and OPENAI_BASE_URL for another compatible server)",
            model=name,
        )
    from langchain_openai import ChatOpenAI

    # Attempts are counted in the ledger: the client must not add its own.
    return ChatOpenAI(
        model=model, max_retries=0, timeout=_REQUEST_SECONDS, stream_usage=True, http_async_client=_client_of_loop()
    )


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, openai.DefaultAsyncHttpxClient] = WeakKeyDictionary()


def _client_of_loop() -> openai.DefaultAsyncHttpxClient | None:
    """One client for each event loop: LangChain's own is one for the process, and fails in its second loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    if loop not in _clients:
        import openai

        _clients[loop] = openai.DefaultAsyncHttpxClient(timeout=_REQUEST_SECONDS)
    return _clients[loop]


class IncompleteAnswer(ConnectionError):
    """The model's answer ended before it was whole, or could not be read; asking again may help."""


async def ask(
    model: BaseChatModel,
    tools: Sequence[dict[str, Any]],
    messages: list[AnyMessage],
    config: RunnableConfig,
    on_text: Callable[[str], None],
) -> AIMessage:
    """One answer of the model, streamed and put together; `on_text` hears its text as it comes.

    Raises the provider's errors and `IncompleteAnswer`.

    Tool calls whose arguments are not a whole JSON object are in `invalid_tool_calls`: put together from a
    stream, LangChain would complete them as far as they came.
    """
    bound = model.bind_tools(tools) if tools else model
    config = {**config, "tags": [*(config.get("tags") or ()), TOLD]}
    total: AIMessage | None = None
    try:
        async for part in bound.astream(messages, config):
            if not isinstance(part, AIMessage):
                raise TypeError(f"the model returned a {type(part).__name__}, not an AIMessage")
            total = part if total is None else total + part  # type: ignore[assignment]
            if text := str(part.text):
                on_text(text)
    except ValueError as error:  # a body that is no JSON, or no completion at all
        raise IncompleteAnswer(f"the model's answer could not be read ({error})") from error
    if total is None:
        raise IncompleteAnswer("the model's stream was empty")
    if _is_openais(model) and not total.response_metadata.get("finish_reason"):
        raise IncompleteAnswer("the model's stream ended before its answer did")
    if not isinstance(total, AIMessageChunk):
        return total
    calls, broken = _whole_calls(total)
    answer = message_chunk_to_message(total)
    assert isinstance(answer, AIMessage)
    return answer.model_copy(update={"tool_calls": calls, "invalid_tool_calls": broken})


def _is_openais(model: BaseChatModel) -> bool:
    if "langchain_openai" not in sys.modules:  # nobody can have made one
        return False
    from langchain_openai.chat_models.base import BaseChatOpenAI

    return isinstance(model, BaseChatOpenAI)


def _whole_calls(answer: AIMessageChunk) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    calls: list[ToolCall] = []
    broken: list[InvalidToolCall] = []
    for chunk in answer.tool_call_chunks:
        name, identifier, raw = chunk["name"] or "", chunk["id"], chunk["args"] or "{}"
        try:
            arguments = json.loads(raw)
        except ValueError as error:
            broken.append(_broken(name, identifier, raw, str(error)))
            continue
        if isinstance(arguments, dict):
            calls.append(ToolCall(name=name, id=identifier, args=arguments, type="tool_call"))
        else:
            broken.append(_broken(name, identifier, raw, "the arguments are not a JSON object"))
    return calls, broken


def _broken(name: str, identifier: str | None, raw: str, why: str) -> InvalidToolCall:
    return InvalidToolCall(name=name, id=identifier, args=raw, error=why, type="invalid_tool_call")


def _of_openai(error: BaseException) -> FailureClass | None:
    """What a status does not tell: failures of OpenAI's client that came without one, or say more than it."""
    if "openai" not in sys.modules:
        return None
    import openai

    if not isinstance(error, openai.APIError):
        return None
    if isinstance(error, openai.APITimeoutError):
        return FailureClass.TIMEOUT
    if error.code == "insufficient_quota":  # sent as 429, but only whoever pays can mend it
        return FailureClass.UNAUTHORISED
    if isinstance(error, openai.APIStatusError):
        return None
    if error.code == "rate_limit_exceeded":  # these two come in mid-stream
        return FailureClass.RATE_LIMITED
    if error.type == "invalid_request_error":
        return FailureClass.INVALID
    return FailureClass.UNAVAILABLE  # no connection, or an answer that could not be read


register_classifier(_of_openai)
