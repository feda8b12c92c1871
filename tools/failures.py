"""Kinds of failure: what time can mend, what the model can mend, and what nothing can."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Final

import httpx
import openai

from standfast.checkpoint import errors


class FailureClass(StrEnum):
    """How an attempt failed."""

    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    CONFLICT = "conflict"
    INVALID = "invalid"
    UNAUTHORISED = "unauthorised"
    PERMANENT = "permanent"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


TRANSIENT: Final = frozenset({FailureClass.TIMEOUT, FailureClass.RATE_LIMITED, FailureClass.UNAVAILABLE})


class InvalidArguments(errors.OperationError):
    """The call's arguments cannot be used; the model is told why and may mend them."""


def classify(error: BaseException) -> FailureClass:
    """The class of a failure; what is not known is `unknown`, which is never repeated by itself."""
    status = _status(error)
    if status is not None:
        return _by_status(status)
    if isinstance(error, asyncio.CancelledError):
        return FailureClass.CANCELLED
    if isinstance(error, InvalidArguments):
        return FailureClass.INVALID
    if isinstance(error, TimeoutError | httpx.TimeoutException | openai.APITimeoutError):
        return FailureClass.TIMEOUT
    if isinstance(error, ConnectionError | httpx.TransportError | openai.APIConnectionError):
        return FailureClass.UNAVAILABLE
    if isinstance(error, errors.StandfastError):
        return FailureClass.UNAVAILABLE if error.transient else FailureClass.PERMANENT
    if isinstance(error, PermissionError):
        return FailureClass.UNAUTHORISED
    if isinstance(error, OSError | ValueError | TypeError | LookupError):
        return FailureClass.PERMANENT
    return FailureClass.UNKNOWN


def _status(error: BaseException) -> int | None:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code
    if isinstance(error, openai.APIStatusError):
        return error.status_code
    return None


def _by_status(status: int) -> FailureClass:
    if status == 408:
        return FailureClass.TIMEOUT
    if status == 429:
        return FailureClass.RATE_LIMITED
    if status in (401, 403):
        return FailureClass.UNAUTHORISED
    if status in (409, 412, 423):
        return FailureClass.CONFLICT
    if status in (400, 422):
        return FailureClass.INVALID
    return FailureClass.UNAVAILABLE if status >= 500 else FailureClass.PERMANENT
