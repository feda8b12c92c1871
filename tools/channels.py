"""Channels: the ways out for messages. A webhook, a function of your own, the log; or whatever has these members.

Invariant: a channel either returns, and the message is delivered, or raises, and it is not. It may be handed the same
message again, with the same id: delivery is at least once. Addresses and secrets stay in the process.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

import anyio.to_thread
import httpx
import pydantic_core
from pydantic import SecretStr

from standfast.checkpoint import errors
from standfast.checkpoint.outbox import Message
from standfast.checkpoint.settings import Settings

_LOG = logging.getLogger("standfast.outbox")
_PREFIX: Final = "whsec_"
_SHORTEST_SECRET: Final = 16  # bytes
_GONE: Final = 410


@dataclass(frozen=True)
class Redelivery:
    """When a message that was not taken is tried again; times in seconds.

    The n-th failure waits `first * factor ** (n - 1)`, at most `most`, or longer if the receiver asks for it, with
    up to `jitter` of that added. After `attempts` failures the message is dead to this channel. The defaults try for
    about a day.
    """

    attempts: int = 14
    first: float = 5.0
    factor: float = 3.0
    most: float = 4 * 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first < 0 or self.factor < 1 or self.most < self.first or self.jitter < 0:
            raise errors.InvalidRequest(
                f"a redelivery has at least 1 attempt, times that are not negative, and a factor of at least 1: {self}"
            )

    def delay(self, failures: int, *, asked: float = 0.0, chance: float = 0.0) -> float:
        """Seconds to wait after so many failures; `chance`, between 0 and 1, is where in the jitter it falls."""
        growth = self.factor ** min(failures - 1, 64)
        return max(min(self.first * growth, self.most), asked) * (1 + self.jitter * chance)


class Channel(Protocol):
    """A way out. `name` is known to the database for good; `topics` are whole ones, or beginnings with a `*`."""

    @property
    def name(self) -> str: ...

    @property
    def topics(self) -> Sequence[str]: ...

    @property
    def redelivery(self) -> Redelivery: ...

    @property
    def timeout(self) -> float:
        """Seconds for one attempt; after that it is cancelled and counts as failed."""
        ...

    async def send(self, message: Message) -> None:
        """Deliver the message. Whatever is raised is a failure that is tried again, but for a `DeliveryFailed` that
        says it is `permanent`."""
        ...


class LogChannel:
    """Writes each message as a line to the logger `standfast.outbox`."""

    def __init__(self, name: str = "log", *, topics: Sequence[str] = ("*",)) -> None:
        self.name = name
        self.topics = tuple(topics)
        self.redelivery = Redelivery()
        self.timeout = 15.0

    async def send(self, message: Message) -> None:
        _LOG.info("%s %s %s", message.topic, message.id, message.payload)


class FunctionChannel:
    """Calls a function with each `Message`: an async one on the runtime's loop, another one in a thread.

    A function in a thread cannot be stopped: after `timeout` it may be called again while it is still at work.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[Message], Awaitable[object] | object],
        *,
        topics: Sequence[str] = ("*",),
        redelivery: Redelivery | None = None,
        timeout: float = 15.0,
    ) -> None:
        self.name = name
        self.topics = tuple(topics)
        self.redelivery = redelivery or Redelivery()
        self.timeout = timeout
        self._function = function

    async def send(self, message: Message) -> None:
        if inspect.iscoroutinefunction(self._function):
            await self._function(message)
            return
        result = await anyio.to_thread.run_sync(self._function, message, abandon_on_cancel=True)
        if inspect.isawaitable(result):
            await result


class Webhook:
    """Posts each message as JSON, signed as Standard Webhooks say (standardwebhooks.com, symmetric, `v1`).

    The body is `{"type": topic, "timestamp": when it was written, "data": payload}`. `secret` is `whsec_` and the
    base64 of at least 16 bytes; of several, each signs, so that one can be replaced. Any answer but 2xx is a failure,
    with `Retry-After` obeyed; 410 means that nobody is there any more. Redirects are not followed.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        secret: str | SecretStr | Sequence[str | SecretStr],
        topics: Sequence[str] = ("*",),
        redelivery: Redelivery | None = None,
        timeout: float = 15.0,
    ) -> None:
        self.name = name
        self.topics = tuple(topics)
        self.redelivery = redelivery or Redelivery()
        self.timeout = timeout
        self._url = url
        given = [secret] if isinstance(secret, str | SecretStr) else list(secret)
        if not url.startswith(("http://", "https://")) or not given:
            raise errors.ConfigurationError(f"webhook {name!r} needs an http or https URL and a secret")
        self._keys = [_key(name, one) for one in given]

    def __repr__(self) -> str:
        return f"Webhook({self.name!r}, topics={self.topics!r})"  # the URL may hold a secret too

    async def send(self, message: Message) -> None:
        body = self.body(message)
        now = message.attempted_at or message.created_at
        stamp = str(int(now.timestamp()))
        headers = {
            "content-type": "application/json",
            "user-agent": "standfast",
            "webhook-id": message.id,
            "webhook-timestamp": stamp,
            "webhook-signature": " ".join(sign(key, message.id, stamp, body) for key in self._keys),
        }
        async with httpx.AsyncClient(timeout=self.timeout) as client:
            answer = await client.post(self._url, content=body, headers=headers)
        if not answer.is_success:
            raise errors.DeliveryFailed(
                f"the receiver answered {answer.status_code} {answer.reason_phrase}".rstrip(),
                permanent=answer.status_code == _GONE,
                retry_after=_retry_after(answer.headers.get("retry-after"), now),
            )

    def body(self, message: Message) -> bytes:
        """What is posted. Raises a permanent `DeliveryFailed` for a payload that JSON has no words for."""
        content = {"type": message.topic, "timestamp": message.created_at.astimezone(UTC), "data": message.payload}
        try:
            return pydantic_core.to_json(content)
        except (pydantic_core.PydanticSerializationError, UnicodeError, ValueError) as error:
            raise errors.DeliveryFailed(f"the payload cannot be written as JSON: {error}", permanent=True) from error


def configured_channels(settings: Settings) -> Sequence[Channel]:
    """The webhook that the settings name, if they do. Raises `ConfigurationError` for half a one."""
    if settings.webhook_url is None:
        return ()
    if settings.webhook_secret is None:
        raise errors.ConfigurationError("STANDFAST_WEBHOOK_URL needs STANDFAST_WEBHOOK_SECRET beside it")
    topics = [topic.strip() for topic in settings.webhook_topics.split(",")]
    return [Webhook("webhook", settings.webhook_url.get_secret_value(), secret=settings.webhook_secret, topics=topics)]


def sign(key: bytes, identifier: str, timestamp: str, body: bytes) -> str:
    """The `v1` signature of a message: HMAC-SHA256 over id, timestamp and body, in base64."""
    signed = b".".join((identifier.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _key(name: str, secret: str | SecretStr) -> bytes:
    text = secret.get_secret_value() if isinstance(secret, SecretStr) else secret
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < _SHORTEST_SECRET:
        raise errors.ConfigurationError(
            f"the secret of webhook {name!r} is not usable: it is whsec_ and the base64 of at least "
            f"{_SHORTEST_SECRET} bytes"
        )
    return key


def _retry_after(value: Any, now: datetime) -> float:
    """Seconds to wait, given as such or as a date (RFC 9110, 10.2.3); 0 if it says nothing usable."""
    if not value:
        return 0.0
    try:
        return max(0.0, float(value)) if value.strip().isdigit() else _until(value, now)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _until(value: str, now: datetime) -> float:
    at = parsedate_to_datetime(value)
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds())
