"""How the ledger waits: it parks the thread, and looks into its rows again when it is called again.

Invariant: a park is a question of the graph that is never answered. When what it waits for has come, the node runs
again from its top, finds in the rows what has come, and parks again if that is not enough. So the waits of the
operation inside it keep their places among the node's interrupts.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.config import get_config
from langgraph.types import interrupt

WAITS: Final = "standfast.waits"
PARKED: Final = "standfast.parked"  # marks the value of such a question; names what it waits for
SCRATCHPAD: Final = "__pregel_scratchpad"  # where LangGraph counts the interrupts of one node


def park_until(until: datetime) -> None:
    """Wait for a time."""
    wait = {"kind": "timer", "name": None, "match": None, "until": until}
    _park({WAITS: {"quorum": "first", "waits": [wait]}, PARKED: f"timer {until.isoformat()}"})


def park_for_completion(operation_id: str, *, looks: int, until: datetime | None) -> None:
    """Wait for the operation's end to be told from outside, or for the time of its next poll."""
    wait = {"kind": "completion", "name": operation_id, "match": None, "until": until}
    _park({WAITS: {"quorum": "first", "waits": [wait]}, PARKED: f"completion {operation_id} {looks}"})


def park_for_slot(key: str, operation_id: str, *, until: datetime) -> None:
    """Wait for a slot of a limit that is full: until somebody gives one back, or until a time."""
    wait = {"kind": "timer", "name": f"flow:{key}", "match": None, "until": until}
    described = {"quorum": "first", "waits": [wait]}
    _park({WAITS: described, PARKED: f"slot {operation_id} {until.isoformat()}"})


def park_for_person(request: Mapping[str, Any], approval_id: str) -> None:
    """Wait for the decision of a person; `request` is what is shown."""
    _park({**request, PARKED: approval_id})


def _park(value: Mapping[str, Any]) -> None:
    """Raise LangGraph's interrupt, behind all answers that have come.

    Returns only to somebody who answers it against the rule, by a plain `Command(resume=...)`.
    """
    config = get_config()
    known = config.get("configurable", {})
    scratchpad = known[SCRATCHPAD]
    answers = len(scratchpad.resume)
    last = replace(scratchpad, interrupt_counter=itertools.count(max(0, answers - 1)).__next__)
    token = var_child_runnable_config.set({**config, "configurable": {**known, SCRATCHPAD: last}})
    try:
        if answers:
            interrupt(None)  # keeps those that came in this drive: nobody may have asked for them yet
        interrupt(dict(value))
    finally:
        var_child_runnable_config.reset(token)
