"""The outbox's rows: messages that are written with the state that causes them, and their deliveries.

Invariant: a message is committed in the transaction of its cause or not at all; its id is made before, so that a
transaction that is sent again, or a step that runs again, writes it once. What a dispatcher does with it is recorded
under its claim only.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from psycopg.rows import DictRow

from standfast.checkpoint import errors
from standfast.checkpoint.artifact import Seen
from standfast.checkpoint.artifacts import Artifacts
from standfast.checkpoint.database import Database, Rider
from standfast.checkpoint.plain_text import storable_text
from standfast.checkpoint.seal import Sealer
from standfast.checkpoint.statements import statements

_SQL = statements("outbox")
_KEPT_SECONDS: Final = 7 * 86_400.0

State = Literal["pending", "delivered", "dead"]


@dataclass(frozen=True)
class NewMessage:
    """A message to be written. Messages of one `key` are delivered in the order of their commits."""

    id: str
    topic: str
    key: str
    sealed: bytes
    artifacts: Seen


@dataclass(frozen=True)
class Message:
    """A message. `id` is the same at every delivery: who receives it twice knows it by that.

    A channel is told the number of its `attempt`, from 1, and the database's time of it, `attempted_at`.
    """

    id: str
    topic: str
    key: str
    thread_id: str | None
    run_id: str | None
    payload: Any
    created_at: datetime
    attempt: int = 0
    attempted_at: datetime | None = None


@dataclass(frozen=True)
class Claimed:
    """One delivery that this dispatcher is to attempt."""

    seq: int
    channel: str
    claim: uuid.UUID
    message: Message


@dataclass(frozen=True)
class Delivery:
    """How one message stands with one channel; `channel` is None for a message that none wanted.

    `due_at` is when it is tried (again), None while it waits behind an older one of its key.
    """

    message_id: str
    topic: str
    key: str
    thread_id: str | None
    run_id: str | None
    created_at: datetime
    channel: str | None
    state: State | None
    attempts: int
    due_at: datetime | None
    failure: str | None
    ended_at: datetime | None


def message_id(*cause: object) -> str:
    """The id of the message that a cause sends: the same after any crash."""
    return "msg-" + hashlib.sha256("\0".join(map(str, cause)).encode()).hexdigest()[:32]


class Outbox:
    """The rows of messages, deliveries and channels."""

    def __init__(self, database: Database, sealer: Sealer, artifacts: Artifacts) -> None:
        self._database = database
        self._sealer = sealer
        self._artifacts = artifacts

    # -- writing, in somebody else's transaction

    def new(self, identifier: str, topic: str, key: str, payload: Any) -> NewMessage:
        """A message to be sent; what becomes of `payload` later changes nothing. Raises `UnstorableValue`."""
        seen: Seen = {}
        return NewMessage(identifier, topic, key, self._seal(identifier, payload, seen), seen)

    def send(self, thread_id: str, run_id: str, messages: Sequence[NewMessage]) -> list[Rider]:
        """The statements that write messages in this order: none for none."""
        if not messages:
            return []
        params = {
            "thread": thread_id,
            "run": run_id,
            "ids": [one.id for one in messages],
            "topics": [one.topic for one in messages],
            "keys": [one.key for one in messages],
            "payloads": [one.sealed for one in messages],
        }
        seen = {sha256: one for message in messages for sha256, one in message.artifacts.items()}
        return [*self._artifacts.refer(thread_id, seen), (_SQL["send"], params)]

    def run_end(self, thread_id: str, run_id: str, epoch: int, reason: str | None) -> Rider:
        """The statement that tells of a run's end, to be sent after it: topic `run.` and the run's state."""
        identifier = message_id(thread_id, run_id, "end", epoch)
        payload = {"thread_id": thread_id, "run_id": run_id, "reason": reason}
        params = {"thread": thread_id, "run": run_id, "id": identifier, "payload": self._seal(identifier, payload)}
        return _SQL["send_run_end"], params

    # -- delivering

    async def register(self, channel: str, topics: Sequence[str]) -> None:
        """From now on, messages of these topics get a delivery to the channel."""
        await self._database.fetch_none(_SQL["register"], {"name": channel, "topics": list(topics)})

    async def forget(self, channel: str) -> None:
        """Drop a channel that nobody serves any more, with what it has not delivered."""
        await self._database.fetch_none(_SQL["forget"], {"name": channel})

    async def channels(self) -> dict[str, Sequence[str]]:
        """The known channels and the topics that they want."""
        return {row["name"]: row["topics"] for row in await self._database.fetch(_SQL["channels"])}

    async def claim(self, channels: Sequence[str], *, seconds: float, most: int) -> list[Claimed]:
        """Take what is due, for so many seconds: if nothing is recorded by then, it is due again."""
        claim = uuid.uuid4()
        params = {"channels": list(channels), "claim": claim, "seconds": seconds, "most": most}
        rows = await self._database.fetch(_SQL["claim"], params)
        return [
            Claimed(
                row["seq"],
                row["channel"],
                claim,
                replace(self._message(row), attempt=row["attempt"], attempted_at=row["claimed_at"]),
            )
            for row in rows
        ]

    async def finish(self, claimed: Claimed, state: State, *, failure: str | None = None, delay: float = 0.0) -> bool:
        """Record how an attempt ended; `pending` is tried again after `delay` seconds.

        False, and nothing recorded, if the claim had run out and passed to another dispatcher.
        """
        params = {
            "seq": claimed.seq,
            "channel": claimed.channel,
            "key": claimed.message.key,
            "claim": claimed.claim,
            "state": state,
            "failure": storable_text(failure),
            "delay": delay,
        }
        row = await self._database.fetch_one(_SQL["finish"], params)
        return row is not None and bool(row["ours"])

    async def resend(self, ids: Sequence[str] | None = None, *, channel: str | None = None) -> int:
        """Make dead deliveries due again, by message or all of them; how many."""
        given = None if ids is None else list(ids)
        row = await self._database.fetch_one(_SQL["resend"], {"ids": given, "channel": channel})
        assert row is not None
        return int(row["resent"])

    async def drop_old(self, *, most: int = 1000) -> None:
        """Delete messages that were delivered everywhere a week ago and that no unfinished run might send again."""
        await self._database.fetch_none(_SQL["drop_old"], {"seconds": _KEPT_SECONDS, "most": most})

    # -- looking

    async def list(
        self,
        *,
        state: State | None = None,
        thread_id: str | None = None,
        channel: str | None = None,
        limit: int = 50,
    ) -> Sequence[Delivery]:
        """Deliveries, the newest message first, without payloads."""
        params = {"state": state, "thread": thread_id, "channel": channel, "limit": limit}
        return [_delivery(row) for row in await self._database.fetch(_SQL["list"], params)]

    async def get(self, identifier: str) -> tuple[Message, Sequence[Delivery]]:
        """One message and its deliveries. Raises `UnknownMessage`."""
        row = None
        if identifier.isprintable() and len(identifier) <= 255:  # anything else was never an id, and may not be sent
            row = await self._database.fetch_one(_SQL["get"], {"id": identifier})
        if row is None:
            raise errors.UnknownMessage(
                f"there is no message {identifier[:40]!r}; see: standfast outbox list", message_id=identifier
            )
        deliveries = await self._database.fetch(_SQL["of_message"], {"id": identifier})
        return self._message(row), [_delivery(one) for one in deliveries]

    def _seal(self, identifier: str, payload: Any, artifacts: Seen | None = None) -> bytes:
        at = ("outbox", identifier, "payload")
        return self._sealer.seal(payload, at=at, where="payload", artifacts=artifacts)

    def _message(self, row: DictRow) -> Message:
        return Message(
            id=row["id"],
            topic=row["topic"],
            key=row["key"],
            thread_id=row["thread_id"],
            run_id=row["run_id"],
            payload=self._sealer.unseal(row["payload"], at=("outbox", row["id"], "payload"), where="payload"),
            created_at=row["created_at"],
        )


def _delivery(row: DictRow) -> Delivery:
    return Delivery(
        message_id=row["id"],
        topic=row["topic"],
        key=row["key"],
        thread_id=row["thread_id"],
        run_id=row["run_id"],
        created_at=row["created_at"],
        channel=row["channel"],
        state=row["state"],
        attempts=row["attempts"] or 0,
        due_at=row["due_at"],
        failure=row["failure"],
        ended_at=row["ended_at"],
    )
