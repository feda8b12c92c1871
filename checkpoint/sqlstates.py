"""What an error of a database means: whether time can mend it, the caller, or nobody.

Invariant: an error is known by its SQLSTATE, whichever client raised it; only one without a SQLSTATE is known by
psycopg's classes. Nothing here reads a message.
"""

from __future__ import annotations

from typing import Final, Literal

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

Meaning = Literal["timeout", "unavailable", "conflict", "invalid", "unauthorised", "permanent"]

# The first that fits counts, so single states stand before the class that they belong to.
_BY_PREFIX: Final[tuple[tuple[str, Meaning], ...]] = (
    ("57014", "timeout"),  # query_canceled: statement_timeout
    ("25P03", "timeout"),  # idle_in_transaction_session_timeout
    ("25P04", "timeout"),  # transaction_timeout
    ("25006", "unavailable"),  # read_only_sql_transaction: a standby that is about to take over
    ("40003", "unavailable"),  # statement_completion_unknown
    ("40", "conflict"),  # serialization failure, deadlock
    ("55P03", "conflict"),  # lock_not_available
    ("55006", "conflict"),  # object_in_use
    ("57P04", "permanent"),  # database_dropped
    ("57P", "unavailable"),  # shutdown, crash, start-up
    ("08", "unavailable"),  # connection exceptions
    ("53", "unavailable"),  # no disk, memory or connections left
    ("58", "unavailable"),  # the server's operating system
    ("22", "invalid"),  # data that does not fit
    ("23", "invalid"),  # data that breaks a constraint
    ("28", "unauthorised"),
    ("42501", "unauthorised"),  # insufficient_privilege
)


def lost_a_race(error: psycopg.Error) -> bool:
    """Whether a transaction was rolled back so that another could go on (serialization failure, deadlock)."""
    return error.sqlstate in ("40001", "40P01")


def meaning_of(error: BaseException) -> Meaning | None:
    """What `error` means; None if no database raised it."""
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str) and len(state) == 5:
        return next((meaning for prefix, meaning in _BY_PREFIX if state.startswith(prefix)), "permanent")
    if isinstance(error, PoolTimeout | psycopg.errors.ConnectionTimeout):
        return "timeout"
    if isinstance(error, PoolClosed):
        return "permanent"
    if isinstance(error, psycopg.OperationalError):  # the client saw the connection go, or found nobody
        return "unavailable"
    return "permanent" if isinstance(error, psycopg.Error) else None
