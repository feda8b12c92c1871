"""Kinds of failure: what time can mend, what the model can mend, and what nothing can.

Invariant: no provider is named here. A client's exception is known by the HTTP status that it carries; for one
without a status, whoever names the client registers a classifier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import httpx

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


Classifier = Callable[[BaseException], FailureClass | None]

_classifiers: list[Classifier] = []


def register_classifier(classifier: Classifier) -> None:
    """Ask `classifier` about every exception without a status, before the rules of this module; None passes."""
    if classifier not in _classifiers:
        _classifiers.append(classifier)


def classify(error: BaseException) -> FailureClass:
    """The class of a failure; what is not known is `unknown`, which is never repeated by itself."""
    status = _status(error)
    if status is not None:
        return _by_status(status)
    for classifier in _classifiers:
        if (known := classifier(error)) is not None:
            return known
    if isinstance(error, asyncio.CancelledError):
        return FailureClass.CANCELLED
    if isinstance(error, InvalidArguments):
        return FailureClass.INVALID
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return FailureClass.TIMEOUT
    if isinstance(error, ConnectionError | httpx.TransportError):
        return FailureClass.UNAVAILABLE
    if isinstance(error, errors.StandfastError):
        return FailureClass.UNAVAILABLE if error.transient else FailureClass.PERMANENT
    if isinstance(error, PermissionError):
        return FailureClass.UNAUTHORISED
    if isinstance(error, OSError | ValueError | TypeError | LookupError):
        return FailureClass.PERMANENT
    return FailureClass.UNKNOWN


def _status(error: BaseException) -> int | None:
    """The HTTP status of an answer that became an exception: its own, as in most clients, or its response's."""
    for carrier in (error, getattr(error, "response", None)):
        status = getattr(carrier, "status_code", None)
        if isinstance(status, int):
            return status
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
