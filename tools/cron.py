"""Times of a schedule: a cron expression in a time zone.

The rules at a change of the clocks are those of Debian's cron, as cronsim has them: an expression with a fixed hour
runs once a day, a time that the clocks jump over runs at the first moment after the gap, and one that comes twice runs
the first time; an expression with any hour runs as often as its minutes come.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from standfast.checkpoint import errors

_FIELDS = 5


@dataclass(frozen=True)
class Cron:
    """Five fields (minute, hour, day of month, month, day of week) and an IANA time zone. Raises `InvalidRequest`."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str) or len(self.expression.split()) != _FIELDS:
            raise errors.InvalidRequest(
                f"a schedule has five fields, minute hour day month weekday, such as '0 6 * * 1-5', not "
                f"{self.expression!r}"
            )
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
            raise errors.InvalidRequest(f"there is no time zone {self.zone!r}; write Europe/Berlin or UTC") from error
        self.after(datetime(2000, 1, 1, tzinfo=UTC))

    def after(self, moment: datetime) -> datetime:
        """The first time after a moment, in UTC."""
        try:
            return next(CronSim(self.expression, moment.astimezone(ZoneInfo(self.zone)))).astimezone(UTC)
        except (CronSimError, StopIteration) as error:
            raise errors.InvalidRequest(
                f"the schedule {self.expression!r} has no time: {error or 'it never comes'}"
            ) from error
