"""Live progress on stderr: each step with its time, what it asked for, and tokens if the model tells.

Invariant: one line is written when a group of like steps is finished, in a terminal and elsewhere; only a
terminal sees, below them, what is going on now.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from standfast.graph.cli.output import is_terminal, note, plain, shortened
from standfast.graph.events import StreamEvent

_OPERATION: Final = "operation"
_INSIDE_OPERATION: Final = frozenset({"validation", "approval", "operate"})
_ACTING: Final = frozenset({_OPERATION, "operate", "specialist"})  # named by what they do; all others by themselves


@dataclass
class _Step:
    label: str
    detail: str
    depth: int
    group: tuple[tuple[str, ...], str]
    began: float


class Progress:
    """A listener for `on_event`. Use it with `with`; nothing is shown before the first event."""

    def __init__(self, before_first: Callable[[], None] = lambda: None) -> None:
        self._before_first = before_first
        self._running: dict[str, _Step] = {}
        self._finished: Counter[tuple[tuple[str, ...], str]] = Counter()
        self._undone: dict[str, Counter[str]] = {}  # by operation, how those ended that did not succeed
        self._streamed = 0
        self._tokens = 0
        self._live: Live | None = None
        self.begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: StreamEvent) -> None:
        if not self.begun:
            self.begun = True
            self._before_first()
            self._start()
        if event.kind == "token":
            self._streamed += len(event.data["text"])
        elif event.kind == "step_begin":
            self._begin(event)
        elif event.kind == "step_end":
            self._end(event)
        elif event.kind == "operation_end" and event.data["state"] != "succeeded":
            self._undone.setdefault(event.data["name"], Counter())[event.data["state"]] += 1
        if self._live is not None:
            self._live.update(Spinner("line", text=Text(self._now())))

    def _start(self) -> None:
        if is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb":
            console = Console(stderr=True, highlight=False, markup=False, emoji=False)
            self._live = Live(console=console, refresh_per_second=8, transient=True)
            self._live.start()

    def _begin(self, event: StreamEvent) -> None:
        if _inside_operation(event.path):
            return
        label, detail = event.node, ""
        if "name" in event.data and event.node in _ACTING:
            label, detail = event.data["name"], _subject(event.data["args"])
        depth = sum(name != _OPERATION for name in event.path[:-1])
        group = (event.path, label)
        self._running[event.task] = _Step(label, detail, depth, group, time.monotonic())

    def _end(self, event: StreamEvent) -> None:
        step = self._running.pop(event.task, None)
        if step is None:
            return
        self._finished[step.group] += 1
        if any(other.group == step.group for other in self._running.values()):
            return
        count = self._finished.pop(step.group)
        what = step.label
        if count > 1:
            what += f" ({count})"
        elif step.detail:
            what += f": {step.detail}"
        if "calls" in event.data:
            what += self._model_said(event.data)
        if undone := self._undone.pop(step.label, None):
            what += ": " + ", ".join(state if count == 1 else f"{many} {state}" for state, many in undone.items())
        seconds = max(event.data["seconds"], time.monotonic() - step.began)  # of a group: since its first
        self._line(f"{seconds:7.1f} s  {'  ' * step.depth}{what}")

    def _model_said(self, data: dict[str, Any]) -> str:
        self._streamed = 0
        calls = Counter(data["calls"])
        asks = ", ".join(name if count == 1 else f"{name} ({count})" for name, count in calls.items())
        said = f": asks for {asks}" if asks else ": answers"
        usage = data["usage"]
        if usage:
            self._tokens += usage["total_tokens"]
            said += f"; {usage['total_tokens']:,} tokens"
        return said

    def _line(self, text: str) -> None:
        if self._live is None:
            note(text)
        else:
            self._live.console.print(Text(plain(text)), soft_wrap=True)

    def _now(self) -> str:
        steps = list(self._running.values())
        if not steps:
            return ""
        newest = steps[-1]
        alike = sum(other.group == newest.group for other in steps)
        text = f"{newest.label} ({alike})" if alike > 1 else f"{newest.label}: {newest.detail}".rstrip(": ")
        if self._streamed:
            text += f", {self._streamed:,} characters so far"
        if self._tokens:
            text += f"; {self._tokens:,} tokens"
        return plain(shortened(text, 100))


def _inside_operation(path: tuple[str, ...]) -> bool:
    return len(path) > 1 and path[-2] == _OPERATION and path[-1] in _INSIDE_OPERATION


def _subject(arguments: Any) -> str:
    """What a call is about: the values of its short arguments."""
    if not isinstance(arguments, dict):
        return ""
    short = [str(one) for one in arguments.values() if isinstance(one, str | int) and len(str(one)) <= 200]
    return shortened(", ".join(short))
