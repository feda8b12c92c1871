"""Tracebacks of what Standfast raises on purpose: the frames that the reader wrote, without the machinery between them.

Invariant: an error and what caused it stay the same objects, with the same messages; only frames are left out, and
errors that are not Standfast's own keep all of theirs.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

from standfast.checkpoint.errors import StandfastError

_MACHINERY: Final = frozenset(
    {
        "anyio",
        "asyncio",
        "concurrent",
        "contextlib",
        "langchain_core",
        "langgraph",
        "psycopg",
        "psycopg_pool",
        "standfast",
        "threading",
    }
)
_LOG = logging.getLogger("standfast.errors")


def shortened(error: StandfastError) -> StandfastError:
    """The same error, to be raised again: its frames and its causes' are those of other people's code alone.

    The whole of it is logged as DEBUG to `standfast.errors`.
    """
    _LOG.debug("%s, with all its frames", type(error).__name__, exc_info=error)
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = foreign_frames(one.__traceback__)
        one.__suppress_context__ = True
        one = one.__cause__
    return error


def foreign_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of Standfast and of what it stands on."""
    kept = []
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _MACHINERY:
            kept.append(traceback)
        traceback = traceback.tb_next
    following: TracebackType | None = None
    for one in reversed(kept):
        following = TracebackType(following, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return following
