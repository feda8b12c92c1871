"""The audit: an append-only chain of entries for each thread, and the anchors over all of them.

Invariant: nothing here writes what an entry says about an approval, a decision or an answer; the database does that,
in the transaction of the change (008_audit.sql). What is read here is believed only as far as `verify` has recomputed
it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from psycopg.rows import DictRow

from standfast.checkpoint.database import Connection, Database
from standfast.checkpoint.statements import statements

_SQL = statements("audit")

Fault = Literal["changed", "removed", "reordered", "truncated", "rewritten", "unrecorded"]


@dataclass(frozen=True)
class Entry:
    """One entry: what it says, its canonical bytes as text, and its hash in hex over the hash before it and those."""

    thread_id: str
    seq: int
    facts: Mapping[str, Any]
    text: str
    hash: str


@dataclass(frozen=True)
class Anchor:
    """An anchor's number and hash: kept elsewhere, they show later that nothing before them was written anew."""

    number: int
    hash: str


@dataclass(frozen=True)
class Finding:
    """Something that is not as it was written. `thread_id` is None for the chain of anchors, '' for that of groups."""

    fault: Fault
    thread_id: str | None
    seq: int | None
    message: str


@dataclass(frozen=True)
class Verification:
    """What a verification read, and what it found; `anchor` is the last one, to be kept elsewhere."""

    entries: int
    threads: int
    anchors: int
    anchor: Anchor | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Refusal:
    """Something that was asked for and refused. `error` is the error's type; `id` is made before sending."""

    thread_id: str
    error: str
    approval: str | None = None
    operation_id: str | None = None
    decision: str | None = None
    by: str | None = None
    vouched: bool | None = None
    digest: str | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


class Audit:
    """The rows of the audit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def refused(self, refusal: Refusal) -> None:
        """Record a refusal."""
        params = {
            "thread": refusal.thread_id,
            "refusal": refusal.id,
            "approval": refusal.approval,
            "operation_id": refusal.operation_id,
            "decision": refusal.decision,
            "who": refusal.by,
            "vouched": refusal.vouched,
            "digest": refusal.digest,
            "error": refusal.error,
        }
        await self._database.fetch(_SQL["refuse"], params)

    async def anchor(self, *, seconds: float = 0.0) -> Anchor | None:
        """Anchor the heads that have moved; None if none has, or an anchor is younger than `seconds`."""
        row = await self._database.fetch_one(_SQL["anchor"], {"seconds": seconds})
        return None if row is None else Anchor(row["number"], row["hash"])

    async def last_anchor(self) -> Anchor | None:
        """The last anchor that was made."""
        rows = await self._database.fetch(_SQL["anchors"])
        return Anchor(rows[-1]["number"], rows[-1]["hash"]) if rows else None

    async def reasons(self, thread_id: str) -> Mapping[str, str]:
        """The reasons that people gave for their decisions on a thread, by the decision's id."""
        rows = await self._database.fetch(_SQL["reasons"], {"thread": thread_id})
        return {row["id"]: row["reason"] for row in rows}

    async def entries(self, thread_id: str | None = None) -> AsyncIterator[Entry]:
        """The entries of one thread, or of all, thread by thread, oldest first."""
        async with self._database.reading() as conn, conn.transaction():
            await conn.execute(_SQL["snapshot"])
            async for entry in _entries(conn, thread_id):
                yield entry

    async def verify(self, *, expected: Anchor | None = None) -> Verification:
        """Recompute every hash as of one moment, and compare with heads, anchors, decisions, grants and answers.

        `expected` is an anchor that was kept elsewhere.
        """
        async with self._database.reading() as conn, conn.transaction():
            await conn.execute(_SQL["snapshot"])
            anchors = await (await conn.execute(_SQL["anchors"])).fetchall()
            findings = [*_check_anchors(anchors, expected)]
            ends = _anchored(anchors)
            for row in await (await conn.execute(_SQL["heads"])).fetchall():
                ends.setdefault(row["thread_id"], []).append((row["seq"], row["hash"], "its head"))
            count = threads = 0
            chain: list[Entry] = []
            async for entry in _entries(conn, None):
                if chain and chain[0].thread_id != entry.thread_id:
                    findings += _check_chain(chain, ends.pop(chain[0].thread_id, []))
                    chain, threads = [], threads + 1
                chain.append(entry)
                count += 1
            if chain:
                findings += _check_chain(chain, ends.pop(chain[0].thread_id, []))
                threads += 1
            for thread, known in sorted(ends.items()):
                seq, _, by = max(known)
                findings.append(Finding("truncated", thread, seq, f"all {seq} entries that {by} knows of are gone"))
            for row in await (await conn.execute(_SQL["unrecorded"])).fetchall():
                findings.append(
                    Finding("unrecorded", row["thread_id"], None, f"{row['what']} is not what the chain tells")
                )
        last = Anchor(anchors[-1]["number"], anchors[-1]["hash"]) if anchors else None
        return Verification(count, threads, len(anchors), last, tuple(findings))


def chained(before: str, text: str) -> str:
    """The hash of an entry, in hex: SHA-256 over the hash before it and its bytes in UTF-8."""
    return hashlib.sha256(bytes.fromhex(before) + text.encode()).hexdigest()


async def _entries(conn: Connection, thread_id: str | None) -> AsyncIterator[Entry]:
    async with conn.cursor(name="audit") as cursor:
        if thread_id is None:
            await cursor.execute(_SQL["entries"])
        else:
            await cursor.execute(_SQL["entries_of"], {"thread": thread_id})
        async for row in cursor:
            yield Entry(row["thread_id"], row["seq"], _facts(row["entry"]), row["entry"], row["hash"])


def _facts(text: str) -> Mapping[str, Any]:
    try:
        facts = json.loads(text)
    except ValueError:  # somebody wrote over it
        return {}
    return facts if isinstance(facts, dict) else {}


def _check_chain(chain: list[Entry], ends: list[tuple[int, str, str]]) -> Iterator[Finding]:
    """`ends` are (number, hash, whose word that is) that the chain must have."""
    thread = chain[0].thread_id
    before: str | None = ""  # None: not known, something is missing
    seq = 0
    for entry in chain:
        if entry.seq != seq + 1:
            one = entry.seq == seq + 2
            missing = f"entry {seq + 1}" if one else f"entries {seq + 1} to {entry.seq - 1}"
            message = f"{missing} of {chain[-1].seq} {'is' if one else 'are'} missing"
            yield Finding("removed", thread, seq + 1, message)
            before = None
        seq = entry.seq
        place = (entry.facts.get("thread"), entry.facts.get("seq"))
        if None not in place and place != (thread, seq):
            message = f"the entry in place {seq} was written as entry {place[1]} of thread {place[0]!r}"
            yield Finding("reordered", thread, seq, message)
            before = None
            continue
        if None in place or (before is not None and chained(before, entry.text) != entry.hash):
            yield Finding("changed", thread, seq, f"entry {seq} is not what was written, or not after entry {seq - 1}")
        before = entry.hash
    hashes = {entry.seq: entry.hash for entry in chain}
    longest = max(ends, default=(seq, "", ""))
    if longest[0] > seq:
        yield Finding("truncated", thread, seq + 1, f"{longest[2]} knows of {longest[0]} entries, {seq} are left")
    for number, digest, by in ends:
        if hashes.get(number, digest) != digest:
            yield Finding("rewritten", thread, number, f"entry {number} has another hash than {by} knows")
    if ends == [] or max(number for number, _, _ in ends) < seq:
        yield Finding("rewritten", thread, seq, f"entry {seq} is beyond the chain's head: it was put there by hand")


def _check_anchors(rows: list[DictRow], expected: Anchor | None) -> Iterator[Finding]:
    before: str | None = ""
    number = 0
    for row in rows:
        if row["number"] != number + 1:
            yield Finding("removed", None, number + 1, f"anchor {number + 1} is missing")
            before = None
        number = row["number"]
        if (before is not None and chained(before, row["entry"]) != row["hash"]) or _facts(row["entry"]).get(
            "number"
        ) != number:
            yield Finding("changed", None, number, f"anchor {number} is not what was written")
        before = row["hash"]
    if expected is not None:
        known = {row["number"]: row["hash"] for row in rows}
        if expected.number not in known:
            yield Finding("truncated", None, expected.number, f"anchor {expected.number} that you kept is not there")
        elif known[expected.number] != expected.hash:
            yield Finding("rewritten", None, expected.number, f"anchor {expected.number} is not the one that you kept")


def _anchored(rows: list[DictRow]) -> dict[str, list[tuple[int, str, str]]]:
    """What all anchors say of each thread: (number of entries, hash of the last one, which anchor)."""
    ends: dict[str, list[tuple[int, str, str]]] = {}
    for row in rows:
        for thread, seq, digest in _facts(row["entry"]).get("heads", ()):
            ends.setdefault(thread, []).append((seq, digest, f"anchor {row['number']} of {_day(row['at'])}"))
    return ends


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"
