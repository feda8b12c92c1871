"""How far long work is: a bar with its rate and the time left in a terminal and a notebook, plain lines elsewhere.

Invariant: work that is over in a moment shows nothing, and what is shown goes to stderr and never into a result.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from standfast.graph.visible import counted

_QUIET_SECONDS: Final = 0.5  # of work, before anything is shown
_LINE_SECONDS: Final = 5.0  # between two plain lines


class Bar:
    """One piece of work of `total` things, or of an unknown number. Use it with `with`, and `add` what is done.

    `unit` is one thing's name, such as `document`. `clock` is in seconds.
    """

    def __init__(
        self, what: str, *, unit: str, total: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._unit = unit
        self._total = total
        self._clock = clock
        self._began = self._told = clock()
        self._done = 0
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def expect(self, total: int) -> None:
        """So many are to be done in all."""
        self._total = total

    def add(self, done: int = 1) -> None:
        """So many more are done."""
        self._done += done
        now = self._clock()
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._done)
        elif now - self._began < _QUIET_SECONDS:
            return
        elif in_notebook() or (_is_terminal() and os.environ.get("TERM") != "dumb"):
            self._show()
        elif now - self._told >= _LINE_SECONDS:
            self._told = now
            sys.stderr.write(f"{self.line(now)}\n")
            sys.stderr.flush()

    def line(self, now: float) -> str:
        """How far it is at this time, in one plain line."""
        rate = self._done / max(now - self._began, 1e-9)
        if self._total is None:
            return f"{self._what}: {counted(self._done, self._unit)}, {rate:.1f}/s"
        left = _lasting((self._total - self._done) / rate)
        return f"{self._what}: {self._done:,} of {counted(self._total, self._unit)}, {rate:.1f}/s, {left} left"

    def _show(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        notebook = in_notebook()
        console = Console(stderr=not notebook, highlight=False, force_jupyter=notebook)
        self._progress = Progress(*columns, console=console, transient=True)
        self._progress.start()
        self._progress.add_task(self._what, total=self._total, completed=self._done)


class _Rate(ProgressColumn):
    """How many in a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s", style="progress.data.speed")


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell: Any = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except ValueError:  # closed
        return False


def _lasting(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
