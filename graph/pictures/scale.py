"""Time as a width: what is worked is drawn to scale, long waits are cut short.

Invariant: the order of moments is kept, and each moment has one place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

_SHARE: Final = 0.14  # of all work, the most that one wait takes
_AT_LEAST: Final = 0.05  # seconds of work that a drawing has


@dataclass(frozen=True)
class Gap:
    """A wait that is drawn shorter than it was."""

    since: float
    until: float
    lasted: timedelta


@dataclass(frozen=True)
class Scale:
    """From moments to places: `moments` and their `places`, in seconds of work, with straight lines between."""

    moments: Sequence[datetime]
    places: Sequence[float]
    gaps: Sequence[Gap]

    def place(self, at: datetime) -> float:
        """Where a moment is; before the first and after the last one, theirs."""
        if at <= self.moments[0]:
            return self.places[0]
        if at >= self.moments[-1]:
            return self.places[-1]
        index = bisect_right(self.moments, at) - 1
        share = (at - self.moments[index]) / (self.moments[index + 1] - self.moments[index])
        return self.places[index] + share * (self.places[index + 1] - self.places[index])


def scale_of(worked: Iterable[tuple[datetime, datetime]], until: datetime) -> Scale:
    """The scale of these times of work, up to `until`."""
    merged: list[tuple[datetime, datetime]] = []
    for since, end in sorted(worked):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((since, end))
    if not merged:
        merged = [(until, until)]
    work = max(_AT_LEAST, sum((end - since).total_seconds() for since, end in merged))
    moments, places, gaps = [merged[0][0]], [0.0], []
    for (since, end), (following, _) in zip(merged, [*merged[1:], (until, until)], strict=True):
        if end > since:
            moments.append(end)
            places.append(places[-1] + (end - since).total_seconds())
        if following > end:
            lasted = following - end
            width = min(lasted.total_seconds(), work * _SHARE)
            if width < lasted.total_seconds():
                gaps.append(Gap(places[-1], places[-1] + width, lasted))
            moments.append(following)
            places.append(places[-1] + width)
    return Scale(moments, places, gaps)


def lasting(time: timedelta) -> str:
    """A span of time in its largest unit: `3 d`, `2.5 h`, `40 s`, `250 ms`."""
    seconds = time.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds * 1000:.0f} ms"
