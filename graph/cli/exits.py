"""How a command ends: every failure becomes one sentence on stderr and an exit code.

0    succeeded
1    failed, cancelled, needs attention; the database or the embedded server cannot be used now
2    refused: usage, set-up, unknown id, already decided; nothing was changed
3    waiting for a person
130  interrupted
"""

from __future__ import annotations

import errno
from typing import Final

from standfast.checkpoint import errors

SUCCEEDED: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
WAITING: Final = 3
INTERRUPTED: Final = 130

_REFUSED: Final = (
    errors.ConfigurationError,
    errors.InvalidRequest,
    errors.NotAuthenticated,
    errors.UnknownThread,
    errors.UnknownApproval,
    errors.UnknownArtifact,
    errors.UnknownMessage,
    errors.UnknownSchedule,
    errors.UnknownQuestion,
    errors.AmbiguousAnswer,
    errors.NothingToAnswer,
    errors.ThreadBusy,
    errors.QueueFull,
    errors.AlreadyDecided,
    errors.AlreadyCompleted,
    errors.CompletedLate,
    errors.UnknownOperationId,
    errors.NotPermitted,
    errors.ApprovalExpired,
    errors.DigestMismatch,
    errors.AlreadyFinished,
    errors.RunLimitReached,
    errors.CancelPending,
    errors.ClientKeyConflict,
    errors.EventConflict,
    errors.LeaseHeld,
    errors.GraphChanged,
    errors.GraphNotServed,
    errors.UsageError,
)
_BY_STATUS: Final = {"succeeded": SUCCEEDED, "waiting": WAITING}


def code_of_status(status: str) -> int:
    """The exit code for how a thread's run stands."""
    return _BY_STATUS.get(status, FAILED)


def code_of_error(error: BaseException) -> int:
    """The exit code for an error."""
    if isinstance(error, errors.DatabaseUnavailable | errors.EmbeddedPostgresError | errors.AuthenticatorUnavailable):
        return FAILED
    return REFUSED if isinstance(error, _REFUSED) else FAILED


def sentence_of(error: BaseException) -> str:
    """What happened, on one line, without a traceback."""
    if isinstance(error, errors.StandfastError):
        return _one_line(error.message)
    if type(error).__module__.partition(".")[0] in ("psycopg", "psycopg_pool"):
        return f"the database refused: {_one_line(str(error), first=True)}"
    if isinstance(error, OSError):
        place = f" {error.filename!r}" if error.filename else ""
        if error.errno == errno.ENOSPC:
            return f"no space is left on the disk of{place or ' a file that was written'}; what was committed is kept"
        return f"{(error.strerror or str(error)).lower()}:{place}" if place else str(error)
    return f"unexpected {type(error).__name__}: {_one_line(str(error))} (--debug shows where)"


def _one_line(text: str, *, first: bool = False) -> str:
    lines = text.strip().splitlines()
    return " ".join((lines[:1] if first else lines) or ["no reason given"])
