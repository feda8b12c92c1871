"""What is kept of an error that a node raised: which node, what, and where in its author's code.

Invariant: a reason is one text that stands by itself, in the thread's row, its events and its result alike.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from standfast.graph.tracebacks import foreign_frames

_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Failures:
    """What one drive hears of its tasks, to know whose error an error is."""

    def __init__(self) -> None:
        self._paths: dict[str, tuple[str, ...]] = {}
        self._raised: list[tuple[BaseException, tuple[str, ...]]] = []

    def hear(self, namespace: tuple[str, ...], part: Mapping[str, Any]) -> None:
        """Take a part of LangGraph's `tasks`: a task's beginning, or its end."""
        path = (*(step.split(":", 1)[0] for step in namespace), part["name"])
        self._paths[part["id"]] = path
        if isinstance(part.get("error"), BaseException):
            self._raised.append((part["error"], path))

    def reason(self, error: BaseException) -> str:
        """The error in one text; of a graph in a graph the innermost node is told, with the way to it."""
        path = next((path for raised, path in self._raised if raised is error), None)
        path = path or self._paths.get(str(getattr(error, "data", {}).get("task")))
        node = None if path is None else f"node {'/'.join(path)!r}"
        origin = ", ".join(one for one in (node, place_of(error)) if one is not None)
        return f"{type(error).__name__}: {error}" + (f" ({origin})" if origin else "")


def place_of(error: BaseException) -> str | None:
    """Where an error was raised or let through last in code that is no library's, as `file.py:31`."""
    frames = traceback.extract_tb(foreign_frames(error.__traceback__))
    own = [one for one in frames if not one.filename.startswith((*_LIBRARIES, "<"))]
    return f"{PurePath(own[-1].filename).name}:{own[-1].lineno}" if own else None
