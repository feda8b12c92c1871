"""A server that speaks OpenAI's chat-completions protocol and says what its script tells it to.

`python tests/servers/openai.py --port 0 --log FILE` prints its URL; the API's base is that URL and `/v1`.
It is as strict as the original about tool messages: each tool call of an assistant message is answered
exactly once, directly after it. A request that no step fits is a 400 with the code `no_step_left`.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

if __name__ == "__main__":  # run as a file: this folder gives way to the root that the imports start from
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.servers.scripted import Request, Step
from tests.servers.wire import EVENT_STREAM, Answer, Server, arguments, serve

MODEL = "test-model"


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call that the model asks for: arguments as an object, or as the text to send, well-formed or not."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str = ""

    def entry(self) -> dict[str, Any]:
        text = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)
        return {
            "id": self.id or f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": self.name, "arguments": text},
        }


@dataclass(frozen=True, kw_only=True)
class Reply(Step):
    """The model's answer, with what goes wrong on its way; without arguments the answer is empty.

    `finish` is the finish reason, by default `tool_calls` or `stop`; `usage` is (prompt, completion) in
    tokens, by default a quarter of the characters. `when` is looked for in the last message's JSON, as
    `json.dumps` writes it: `'"role": "tool"'` fits the turn after a tool.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str | None = None
    usage: tuple[int, int] | None = None

    @classmethod
    def parse(cls, value: object) -> Self:
        if not isinstance(value, dict):
            return super().parse(value)
        made: dict[str, Any] = {}
        try:
            if "calls" in value:
                made["calls"] = tuple(ToolCall(**call) for call in value["calls"])
            if value.get("usage") is not None:
                prompt, completion = value["usage"]
                made["usage"] = (prompt, completion)
        except TypeError as error:
            raise ValueError(f"{value!r} has calls or a usage that are none: {error}") from error
        return super().parse(value | made)

    def summary(self) -> dict[str, Any]:
        shown = super().summary()
        return shown | ({"calls": [call.name for call in self.calls]} if self.calls else {})


class OpenAIServer(Server[Reply]):
    """`POST /v1/chat/completions`, streaming or not, and `GET /v1/models`."""

    step_type = Reply

    @property
    def base_url(self) -> str:
        """What a client is given as its `base_url`."""
        return f"{self.url}/v1"

    def text(self, request: Request) -> str:
        if request.method == "GET":
            return request.path
        return json.dumps(request.json["messages"][-1], ensure_ascii=False)

    def refuse(self, request: Request) -> Answer | None:
        match request.method, request.path:
            case "GET", "/v1/models":
                return None
            case "POST", "/v1/chat/completions":
                complaint = _complaint(request)
                return Answer.error(400, complaint, "invalid_request") if complaint else None
        return Answer.error(404, f"no such page: {request.method} {request.path}", "not_found")

    def answer(self, request: Request, step: Reply | None, *, perform: bool) -> Answer:
        if request.method == "GET":
            models = [{"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "tests"}]
            return Answer.json(200, {"object": "list", "data": models})
        if step is None:
            return Answer.error(400, "the script has no step for this request", "no_step_left")
        return _stream(request.json, step) if request.json.get("stream") else _completion(request.json, step)


def _complaint(request: Request) -> str | None:
    """What is wrong with a request for a completion."""
    try:
        body = request.json
    except ValueError:
        return "the body is not JSON"
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return "you must provide a model parameter"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        return "messages must be an array of at least one object"
    open_calls: list[str] = []
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_calls:
                return (
                    "messages with role 'tool' must be a response to a preceding message with 'tool_calls':"
                    f" {message.get('tool_call_id')}"
                )
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            break
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    if open_calls:
        return (
            "an assistant message with 'tool_calls' must be followed by tool messages responding to each"
            f" 'tool_call_id'; these had none: {', '.join(open_calls)}"
        )
    return None


def _finish(step: Reply) -> str:
    return step.finish or ("tool_calls" if step.calls else "stop")


def _usage(body: dict[str, Any], step: Reply) -> dict[str, int]:
    spoken = step.text + "".join(call.entry()["function"]["arguments"] for call in step.calls)
    prompt, completion = step.usage or (len(json.dumps(body["messages"])) // 4, math.ceil(len(spoken) / 4))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _envelope(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": body["model"],
        "system_fingerprint": "fp_tests",
    }


def _completion(body: dict[str, Any], step: Reply) -> Answer:
    message: dict[str, Any] = {"role": "assistant", "content": step.text, "refusal": None}
    if step.calls:
        message |= {"content": step.text or None, "tool_calls": [call.entry() for call in step.calls]}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(step)}
    completion = _envelope(body, "chat.completion") | {"choices": [choice], "usage": _usage(body, step)}
    return Answer.json(200, completion)


def _stream(body: dict[str, Any], step: Reply) -> Answer:
    """Events in OpenAI's order: the role, the words, each call's head and arguments, finish, usage."""
    envelope = _envelope(body, "chat.completion.chunk")
    with_usage = (body.get("stream_options") or {}).get("include_usage", False)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None if step.calls else ""}]
    deltas += [{"content": word} for word in re.findall(r"\s*\S+\s*|\s+", step.text)]
    for index, call in enumerate(step.calls):
        entry = call.entry()
        text = entry["function"]["arguments"]
        deltas.append({"tool_calls": [_with_arguments(entry | {"index": index}, "")]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _thirds(text)]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": _finish(step)}]})
    if with_usage:
        chunks = [chunk | {"usage": None} for chunk in chunks]
        chunks.append({"choices": [], "usage": _usage(body, step)})
    events = [f"data: {json.dumps(envelope | chunk)}\n\n".encode() for chunk in chunks]
    return Answer(200, (*events, b"data: [DONE]\n\n"), EVENT_STREAM)


def _with_arguments(entry: dict[str, Any], text: str) -> dict[str, Any]:
    return entry | {"function": entry["function"] | {"arguments": text}}


def _thirds(text: str) -> list[str]:
    size = max(1, math.ceil(len(text) / 3))
    return [text[start : start + size] for start in range(0, len(text), size)]


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    serve(OpenAIServer(options.log, port=options.port), options)


if __name__ == "__main__":
    main()
