"""`outbox list`, `show`, `retry`, `dispatch`, `forget`: messages, from the side of those who operate them."""

from __future__ import annotations

from typing import Any

from standfast.checkpoint import errors
from standfast.checkpoint.outbox import Delivery, State
from standfast.graph.cli.exits import FAILED, SUCCEEDED
from standfast.graph.cli.output import counted, local_time, note, note_cut, say, say_json, say_table
from standfast.graph.cli.session import load_channels, session
from standfast.graph.door import thread_id_of
from standfast.graph.runtime import AsyncRuntime
from standfast.tools.dispatcher import Dispatched


def list_all(
    database: str | None,
    *,
    state: State | None,
    thread: str | None,
    channel: str | None,
    limit: int,
    as_json: bool,
) -> int:
    """List deliveries, the newest message first."""
    thread_id = None if thread is None else thread_id_of(thread)
    with session(database) as current:
        found = current.run(
            lambda runtime: runtime.adeliveries(state=state, thread_id=thread_id, channel=channel, limit=limit)
        )
    if as_json:
        say_json([vars(one) for one in found])
    elif not found:
        note("There are no such messages." if state or thread or channel else "There are no messages.")
    else:
        rows = [
            (
                one.message_id,
                one.topic,
                one.key,
                one.channel or "(no channel)",
                one.state or "",
                one.attempts,
                _when(one),
                one.failure or "",
            )
            for one in found
        ]
        say_table(("MESSAGE", "TOPIC", "KEY", "CHANNEL", "STATE", "ATTEMPTS", "WHEN", ""), rows)
    note_cut(found, limit)
    return SUCCEEDED


def show(database: str | None, message_id: str, *, as_json: bool) -> int:
    """Show one message."""
    with session(database) as current:
        message, deliveries = current.run(lambda runtime: runtime.amessage(message_id))
    if as_json:
        say_json({**_message_json(message), "deliveries": [vars(one) for one in deliveries]})
        return SUCCEEDED
    say(f"{message.id}  {message.topic}")
    say(f"key      {message.key}")
    say(f"thread   {message.thread_id or ''}")
    say(f"written  {local_time(message.created_at)}")
    say(f"payload  {message.payload!r}")
    for one in deliveries:
        attempts = counted(one.attempts, "attempt")
        say(f"{one.channel}: {one.state} {_when(one)} ({attempts}){f': {one.failure}' if one.failure else ''}")
    return SUCCEEDED


def retry(database: str | None, message_id: str | None, *, everything: bool, channel: str | None, as_json: bool) -> int:
    """Make dead deliveries due again."""
    if (message_id is None) != everything:
        raise errors.InvalidRequest("name one message, or say --all")
    with session(database) as current:
        resent = current.run(lambda runtime: runtime.aresend(message_id, channel=channel))
    note(f"{counted(resent, 'delivery') if resent == 1 else f'{resent} deliveries'} will be attempted again.")
    if as_json:
        say_json({"resent": resent})
    return SUCCEEDED


def dispatch(database: str | None, channels: str | None, *, as_json: bool) -> int:
    """Deliver what is due now. 1 if something was not taken."""
    given = load_channels(channels)

    async def work(runtime: AsyncRuntime) -> Dispatched:
        if not runtime.channels:
            raise errors.InvalidRequest(
                "there is no channel to deliver to; name some with --channels MODULE:ATTR, or set STANDFAST_WEBHOOK_URL"
            )
        return await runtime.adispatch()

    with session(database) as current:
        done = current.run(work, channels=given)
    if as_json:
        say_json(vars(done))
    else:
        note(f"{done.delivered} delivered, {done.failed} to be tried again, {done.dead} dead")
    return FAILED if done.failed or done.dead else SUCCEEDED


def forget(database: str | None, channel: str, *, as_json: bool) -> int:
    """Drop a channel."""

    async def work(runtime: AsyncRuntime) -> None:
        known = await runtime.store.outbox.channels()
        if channel not in known:
            raise errors.InvalidRequest(
                f"there is no channel {channel!r}; there are: {', '.join(known) or 'none'}; nothing was changed"
            )
        await runtime.aforget_channel(channel)

    with session(database) as current:
        current.run(work)
    note(f"Channel {channel} is forgotten, until somebody serves it again.")
    if as_json:
        say_json({"channel": channel})
    return SUCCEEDED


def _when(one: Delivery) -> str:
    if one.ended_at is not None:
        return local_time(one.ended_at)
    if one.due_at is not None:
        return f"due {local_time(one.due_at)}"
    return "" if one.channel is None else "behind an older one"


def _message_json(message: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(message).items() if key not in ("attempt", "attempted_at")}
