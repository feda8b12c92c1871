"""Ways in which a node ends the drive that it runs in, without cancelling the tasks beside it.

Invariant: a halt leaves the task that raised it unfinished, with what its operations have recorded; the next drive
runs it again. LangGraph lets the other tasks of the step finish first, in nested graphs too.
"""

from __future__ import annotations

from langgraph.errors import GraphBubbleUp


class Halt(GraphBubbleUp):
    """Ends the drive when the step's other tasks have ended."""


class Later(Halt):
    """An operation has failed and is attempted again at a later time, which is recorded with it."""


class NeedsPerson(Halt):
    """Nothing but a person can mend this; the argument says what, and what to do."""
