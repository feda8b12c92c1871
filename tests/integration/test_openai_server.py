"""The model's test server, spoken to by the client that Standfast uses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.servers.openai import OpenAIServer, Reply, ToolCall
from tests.servers.scripted import Failure

SECRET = "sk-never-in-a-log"
SEARCH = ToolCall(name="search", arguments={"query": "tides", "limit": 3}, id="call_search")
SEND = ToolCall(name="send_report", arguments={"to": "editor@example.com"}, id="call_send")


def chat_model(base_url: str, **settings: Any) -> ChatOpenAI:
    defaults: dict[str, Any] = {"max_retries": 0, "timeout": 2.0, "stream_usage": True}
    return ChatOpenAI(model="m", base_url=base_url, api_key=SecretStr(SECRET), **defaults | settings)


@pytest.fixture
def model(openai_server: OpenAIServer) -> ChatOpenAI:
    return chat_model(openai_server.base_url)


async def joined(chunks: AsyncIterator[AIMessageChunk]) -> AIMessageChunk:
    whole: AIMessageChunk | None = None
    async for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    return whole


async def test_a_text_is_answered_with_its_usage(openai_server: OpenAIServer, model: ChatOpenAI) -> None:
    openai_server.script(Reply(text="Low water at nine.", usage=(11, 5)))
    answer = await model.ainvoke("When is low water?")
    assert "Low water at nine." == answer.content
    assert "stop" == answer.response_metadata["finish_reason"]
    assert answer.usage_metadata is not None
    assert (11, 5) == (answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"])


async def test_a_streamed_text_comes_in_pieces_and_ends_with_its_usage(
    openai_server: OpenAIServer, model: ChatOpenAI
) -> None:
    openai_server.script(Reply(text="Low water at nine.", usage=(11, 5)))
    chunks = [chunk async for chunk in model.astream("When is low water?")]
    assert ["Low ", "water ", "at ", "nine."] == [c.content for c in chunks if c.content]
    assert [16] == [c.usage_metadata["total_tokens"] for c in chunks if c.usage_metadata]


async def test_a_stream_has_no_usage_unless_asked_for(openai_server: OpenAIServer) -> None:
    openai_server.script(Reply(text="Low water at nine."))
    answer = await joined(chat_model(openai_server.base_url, stream_usage=False).astream("When?"))
    assert answer.usage_metadata is None
    assert "Low water at nine." == answer.content


@pytest.mark.parametrize("streaming", [False, True])
async def test_tool_calls_arrive_whole(openai_server: OpenAIServer, model: ChatOpenAI, streaming: bool) -> None:
    openai_server.script(Reply(calls=(SEARCH, SEND)))
    answer = await (joined(model.astream("Go.")) if streaming else model.ainvoke("Go."))
    assert [
        ("search", {"query": "tides", "limit": 3}, "call_search"),
        ("send_report", {"to": "editor@example.com"}, "call_send"),
    ] == [(call["name"], call["args"], call["id"]) for call in answer.tool_calls]
    assert "tool_calls" == answer.response_metadata["finish_reason"]


async def test_streamed_arguments_come_in_deltas(openai_server: OpenAIServer, model: ChatOpenAI) -> None:
    openai_server.script(Reply(calls=(SEND,)))
    deltas = [part["args"] async for chunk in model.astream("Go.") for part in chunk.tool_call_chunks]
    assert 4 == len(deltas)
    assert "" == deltas[0]
    assert '{"to": "editor@example.com"}' == "".join(d or "" for d in deltas)


async def test_malformed_arguments_reach_the_client_as_they_are(openai_server: OpenAIServer, model: ChatOpenAI) -> None:
    openai_server.script(Reply(calls=(ToolCall(name="search", arguments='{"query": "ti'),), times=2))
    answer = await model.ainvoke("Go.")
    assert ['{"query": "ti'] == [call["args"] for call in answer.invalid_tool_calls]
    streamed = await joined(model.astream("Go."))
    assert ['{"query": "ti'] == [call["args"] for call in streamed.tool_call_chunks]


async def test_a_tool_that_was_not_offered_can_be_called(openai_server: OpenAIServer, model: ChatOpenAI) -> None:
    openai_server.script(Reply(calls=(ToolCall(name="launch", arguments={}),)))
    answer = await model.ainvoke("Go.")
    assert ["launch"] == [call["name"] for call in answer.tool_calls]


async def test_an_answer_can_be_empty(openai_server: OpenAIServer, model: ChatOpenAI) -> None:
    openai_server.script(Reply())
    answer = await model.ainvoke("Go.")
    assert ("", []) == (answer.content, answer.tool_calls)


@pytest.mark.parametrize("retry_after", [7, "Wed, 21 Oct 2037 07:28:00 GMT"])
async def test_retry_after_reaches_the_caller(
    openai_server: OpenAIServer, model: ChatOpenAI, retry_after: float | str
) -> None:
    openai_server.script(Reply(status=429, retry_after=retry_after))
    with pytest.raises(openai.RateLimitError) as caught:
        await model.ainvoke("Go.")
    assert str(retry_after) == caught.value.response.headers["retry-after"]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, openai.AuthenticationError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
async def test_a_scripted_status_is_the_clients_error(
    openai_server: OpenAIServer, model: ChatOpenAI, status: int, error: type[Exception]
) -> None:
    openai_server.script(Reply(status=status))
    with pytest.raises(error):
        await model.ainvoke("Go.")


async def test_every_attempt_of_a_client_is_a_line_in_the_log(openai_server: OpenAIServer) -> None:
    openai_server.script(Reply(status=500, retry_after=0.01, times=2), Reply(text="third time"))
    answer = await chat_model(openai_server.base_url, max_retries=2).ainvoke("Go.")
    assert "third time" == answer.content
    assert [500, 500, None] == [line["step"].get("status") for line in openai_server.requests()]
    assert ["0", "1", "2"] == [line["headers"]["x-stainless-retry-count"] for line in openai_server.requests()]


async def test_the_log_has_no_key(openai_server: OpenAIServer, model: ChatOpenAI) -> None:
    openai_server.script(Reply(text="Yes."))
    await model.ainvoke("Go.")
    assert ["present"] == [line["headers"]["authorization"] for line in openai_server.requests()]
    assert SECRET not in openai_server.log.path.read_text()


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        ("reset", openai.APIConnectionError),
        ("cut", openai.APIConnectionError),
        ("hang", openai.APITimeoutError),
        ("malformed_json", json.JSONDecodeError),
    ],
)
async def test_a_stream_that_breaks_raises_after_what_came(
    openai_server: OpenAIServer, fail: Failure, error: type[Exception]
) -> None:
    openai_server.script(Reply(text="Low water at nine.", fail=fail, after=3))
    stream = chat_model(openai_server.base_url, timeout=0.3).astream("When?")
    assert [(await anext(stream)).content for _ in range(3)] == ["", "Low ", "water "]
    with pytest.raises(error):
        await anext(stream)


async def test_a_truncated_stream_ends_in_silence_without_a_finish(
    openai_server: OpenAIServer, model: ChatOpenAI
) -> None:
    openai_server.script(Reply(text="Low water at nine.", fail="truncated", after=3))
    answer = await joined(model.astream("When?"))
    assert "Low water " == answer.content
    assert "finish_reason" not in answer.response_metadata


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        ("reset", openai.APIConnectionError),
        ("cut", openai.APIConnectionError),
        ("truncated", json.JSONDecodeError),
        ("malformed_json", json.JSONDecodeError),
        ("empty_body", json.JSONDecodeError),
        ("wrong_content_type", ValueError),
    ],
)
@pytest.mark.parametrize("after", [0, 1])
async def test_a_broken_answer_raises(
    openai_server: OpenAIServer, model: ChatOpenAI, fail: Failure, error: type[Exception], after: int
) -> None:
    openai_server.script(Reply(text="Low water at nine.", fail=fail, after=after))
    with pytest.raises(error):
        await model.ainvoke("When?")


@pytest.mark.parametrize("step", [Reply(fail="hang"), Reply(text="too late", delay_answer=1.0)])
async def test_an_answer_after_the_time_out_is_a_time_out(openai_server: OpenAIServer, step: Reply) -> None:
    openai_server.script(step)
    with pytest.raises(openai.APITimeoutError):
        await chat_model(openai_server.base_url, timeout=0.2).ainvoke("Go.")
    assert 1 == len(openai_server.requests())


async def test_every_tool_call_must_be_answered_exactly_once(openai_server: OpenAIServer, model: ChatOpenAI) -> None:
    openai_server.script(Reply(text="Thanks."))
    asked = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": name} for name in ("a", "b")])
    a, b = ToolMessage("1", tool_call_id="a"), ToolMessage("2", tool_call_id="b")
    for answers in ([], [a], [a, a, b], [a, HumanMessage("wait")], [a, HumanMessage("wait"), b]):
        with pytest.raises(openai.BadRequestError, match="tool_calls"):
            await model.ainvoke(["Go.", asked, *answers])
    assert "Thanks." == (await model.ainvoke(["Go.", asked, b, a])).content
    assert [400, 400, 400, 400, 400, None] == [line["refused"] for line in openai_server.requests()]


async def test_a_step_waits_for_the_message_that_it_is_for(openai_server: OpenAIServer, model: ChatOpenAI) -> None:
    openai_server.script(
        Reply(when='"role": "tool"', text="Done.", times=None),
        Reply(when="tides", calls=(SEARCH,), times=None),
    )
    for _ in range(2):
        asked = await model.ainvoke("Find the tides.")
        assert ["search"] == [call["name"] for call in asked.tool_calls]
        result = ToolMessage("nine", tool_call_id="call_search")
        assert "Done." == (await model.ainvoke(["Find the tides.", asked, result])).content


async def test_a_function_answers_by_the_request(openai_server: OpenAIServer, model: ChatOpenAI) -> None:
    openai_server.always(lambda request: Reply(text=request.json["messages"][-1]["content"].upper()))
    assert [(await model.ainvoke(text)).content for text in ("one", "two")] == ["ONE", "TWO"]


async def test_a_request_that_no_step_fits_is_not_worth_a_retry(openai_server: OpenAIServer, model: ChatOpenAI) -> None:
    openai_server.script(Reply(when="tides", text="Low."))
    with pytest.raises(openai.BadRequestError) as caught:
        await model.ainvoke("Stars?")
    assert "no_step_left" == caught.value.code


async def test_the_models_are_listed(openai_server: OpenAIServer) -> None:
    async with openai.AsyncOpenAI(base_url=openai_server.base_url, api_key=SECRET, max_retries=0) as client:
        assert [entry.id async for entry in client.models.list()] == ["test-model"]
