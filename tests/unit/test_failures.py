"""Which class a failure falls into; a provider's errors are made by its own client, against real sockets."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest

from standfast.checkpoint import errors
from standfast.nodes import models
from standfast.tools import failures
from standfast.tools.failures import (
    TRANSIENT,
    FailureClass,
    InvalidArguments,
    classify,
    failure_of,
    register_classifier,
)


def answered(status: int, retry_after: float | None = None) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/")
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    response = httpx.Response(status, request=request, headers=headers)
    return httpx.HTTPStatusError("", request=request, response=response)


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
        (FailureClass.UNAVAILABLE, httpx.DecodingError("")),
        (FailureClass.PERMANENT, httpx.UnsupportedProtocol("")),
        (FailureClass.PERMANENT, httpx.InvalidURL("")),
        (FailureClass.PERMANENT, httpx.TooManyRedirects("")),
        (FailureClass.UNAVAILABLE, asyncio.IncompleteReadError(b"", 4)),
        (FailureClass.UNAVAILABLE, socket.gaierror(socket.EAI_NONAME, "")),
        (FailureClass.UNAVAILABLE, ssl.SSLError(1, "handshake")),
        (FailureClass.PERMANENT, ssl.SSLCertVerificationError(1, "self-signed")),
        (FailureClass.UNAVAILABLE, OSError(errno.ENOSPC, "")),
        (FailureClass.UNAVAILABLE, OSError(errno.EHOSTUNREACH, "")),
        (FailureClass.UNAVAILABLE, BlockingIOError(errno.EAGAIN, "")),
        (FailureClass.TIMEOUT, OSError(errno.ETIMEDOUT, "")),
        (FailureClass.UNAVAILABLE, models.IncompleteAnswer()),
        (FailureClass.UNAVAILABLE, errors.DatabaseUnavailable("away")),
        (FailureClass.PERMANENT, errors.NotGranted("no grant")),
        (FailureClass.INVALID, InvalidArguments("which report?")),
        (FailureClass.CANCELLED, asyncio.CancelledError()),
        (FailureClass.CANCELLED, concurrent.futures.CancelledError()),
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
        (FailureClass.UNAUTHORISED, 402),
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


def test_a_registered_classifier_knows_better_than_a_status(classifiers: list[failures.Classifier]) -> None:
    register_classifier(lambda error: FailureClass.CONFLICT)
    assert FailureClass.CONFLICT == classify(answered(429))


@pytest.mark.parametrize(
    ("expected", "code", "kind"),
    [
        (FailureClass.UNAUTHORISED, "insufficient_quota", None),
        (FailureClass.RATE_LIMITED, "rate_limit_exceeded", None),
        (FailureClass.INVALID, None, "invalid_request_error"),
        (FailureClass.UNAVAILABLE, None, "server_error"),
    ],
)
def test_a_providers_error_in_mid_stream_falls_into_the_class_of_its_code(
    expected: FailureClass, code: str | None, kind: str | None
) -> None:
    body = {"code": code, "type": kind}
    assert expected == classify(openai.APIError("no", provider_error(500).request, body=body))


class Odd(Exception):
    """Carries what it should not."""

    @property
    def status_code(self) -> int:
        raise RuntimeError("not now")


@pytest.mark.parametrize("error", [Odd(), ExceptionGroup("", [ValueError(), TimeoutError()])])
def test_what_says_nothing_clear_is_unknown(error: Exception) -> None:
    assert FailureClass.UNKNOWN == classify(error)


def test_a_group_is_what_all_of_its_members_are() -> None:
    group = ExceptionGroup("", [answered(429, 7), ExceptionGroup("", [answered(429, 11)])])
    assert (FailureClass.RATE_LIMITED, 11.0) == (failure_of(group).kind, failure_of(group).retry_after)


@pytest.mark.parametrize(
    ("expected", "headers"),
    [
        (7.0, {"Retry-After": "7"}),
        (0.25, {"retry-after-ms": "250", "Retry-After": "9"}),
        (90.0, {"Retry-After": "Wed, 21 Oct 2037 07:29:30 GMT", "Date": "Wed, 21 Oct 2037 07:28:00 GMT"}),
        (0.0, {"Retry-After": "Wed, 21 Oct 2037 07:27:00 GMT", "Date": "Wed, 21 Oct 2037 07:28:00 GMT"}),
        (None, {"Retry-After": "soon"}),
        (None, {"Retry-After": "-3"}),
        (None, {"Retry-After": "inf"}),
        (None, {"Retry-After": "nan"}),
        (None, {}),
    ],
)
def test_retry_after_is_read_in_seconds_and_as_a_date(expected: float | None, headers: dict[str, str]) -> None:
    request = httpx.Request("POST", "http://127.0.0.1/")
    response = httpx.Response(503, request=request, headers=headers)
    assert expected == failure_of(httpx.HTTPStatusError("", request=request, response=response)).retry_after


class Refusal(Exception):
    """An error of any database's client."""

    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate


TABLE = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()


def rows(heading: str) -> list[tuple[str, str]]:
    """(value, class) of the table under this heading of docs/failures.md."""
    section = TABLE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| ([0-9A-Z, ]+) \| `(\w+)` \|$", section, re.MULTILINE)
    return [(one.strip(), kind) for values, kind in found for one in values.split(",")]


@pytest.mark.parametrize(("status", "expected"), rows("HTTP statuses"))
def test_a_status_is_in_the_class_that_the_table_says(status: str, expected: str) -> None:
    assert expected == classify(answered(int(status)))


@pytest.mark.parametrize(("state", "expected"), rows("SQLSTATEs"))
def test_a_sqlstate_is_in_the_class_that_the_table_says(state: str, expected: str) -> None:
    assert expected == classify(Refusal(state))


def test_the_tables_are_there() -> None:
    assert (27, 29) == (len(rows("HTTP statuses")), len(rows("SQLSTATEs")))


def test_a_classifier_registered_twice_is_asked_once(classifiers: list[failures.Classifier]) -> None:
    asked: list[BaseException] = []

    def note(error: BaseException) -> None:
        asked.append(error)

    for _ in range(2):
        register_classifier(note)
    classify(error := RuntimeError())
    assert [error] == asked


def test_only_what_time_can_mend_is_transient() -> None:
    expected = {FailureClass.TIMEOUT, FailureClass.RATE_LIMITED, FailureClass.UNAVAILABLE, FailureClass.CONFLICT}
    assert expected == TRANSIENT
