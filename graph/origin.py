"""Where an exception came from: the node, and the line of whoever wrote it.

Invariant: only names of nodes and files are told, no value.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from typing import Final

_TASK: Final = re.compile(r"During task with name '(.+)' and id '")  # LangGraph's note, the innermost graph's first
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})
_HOME: Final = Path(__file__).parents[1]
_ROOMS: Final = frozenset({"graph", "nodes", "tools", "checkpoint"})


def origin_of(error: BaseException) -> str | None:
    """Such as `node 'review/read', library.py:31`; None if neither is known."""
    found = [_TASK.match(note) for note in getattr(error, "__notes__", ())]
    names = [one[1] for one in reversed(found) if one is not None]
    frames = [one for one in traceback.extract_tb(error.__traceback__) if _is_theirs(one.filename)]
    line = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
    node = f"node {'/'.join(names)!r}" if names else None
    return ", ".join(one for one in (node, line) if one) or None


def _is_theirs(path: str) -> bool:
    """Whether a file is neither a library's nor ours."""
    file = Path(path)
    ours = file.is_relative_to(_HOME) and file.relative_to(_HOME).parts[0] in _ROOMS
    return not ours and not path.startswith(("<", *_LIBRARIES))
