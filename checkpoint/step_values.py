"""The values of a step as rows, and back: each is sealed for the row that it stands in.

Invariant: small values travel together in the checkpoint's own row, the others stand each in a row that is written
once for each version; the checkpoint's JSON holds versions only. What another saver wrote is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, ChannelVersions, Checkpoint, CheckpointTuple
from langgraph.checkpoint.base import writes_sort_key as sort_key
from psycopg.rows import DictRow

from standfast.checkpoint import errors
from standfast.checkpoint.artifact import Seen
from standfast.checkpoint.decoding import Gives
from standfast.checkpoint.parts import Leaving, Parts
from standfast.checkpoint.seal import RowIdentity, Sealer

TAG: Final = "standfast"  # in the rows' type column: a sealed value, see standfast.checkpoint.seal
_SMALL: Final = 256  # characters, or bytes of an integer


@dataclass
class Refers:
    """What the rows of a step refer to: artifacts that stand in values, and those that hold large parts of them."""

    artifacts: Seen = field(default_factory=dict)
    parts: Seen = field(default_factory=dict)


class StepValues:
    """Seals the values of checkpoints and writes, and opens them again."""

    def __init__(self, sealer: Sealer, parts: Parts) -> None:
        self._sealer = sealer
        self._parts = parts

    def blobs(
        self,
        thread_id: str,
        checkpoint_ns: str,
        values: dict[str, Any],
        versions: ChannelVersions,
        refers: Refers,
    ) -> list[tuple[str, str, str, str, str, bytes, str | None]]:
        rows: list[tuple[str, str, str, str, str, bytes, str | None]] = []
        for name, version in versions.items():
            at = ("checkpoint_blobs", thread_id, checkpoint_ns, name, str(version))
            sealed, parts = self._seal(values[name], at, name, refers)
            rows.append((thread_id, checkpoint_ns, name, str(version), TAG, sealed, parts))
        return rows

    def writes(
        self,
        thread_id: str,
        checkpoint_ns: str,
        checkpoint_id: str,
        task_id: str,
        task_path: str,
        writes: Sequence[tuple[str, Any]],
        refers: Refers,
    ) -> list[tuple[str, str, str, str, str, int, str, str, bytes, str | None]]:
        rows: list[tuple[str, str, str, str, str, int, str, str, bytes, str | None]] = []
        for index, (channel, value) in enumerate(writes):
            place = WRITES_IDX_MAP.get(channel, index)
            at = ("checkpoint_writes", thread_id, checkpoint_ns, checkpoint_id, task_id, str(place))
            sealed, parts = self._seal(value, at, channel, refers)
            rows.append(
                (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, place, channel, TAG, sealed, parts)
            )
        return rows

    def _seal(self, value: Any, at: RowIdentity, channel: str, refers: Refers) -> tuple[bytes, str | None]:
        """The bytes of a value, and the ids of its large parts with spaces between them."""
        leaving = Leaving(self._parts, channel)
        where = f"state[{channel!r}]"
        sealed = self._sealer.seal(value, at=at, where=where, artifacts=refers.artifacts, takes=leaving)
        refers.parts.update(leaving.seen)
        return sealed, " ".join(leaving.seen) or None

    def load(self, value: DictRow, gives: Gives | None) -> CheckpointTuple:
        """A checkpoint from its row; without `gives`, artifacts stand for large parts."""
        thread, namespace = value["thread_id"], value["checkpoint_ns"]

        def config(checkpoint_id: str) -> RunnableConfig:
            return {
                "configurable": {
                    "thread_id": thread,
                    "checkpoint_ns": namespace,
                    "checkpoint_id": checkpoint_id,
                }
            }

        versions = value["checkpoint"]["channel_versions"]
        values = {}
        if value["sealed"] is not None:
            at = ("checkpoints", thread, namespace, value["checkpoint_id"], "sealed")
            values = self._sealer.unseal(value["sealed"], at=at, where=f"thread {thread!r}, state")
        for raw_name, kind, blob in value["channel_values"] or ():
            name = raw_name.decode()
            at = ("checkpoint_blobs", thread, namespace, name, str(versions[name]))
            values[name] = self._load(kind, blob, at, name, gives)
        pending = []
        for task, raw_channel, kind, blob, _, index in sorted(
            value["pending_writes"] or (),
            key=lambda row: sort_key(row[4].decode(), row[0].decode(), int(row[5])),
        ):
            channel = raw_channel.decode()
            row = ("checkpoint_writes", thread, namespace, value["checkpoint_id"], task.decode(), index.decode())
            pending.append((task.decode(), channel, self._load(kind, blob, row, channel, gives)))
        if inline := value["checkpoint"].get("channel_values", {}).keys() - values.keys():
            raise _foreign("a plain value in the checkpoint", f"thread {thread!r}, state[{min(inline)!r}]")
        parent = value["parent_checkpoint_id"]
        return CheckpointTuple(
            config(value["checkpoint_id"]),
            cast("Checkpoint", {**value["checkpoint"], "channel_values": values}),
            value["metadata"],
            config(parent) if parent else None,
            pending,
        )

    def _load(self, kind: bytes, blob: bytes, at: RowIdentity, channel: str, gives: Gives | None) -> Any:
        where = f"thread {at[1]!r}, state[{channel!r}]"
        if kind.decode() != TAG:
            raise _foreign(kind.decode(), where)
        return self._sealer.unseal(blob, at=at, where=where, gives=gives)


class SealedValues:
    """LangGraph's serializer protocol, for the parent's reads of a delta channel's history."""

    def __init__(self, sealer: Sealer, gives: Gives | None) -> None:
        self._sealer = sealer
        self._gives = gives

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return TAG, self._sealer.seal(obj, at=("checkpoint",), where="state")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        if data[0] != TAG:
            raise _foreign(data[0], "state")
        return self._sealer.unseal(data[1], at=("checkpoint",), where="state", gives=self._gives)


def packed(name: str, rows: Sequence[tuple[Sequence[Any], bytes, str | None]]) -> dict[str, Any]:
    """Rows as two parameters: their keys with the place of each value and its parts, and the values one after another.

    Measured: an array of values takes psycopg several times as long.
    """
    keys, values, at = [], [], 1
    for key, value, parts in rows:
        keys.append([*key, at, len(value), parts])
        values.append(value)
        at += len(value)
    return {f"{name}_keys": orjson.dumps(keys), f"{name}_bytes": b"".join(values)}


def is_small(value: Any) -> bool:
    """Whether a value is written with each checkpoint rather than once in a row of its own."""
    kind = type(value)
    return value is None or kind in (bool, float) or (kind in (str, int) and _size(value) <= _SMALL)


def _size(value: str | int) -> int:
    return len(value) if isinstance(value, str) else value.bit_length() // 8


def _foreign(kind: str, where: str) -> errors.UnknownStoredType:
    return errors.UnknownStoredType(
        f"{where} is stored as {kind!r}, which only another saver reads; it was left as it is",
        type_name=kind,
        path=where,
    )
