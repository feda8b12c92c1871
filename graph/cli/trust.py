"""`audit verify|export|anchor` and `groups add|remove|list`."""

from __future__ import annotations

from standfast.checkpoint import errors
from standfast.checkpoint.audit import Anchor
from standfast.graph.cli.exits import FAILED, SUCCEEDED
from standfast.graph.cli.output import counted, local_time, note, say, say_json, say_table
from standfast.graph.cli.session import session
from standfast.graph.door import thread_id_of
from standfast.graph.runtime import AsyncRuntime


def verify(database: str | None, anchor: str | None, *, as_json: bool) -> int:
    """Recompute the audit; the exit code is 1 if anything is not as it was written."""
    expected = None if anchor is None else _anchor_of(anchor)
    with session(database) as current:
        found = current.run(lambda runtime: runtime.averify_audit(expected=expected))
    if as_json:
        say_json(
            {
                "entries": found.entries,
                "threads": found.threads,
                "anchors": found.anchors,
                "anchor": None if found.anchor is None else f"{found.anchor.number}:{found.anchor.hash}",
                "findings": [vars(one) for one in found.findings],
            }
        )
    else:
        for one in found.findings:
            where = {None: "anchors", "": "groups"}.get(one.thread_id, f"thread {one.thread_id}")
            say(f"{one.fault.upper()}  {where}: {one.message}")
        entries = "1 entry" if found.entries == 1 else f"{found.entries:,} entries"
        chains = f"{entries} in {counted(found.threads, 'chain')}"
        say(f"{chains}, {counted(found.anchors, 'anchor')}: {'NOT as written' if found.findings else 'as written'}.")
        if found.anchor is not None:
            say(f"Last anchor, to be kept elsewhere: {found.anchor.number}:{found.anchor.hash}")
    return FAILED if found.findings else SUCCEEDED


def export(database: str | None, thread: str | None) -> int:
    """Print the audit as JSON lines."""
    thread_id = None if thread is None else thread_id_of(thread)

    async def work(runtime: AsyncRuntime) -> None:
        async for one in runtime.aexport_audit(thread_id):
            say_json(one, indent=None)

    with session(database) as current:
        current.run(work)
    return SUCCEEDED


def anchor(database: str | None, *, as_json: bool) -> int:
    """Anchor what is new, and print the last anchor."""

    async def work(runtime: AsyncRuntime) -> Anchor | None:
        return await runtime.aanchor_audit() or await runtime.store.audit.last_anchor()

    with session(database) as current:
        made = current.run(work)
    if as_json:
        say_json(None if made is None else {"number": made.number, "hash": made.hash})
    elif made is None:
        note("There is nothing to anchor yet.")
    else:
        say(f"{made.number}:{made.hash}")
    return SUCCEEDED


def set_member(database: str | None, group: str, name: str, *, tenant: str, member: bool, as_: str | None) -> int:
    """Put somebody into a group, or take him out."""
    with session(database) as current:
        principal = current.principal(as_)

        async def work(runtime: AsyncRuntime) -> bool:
            return await runtime.aset_member(group, name, member=member, tenant=tenant, as_=principal)

        changed = current.run(work)
    if member:
        note(f"{name} is in {group}{'' if changed else ' already'}.")
    else:
        note(f"{name} is no longer in {group}." if changed else f"{name} is not in {group}; nothing was changed.")
    return SUCCEEDED


def members(database: str | None, group: str | None, *, tenant: str, as_json: bool) -> int:
    """List who is in a group, or in all."""
    with session(database) as current:
        found = current.run(lambda runtime: runtime.amembers(group, tenant=tenant))
    if as_json:
        say_json([vars(one) for one in found])
    elif not found:
        note("There are no groups." if group is None else f"Nobody is in {group}.")
    else:
        rows = [(one.group, one.principal, one.added_by, local_time(one.added_at)) for one in found]
        say_table(("GROUP", "NAME", "ADDED BY", "SINCE"), rows)
    return SUCCEEDED


def _anchor_of(given: str) -> Anchor:
    number, colon, digest = given.partition(":")
    if not (colon and number.isdecimal() and len(digest) == 64):
        raise errors.InvalidRequest(f"--anchor takes NUMBER:HASH, as `audit verify` prints it, not {given!r}")
    return Anchor(int(number), digest.lower())
