"""`limits list`, `set` and `clear`: what the fleet keeps to."""

from __future__ import annotations

import re
from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.flow import Limit, LimitRow
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.limits import seconds_of
from standfast.graph.cli.output import local_time, note, say_json, say_table
from standfast.graph.cli.session import session


def list_all(database: str | None, *, as_json: bool) -> int:
    """List the limits that are set."""
    with session(database) as current:
        found = current.run(lambda runtime: runtime.alimits())
    if as_json:
        say_json([_json(one) for one in found])
    elif not found:
        note("No limits are set.")
    else:
        rows = [
            (
                one.limit.key,
                "" if one.limit.concurrency is None else f"{one.used} of {one.limit.concurrency}",
                _rate(one.limit),
                "" if one.limit.queued is None else one.limit.queued,
                f"{local_time(one.changed_at)} by {one.changed_by}",
            )
            for one in found
        ]
        say_table(("KEY", "AT A TIME", "RATE", "QUEUED", "SET"), rows)
    return SUCCEEDED


def set_limit(
    database: str | None,
    key: str,
    *,
    concurrency: int | None,
    rate: str | None,
    burst: int | None,
    queued: int | None,
    as_: str | None,
) -> int:
    """Set the limit of one key."""
    calls, per = _rate_of(rate)
    limit = Limit(key, concurrency, calls, per, burst, queued)
    with session(database) as current:
        principal = current.principal(as_)
        current.run(lambda runtime: runtime.aset_limit(limit, as_=principal))
    note(f"The limit of {key} holds for every worker within a second.")
    return SUCCEEDED


def clear(database: str | None, key: str) -> int:
    """Take the limit of one key away."""
    with session(database) as current:
        cleared = current.run(lambda runtime: runtime.aclear_limit(key))
    if not cleared:
        raise errors.InvalidRequest(f"{key!r} has no limit; nothing was changed. See: standfast limits list")
    note(f"{key} has no limit any more.")
    return SUCCEEDED


def _rate_of(text: str | None) -> tuple[int | None, float | None]:
    if text is None:
        return None, None
    found = re.fullmatch(r"(\d{1,9})/(\S+)", text.strip())
    if found is None:
        raise errors.InvalidRequest(f"a rate is calls/time, such as 500/1m or 10/1s, not {text!r}")
    return int(found[1]), seconds_of(found[2])


def _rate(limit: Limit) -> str:
    if limit.rate is None:
        return ""
    return f"{limit.rate} in {limit.per:g} s, {limit.burst} at once"


def _json(row: LimitRow) -> dict[str, Any]:
    return {**vars(row.limit), "used": row.used, "changed_at": row.changed_at, "changed_by": row.changed_by}
