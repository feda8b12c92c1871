"""Which class a failure falls into; a provider's errors are made by its own client, against real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import httpx
import openai
import pytest

from standfast.checkpoint import errors
from standfast.nodes import models
from standfast.tools import failures
from standfast.tools.failures import TRANSIENT, FailureClass, InvalidArguments, classify, register_classifier


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status, request=request))


def provider_error(status: int) -> openai.APIStatusError:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json={"error": {"message": "no"}})

    with (
        httpx.Client(transport=httpx.MockTransport(respond)) as http,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        openai.OpenAI(api_key="none", max_retries=0, http_client=http).models.list()
    return caught.value


def provider_unreached(backlog: int | None, timeout: float) -> openai.APIConnectionError:
    """What the client raises for a port where nobody listens (no backlog), or where nobody answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if backlog is not None:
            listener.listen(backlog)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with (
            openai.OpenAI(api_key="none", base_url=url, max_retries=0, timeout=timeout) as client,
            pytest.raises(openai.APIConnectionError) as caught,
        ):
            client.models.list()
    return caught.value


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        (FailureClass.TIMEOUT, TimeoutError()),
        (FailureClass.TIMEOUT, httpx.ReadTimeout("")),
        (FailureClass.UNAVAILABLE, ConnectionRefusedError()),
        (FailureClass.UNAVAILABLE, httpx.ConnectError("")),
        (FailureClass.UNAVAILABLE, httpx.RemoteProtocolError("")),
        (FailureClass.UNAVAILABLE, models.IncompleteAnswer()),
        (FailureClass.UNAVAILABLE, errors.DatabaseUnavailable("away")),
        (FailureClass.PERMANENT, errors.NotGranted("no grant")),
        (FailureClass.INVALID, InvalidArguments("which report?")),
        (FailureClass.CANCELLED, asyncio.CancelledError()),
        (FailureClass.UNAUTHORISED, PermissionError()),
        (FailureClass.PERMANENT, FileNotFoundError()),
        (FailureClass.PERMANENT, ValueError()),
        (FailureClass.PERMANENT, TypeError()),
        (FailureClass.PERMANENT, KeyError()),
        (FailureClass.UNKNOWN, RuntimeError()),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_exception_falls_into_the_class_of_its_kind(expected: FailureClass, error: BaseException) -> None:
    assert expected == classify(error)


@pytest.mark.parametrize("raised", [answered, provider_error])
@pytest.mark.parametrize(
    ("expected", "status"),
    [
        (FailureClass.INVALID, 400),
        (FailureClass.UNAUTHORISED, 401),
        (FailureClass.UNAUTHORISED, 403),
        (FailureClass.PERMANENT, 404),
        (FailureClass.TIMEOUT, 408),
        (FailureClass.CONFLICT, 409),
        (FailureClass.CONFLICT, 412),
        (FailureClass.PERMANENT, 418),
        (FailureClass.INVALID, 422),
        (FailureClass.CONFLICT, 423),
        (FailureClass.RATE_LIMITED, 429),
        (FailureClass.UNAVAILABLE, 500),
        (FailureClass.UNAVAILABLE, 503),
    ],
)
def test_an_answer_falls_into_the_class_of_its_status(
    expected: FailureClass, status: int, raised: Callable[[int], Exception]
) -> None:
    assert expected == classify(raised(status))


def test_a_provider_where_nobody_listens_is_unavailable() -> None:
    assert FailureClass.UNAVAILABLE == classify(provider_unreached(None, timeout=10.0))


def test_a_provider_that_does_not_answer_in_time_is_a_timeout() -> None:
    assert FailureClass.TIMEOUT == classify(provider_unreached(1, timeout=0.05))


@pytest.fixture
def classifiers(monkeypatch: pytest.MonkeyPatch) -> list[failures.Classifier]:
    own: list[failures.Classifier] = []
    monkeypatch.setattr(failures, "_classifiers", own)
    return own


def test_a_registered_classifier_is_asked_before_the_rules_and_may_pass(classifiers: list[failures.Classifier]) -> None:
    register_classifier(lambda error: FailureClass.CONFLICT if isinstance(error, ValueError) else None)
    assert FailureClass.CONFLICT == classify(ValueError())
    assert FailureClass.PERMANENT == classify(TypeError())


def test_a_status_wins_over_a_registered_classifier(classifiers: list[failures.Classifier]) -> None:
    register_classifier(lambda error: FailureClass.CONFLICT)
    assert FailureClass.RATE_LIMITED == classify(answered(429))


def test_a_classifier_registered_twice_is_asked_once(classifiers: list[failures.Classifier]) -> None:
    asked: list[BaseException] = []

    def note(error: BaseException) -> None:
        asked.append(error)

    for _ in range(2):
        register_classifier(note)
    classify(error := RuntimeError())
    assert [error] == asked


def test_only_what_time_can_mend_is_transient() -> None:
    assert {FailureClass.TIMEOUT, FailureClass.RATE_LIMITED, FailureClass.UNAVAILABLE} == TRANSIENT
