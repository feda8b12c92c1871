"""The door through which nodes and operations send messages.

Invariant: nothing leaves here at once. A message of an operation is written with the end of its attempt, one of a
node with the node's own writes: a crash in between leaves both or neither.
"""

from __future__ import annotations

from typing import Any

from langgraph.config import get_config

from standfast.checkpoint import errors
from standfast.checkpoint.outgoing import of_attempt
from standfast.tools.drive import drive_of


def notify(topic: str, payload: Any = None, *, key: str | None = None) -> str:
    """Send a message with the step or attempt that is at work, and return its id.

    It is written when that is recorded, also when it begins to wait, and not at all if it fails; then it is
    delivered at least once to every channel that wants `topic`. Messages of one `key` (by default the thread's id)
    are delivered in order. A step that runs again sends the same ids again, which changes nothing. Raises
    `InvalidRequest`, `UnstorableValue`, and `UsageError` outside a run.
    """
    _require_name(topic, "topic")
    if key is not None:
        _require_name(key, "key")
    messages = of_attempt.get()
    if messages is not None:
        return messages.add(topic, payload, key)
    try:
        config = get_config()
    except RuntimeError as error:
        raise errors.UsageError("notify() sends with a step or an operation, and neither is at work here") from error
    namespace = config["configurable"]["checkpoint_ns"]
    tasks = tuple(step.split(":", 1)[1] for step in namespace.split("|") if ":" in step)
    info = config["configurable"]["__pregel_runtime"].execution_info
    return drive_of(config).messages.add(tasks, info.node_attempt, topic, payload, key)


def _require_name(name: str, what: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= 255 or not name.isprintable() or "*" in name:
        raise errors.InvalidRequest(f"a message's {what} has 1 to 255 printable characters and no *, not {name!r:.60}")
