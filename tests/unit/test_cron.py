"""When a schedule's times are, and what happens to them when the clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from standfast.checkpoint import errors
from standfast.tools.cron import Cron

BERLIN = ZoneInfo("Europe/Berlin")
SPRING = datetime(2026, 3, 28, 23, 50, tzinfo=BERLIN)  # on the 29th 02:00 becomes 03:00
AUTUMN = datetime(2026, 10, 24, 23, 50, tzinfo=BERLIN)  # on the 25th 03:00 becomes 02:00


def local(cron: Cron, moment: datetime, count: int) -> list[str]:
    times = []
    for _ in range(count):
        moment = cron.after(moment)
        assert moment.tzinfo is UTC
        times.append(moment.astimezone(ZoneInfo(cron.zone)).strftime("%d %H:%M%z"))
    return times


def test_a_time_that_the_clocks_jump_over_comes_at_the_first_moment_after_the_gap() -> None:
    assert ["29 03:00+0200", "30 02:30+0200"] == local(Cron("30 2 * * *", "Europe/Berlin"), SPRING, 2)


def test_a_time_that_comes_twice_counts_the_first_time() -> None:
    assert ["25 02:30+0200", "26 02:30+0100"] == local(Cron("30 2 * * *", "Europe/Berlin"), AUTUMN, 2)


@pytest.mark.parametrize("start", [SPRING, AUTUMN])
def test_times_of_any_hour_are_evenly_spaced_over_a_change_of_the_clocks(start: datetime) -> None:
    cron, moment, spaces = Cron("*/30 * * * *", "Europe/Berlin"), start, set()
    for _ in range(12):
        following = cron.after(moment)
        if moment is not start:
            spaces.add(following - moment)
        moment = following
    assert {timedelta(minutes=30)} == spaces


def test_a_day_has_its_time_once_all_the_year() -> None:
    cron = Cron("30 2 * * *", "America/New_York")
    moment, days = datetime(2026, 1, 1, tzinfo=UTC), []
    for _ in range(365):
        moment = cron.after(moment)
        days.append(moment.astimezone(ZoneInfo(cron.zone)).date())
    assert 365 == len(set(days))


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("", "UTC"),
        ("* * * *", "UTC"),
        ("* * * * * *", "UTC"),
        ("61 * * * *", "UTC"),
        ("0 0 31 2 *", "UTC"),
        ("@daily", "UTC"),
        ("* * * * *", "Europe/Atlantis"),
        ("* * * * *", ""),
        ("* * * * *", "../etc/passwd"),
    ],
)
def test_times_that_are_none_are_refused(expression: str, zone: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        Cron(expression, zone)
