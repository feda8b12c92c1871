"""Tells a run's followers what the models say that a graph's nodes call by themselves, outside `analysis`.

Invariant: it only listens. It is attached to every drive of a runtime or to none, whoever follows: under it a model
streams its answers, and what is stored must not depend on who listens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, GenerationChunk, LLMResult
from langgraph.constants import TAG_NOSTREAM
from langgraph.pregel._messages import StreamMessagesHandler

from standfast.nodes.models import TOLD

Tell = Callable[[str, tuple[str, ...], Any], None]


class ModelTokens(StreamMessagesHandler):
    """A handler for the callbacks of one drive. `tell` takes an event's kind, path and data, from any thread.

    It is of LangGraph's own class because LangGraph streams every node's graph, and so lets the whole state of a
    subgraph out, for the sake of any other handler that makes models stream; a test watches that.
    """

    run_inline = True
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, tell: Tell) -> None:
        super().__init__(lambda _: None, subgraphs=True)
        self._tell = tell
        self._calls: dict[UUID, tuple[tuple[str, ...], str]] = {}  # the way to the node, the message's id

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        tags: Sequence[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if TOLD in (tags or ()) or TAG_NOSTREAM in (tags or ()):
            return
        namespace = str((metadata or {}).get("langgraph_checkpoint_ns", ""))
        path = tuple(step.split(":", 1)[0] for step in namespace.split("|")) if namespace else ()
        self._calls[run_id] = path, ""

    def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        run_id: UUID,
        **kwargs: Any,
    ) -> None:
        call = self._calls.get(run_id)
        if call is None or not isinstance(chunk, ChatGenerationChunk):
            return
        path, message = call
        message = message or chunk.message.id or f"lc_run--{run_id}"
        self._calls[run_id] = path, message
        if text := str(chunk.message.text):
            self._tell("token", path, {"message": message, "attempt": 1, "text": text})

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        call = self._calls.pop(run_id, None)
        generation = response.generations[0][0] if response.generations and response.generations[0] else None
        if call is None or not isinstance(generation, ChatGeneration):
            return
        path, streamed = call
        message = generation.message
        text = None if streamed else str(message.text)
        identifier = streamed or message.id or f"lc_run--{run_id}"
        self._tell("answer", path, {"message": identifier, "attempt": 1, "text": text})

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        path, message = self._calls.pop(run_id, ((), ""))
        if message:
            self._tell("superseded", path, {"message": message, "attempt": 1})
