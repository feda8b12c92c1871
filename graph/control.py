"""The stop of one drive: its own, or that of the worker that it belongs to.

Invariant: asking one drive to drain leaves the others of its worker alone.
"""

from __future__ import annotations

from langgraph.runtime import RunControl


class DriveControl(RunControl):
    """Drains when it is asked to, or when `outer` is."""

    __slots__ = ("_outer",)

    def __init__(self, outer: RunControl | None = None) -> None:
        super().__init__()
        self._outer = outer

    @property
    def drain_requested(self) -> bool:
        return self.drain_reason is not None

    @property
    def drain_reason(self) -> str | None:
        return self._drain_reason or (None if self._outer is None else self._outer.drain_reason)
