"""Kinds of failure: what time can mend, what the model can mend, what a person can, and what nothing can.

Invariant: no provider is named here, and no message is read. An exception is known by what it carries (an HTTP
status, a SQLSTATE, an errno) or by its type; whoever names a client registers a classifier for the rest. The
whole table stands in docs/failures.md.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final

import httpx

from standfast.checkpoint import errors
from standfast.checkpoint.sqlstates import meaning_of


class FailureClass(StrEnum):
    """How an attempt failed."""

    TIMEOUT = "timeout"  # no answer in time: it may have happened
    RATE_LIMITED = "rate_limited"  # refused for now; the sender may say for how long
    UNAVAILABLE = "unavailable"  # nobody there, or nobody able
    CONFLICT = "conflict"  # somebody else's change came first; another attempt sees it
    INVALID = "invalid"  # the call is wrong: goes back to the model
    UNAUTHORISED = "unauthorised"  # a credential or a right is missing: a person is told
    PERMANENT = "permanent"  # the same call fails again
    CANCELLED = "cancelled"  # it was cancelled from within
    UNKNOWN = "unknown"  # nothing is known; never repeated by itself


TRANSIENT: Final = frozenset(
    {FailureClass.TIMEOUT, FailureClass.RATE_LIMITED, FailureClass.UNAVAILABLE, FailureClass.CONFLICT}
)


@dataclass(frozen=True)
class Failure:
    """One failure. `retry_after`: the seconds for which its sender asked to be left alone, if it said so."""

    kind: FailureClass
    message: str
    retry_after: float | None = None


class InvalidArguments(errors.OperationError):
    """The call's arguments cannot be used; the model is told why and may mend them."""


Classifier = Callable[[BaseException], FailureClass | None]

_classifiers: list[Classifier] = []


def register_classifier(classifier: Classifier) -> None:
    """Ask `classifier` about every exception, before the rules of this module; None passes."""
    if classifier not in _classifiers:
        _classifiers.append(classifier)


def failure_of(error: BaseException) -> Failure:
    """The failure that an exception stands for."""
    leaves = [error] if not isinstance(error, BaseExceptionGroup) else _leaves(error)
    asked = [after for one in leaves if (after := _retry_after(one)) is not None]
    return Failure(classify(error), said(error), max(asked, default=None))


def classify(error: BaseException) -> FailureClass:
    """The class of a failure; what is not known is `unknown`. A group is what all of its members are."""
    if isinstance(error, BaseExceptionGroup):
        classes = {classify(one) for one in _leaves(error)}
        return classes.pop() if len(classes) == 1 else FailureClass.UNKNOWN
    for classifier in _classifiers:
        if (known := classifier(error)) is not None:
            return known
    status = _status(error)
    if status is not None:
        return _by_status(status)
    meaning = meaning_of(error)
    return _by_type(error) if meaning is None else FailureClass(meaning)


def said(error: BaseException) -> str:
    """An error as text; one that cannot say what it is is known by its class."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception's own __str__ is the operation's code too
        text = ""
    return f"{name}: {text}" if text else name


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf for one in group.exceptions for leaf in (_leaves(one) if isinstance(one, BaseExceptionGroup) else [one])
    ]


# -- by type

_AWAY: Final = (
    ConnectionError,
    EOFError,  # asyncio.IncompleteReadError among them
    InterruptedError,
    BlockingIOError,
    socket.gaierror,
    httpx.TransportError,
    httpx.StreamError,
    httpx.DecodingError,
)
_MISUSE: Final = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL, httpx.TooManyRedirects)
_MENDED_BY_TIME: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ESTALE,
    }
)


def _by_type(error: BaseException) -> FailureClass:
    if isinstance(error, asyncio.CancelledError | concurrent.futures.CancelledError):
        return FailureClass.CANCELLED
    if isinstance(error, InvalidArguments):
        return FailureClass.INVALID
    if isinstance(error, errors.StandfastError):
        return FailureClass.UNAVAILABLE if error.transient else FailureClass.PERMANENT
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return FailureClass.TIMEOUT
    if isinstance(error, (*_MISUSE, ssl.SSLCertVerificationError)):
        return FailureClass.PERMANENT
    if isinstance(error, (*_AWAY, ssl.SSLError)):
        return FailureClass.UNAVAILABLE
    if isinstance(error, PermissionError):
        return FailureClass.UNAUTHORISED
    if isinstance(error, OSError) and error.errno in _MENDED_BY_TIME:
        return FailureClass.UNAVAILABLE
    if isinstance(error, OSError | ValueError | TypeError | LookupError):
        return FailureClass.PERMANENT
    return FailureClass.UNKNOWN


# -- by what an HTTP answer says


def _status(error: BaseException) -> int | None:
    """The status of an answer that became an exception: its own, as in most clients, or its response's."""
    for carrier in (error, _of(error, "response")):
        for name in ("status_code", "status"):
            status = _of(carrier, name)
            if isinstance(status, int) and 400 <= status <= 599:
                return status
    return None


def _by_status(status: int) -> FailureClass:
    if status in (408, 504):
        return FailureClass.TIMEOUT
    if status == 429:
        return FailureClass.RATE_LIMITED
    if status in (401, 402, 403, 407, 511):
        return FailureClass.UNAUTHORISED
    if status in (409, 412, 423):
        return FailureClass.CONFLICT
    if status in (400, 413, 422):
        return FailureClass.INVALID
    if status in (501, 505):
        return FailureClass.PERMANENT
    return FailureClass.UNAVAILABLE if status >= 500 or status == 425 else FailureClass.PERMANENT


def _retry_after(error: BaseException) -> float | None:
    """Seconds, from `Retry-After` in seconds or as a date (RFC 9110, 10.2.3), or `retry-after-ms`."""
    for carrier in (_of(error, "response"), error):
        headers = _of(carrier, "headers")
        if callable(_of(headers, "get")):
            milliseconds = _number(headers.get("retry-after-ms"))
            if milliseconds is not None:
                return milliseconds / 1000
            value = headers.get("retry-after") or headers.get("Retry-After")
            if value is not None:
                seconds = _number(value)
                return _until(value, headers) if seconds is None else seconds
    return None


def _of(carrier: object, name: str) -> Any:
    """An attribute, or None; a property that raises is the client's affair."""
    try:
        return getattr(carrier, name, None)
    except Exception:  # noqa: BLE001
        return None


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _until(value: Any, headers: Any) -> float | None:
    """From the answer's own `Date`, so that neither clock must be right; without one, from our time."""
    until = _date(value)
    if until is None:
        return None
    sent = _date(headers.get("date") or headers.get("Date")) or datetime.now(UTC)
    return max(0.0, (until - sent).total_seconds())


def _date(value: Any) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (TypeError, ValueError, AttributeError):
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date
