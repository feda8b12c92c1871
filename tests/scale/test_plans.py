"""Every statement of checkpoint/sql, on tables as they are after a year: an index finds what it needs.

STANDFAST_PLAN_THREADS=1000000 is the long form (`make scale`). A statement is explained while it is executed, and
undone; its functions are counted in: an index reads a few blocks, whatever the number of rows. Unfit for that are only
those in WHOLE, which are asked for by people to read all there is.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

import psycopg
import pytest

from standfast.checkpoint.statements import statements
from tests.conftest import at_database

THREADS: Final = int(os.environ.get("STANDFAST_PLAN_THREADS", "40000"))
MOST: Final = 200  # blocks of 8 kB that a statement may touch
LONG: Final = 4_000  # rows of each kind that one thread has
SMALL: Final = 500  # rows: a table with fewer may be read whole

KEPT: Final = hashlib.md5(b"1").hexdigest() + hashlib.md5(b"-1").hexdigest()  # an artifact
WHOLE: Final = {
    "audit.heads": "a verification recomputes the whole audit",
    "audit.anchors": "a verification recomputes the whole audit",
    "audit.entries": "a verification recomputes the whole audit",
    "audit.unrecorded": "a verification compares the whole audit with the tables",
}
COUNTED: Final = {
    # They read the entries of all that is due, open or driven: as many as there are of those, not of threads.
    "fleet.backlog": "only where a program has set up metrics",
    "fleet.unserved": "asked for by people",
    "listing.threads": "asked for by people, also for the few that are driven",
}
NO_PLAN: Final = {
    "audit.snapshot",
    "leases.terminate_blockers",
    # One row by its key, below documents that are not part of the crowd.
    "documents.put_passage",
    "documents.put_member",
}

# Thread t-1 has been driven for long and is leased; t-3 is due; t-5 waits for an event; t-6 has asked a question.
RUN: Final = "run1"
VALUES: Final[dict[str, Any]] = {
    # whose
    "thread": "t-1",
    "threads": ["t-1", "t-2"],
    "epoch": 3,
    "epochs": [3, 3],
    "run": uuid.UUID(hashlib.md5(b"run1").hexdigest()),
    "holder": "holder",
    "worker": "worker",
    "seconds": 15.0,
    "graphs": ["crowd@1"],
    "tenant": "default",
    "id": "op-1",
    "ids": ["wait"],
    "uuid": uuid.uuid4(),
    "source": "t-5",
    "target": "t-fork",
    "parent_run": uuid.UUID(hashlib.md5(b"run1").hexdigest()),
    "child": "t-child",
    "child_run": uuid.uuid4(),
    "children": ["t-2"],
    "runs": [uuid.UUID(hashlib.md5(b"run1").hexdigest()), uuid.UUID(hashlib.md5(b"run2").hexdigest())],
    # what
    "at": "1f000000-0000-6000-8000-000000000002",
    "by": "ann",
    "effects": True,
    "altered": False,
    "itself": True,
    "results": True,
    "width": 1,
    "namespace": "",
    "parent": "1f000000-0000-6000-8000-000000000002",
    "forked": True,
    "check_head": True,
    "checkpoint": b'{"channel_versions": {}}',
    "metadata": b"{}",
    "tag": "sealed",
    "blob_keys": b'[["state", "2", 1, 1]]',
    "write_keys": b'[["", "1f000000-0000-6000-8000-000000000002", "t", "", 1, "state", 1, 1]]',
    "first": 1_000_000,
    "last": 1_000_000,
    "after": 1,
    "limit": 10,
    "most": 1,
    "prefix": "operation:",
    "kind": "tool",
    "effect": "idempotent",
    "operation": "refund",
    "operation_id": "op-1",
    "operation_digest": "d",
    "operation_version": "1",
    "digest": "d",
    "name": "refund",
    "names": ["paid"],
    "attempt": 1,
    "turn": 0,
    "index": 0,
    "round": 1,
    "position": 0,
    "required": 1,
    "group": "finance",
    "group_source": "list",
    "quorum": "first",
    "allowed": ["approve"],
    "groups": [],
    "members": ["ann"],
    "principal": "ann",
    "who": "ann",
    "decision": "approve",
    "decision_id": uuid.uuid4(),
    "expires_at": datetime(2100, 1, 1, tzinfo=UTC),
    "timeout": 60.0,
    "within": 60.0,
    "delay": 1.0,
    "ttl": 60.0,
    "listed": [],
    "seqs": [1, 2],
    "seq": 1,
    "read": ["t-1"],
    "state": "succeeded",
    "topic": "approval.opened",
    "topics": ["*"],
    "keys": ["t-1"],
    "key": "t-1",
    "payload": b"x",
    "payloads": [b"x"],
    "channel": "hook",
    "channels": ["hook"],
    "claim": uuid.uuid4(),
    "completion": uuid.uuid4(),
    "concurrency": 1,
    "contents": ["0" * 64],
    "sha256": "0" * 64,
    "hashes": ["0" * 64],
    "labels": [b"x"],
    "place": "",
    "size": 1,
    "media_type": "text/plain",
    "patience": 1.0,
    "title": "title",
    "text": "text",
    "query": "words",
    "collection": "none",
    "document": "none",
    "program": "nobody",
    "on_busy": "refuse",
    "client_key": "new",
    "graph": "crowd",
    "version": "1",
    "fingerprint": "f",
    "requested_by": "ann",
    "owner": "ann",
    "member": True,
    "node": "node",
    "interrupt": "interrupt",
    "refusal": uuid.uuid4(),
    "policy_version": "1",
    "priority": 0,
    "cron": "* * * * *",
    "zone": "UTC",
    "next_at": datetime(2100, 1, 1, tzinfo=UTC),
    "catch_up": "skip",
    "overlap": "skip",
    "paused": False,
    "error": "error",
    **dict.fromkeys(("vouched", "requester_may_decide"), True),
    **dict.fromkeys(("needs_grant", "edit_needs_another", "reason_required"), False),
    **dict.fromkeys(
        (
            "input",
            "settings",
            "sealed",
            "events",
            "blob_bytes",
            "write_bytes",
            "arguments",
            "request",
            "result",
            "answer",
        ),
        b"x",
    ),
    **dict.fromkeys(("approval_arguments", "operation_arguments", "response", "outcome", "handle"), None),
    **dict.fromkeys(("answered", "approval", "approvers", "before", "editor", "failure", "failure_class"), None),
    **dict.fromkeys(("failure_message", "granted", "input_digest", "match", "message", "model", "reason"), None),
    **dict.fromkeys(("budget", "deadline", "limit_reached", "map", "output"), None),
    **dict.fromkeys(("remind_after", "remind_at", "retry_after", "seen", "until", "wait"), None),
}
WRITE: Final = ("t-1", "", "1f000000-0000-6000-8000-000000000002", "t", "", 1, "state", "sealed", b"x", None)
OWN: Final[dict[str, list[Any]]] = {
    # Where the general values would do nothing, or where there is more than one way in.
    "approvals.get": [{"id": "apr-3"}],
    "approvals.withdraw": [{"id": "apr-3", "thread": "t-3"}],
    "approvals.open": [{"source": "list", "id": "apr-new", "kind": "call", "approval_arguments": b"x"}],
    "approvals.supersede": [{"kind": "call"}],
    "approvals.list": [
        {"thread": "t-1", "state": "open", "limit": None},
        {"thread": None, "state": "open"},
        {"thread": None, "state": None},
    ],
    "approvals.successor": [{"id": "apr-3"}],
    "artifacts.put_chunk": [(KEPT, 1, b"x")],
    "artifacts.refer": [{"contents": [KEPT], "as_parts": False}],
    "artifacts.list": [{"thread": None, "prefix": None}, {"thread": "t-1", "prefix": None}],
    "audit.refuse": [{"thread": "t-1"}],
    "checkpoints.assert_lease": [("t-1", 3)],
    "checkpoints.put_write": [WRITE],
    "checkpoints.replace_write": [WRITE],
    "checkpoints.put_step": [{"id": "1f000000-0000-6000-8000-000000000009"}],
    "checkpoints.copy_references": [("t-2", "t-9")],
    "checkpoints.delete_runs": [("t-9", [hashlib.md5(b"run9").hexdigest()])],
    "approvals.decide": [{"id": "apr-3", "seen": "d-3", "source": "list"}],
    "documents.put_document": [{"sha256": "1" * 64}],
    "events.emit": [
        {"id": "new", "name": "paid", "match": "match-5"},
        {"id": "new", "name": "unheard", "match": None},
    ],
    "events.append": [("t-1", VALUES["run"], 3, 1_000_000, 1_000_000, b"x")],
    "fleet.register": [{"id": uuid.uuid4()}],
    "fleet.leave": [{"id": uuid.uuid4()}],
    "leases.claim": [{"thread": "t-5"}, {"thread": "t-1"}],
    # Sent again, after an answer that was lost, it looks through the leases that stand.
    "leases.claim_next": [{"holders": ["h1", "h2", "h3"], "again": False}],
    "leases.claim_due": [{"thread": "t-3"}, {"thread": "t-5"}],
    "leases.break": [{"thread": "t-1"}],
    "listing.threads": [
        {"state": None, "graph": None},
        {"state": None, "graph": "crowd"},
        *(
            {"state": state, "graph": None}
            for state in ("waiting", "running", "needs_attention", "failed", "cancelled")
        ),
    ],
    "listing.runs": [
        {"state": None, "graph": None, "thread": None},
        *({"state": state, "graph": None, "thread": None} for state in ("waiting", "needs_attention", "failed")),
        {"state": None, "graph": None, "thread": "t-5"},
    ],
    "listing.waits": [
        {"thread": None, "graph": None, "kind": None},
        {"thread": None, "graph": None, "kind": "question"},
        {"thread": "t-5", "graph": None, "kind": None},
    ],
    "children.spawn": [{"parent": "t-1"}],
    "operations.begin": [{"id": "op-1", "source": "list"}, {"id": "op-new", "source": "list"}],
    "operations.complete": [{"id": "op-1-1"}],
    "outbox.list": [
        {"thread": None, "state": None, "channel": None},
        {"thread": None, "state": "dead", "channel": None},
        {"thread": "t-1", "state": None, "channel": None},
    ],
    "outbox.get": [{"id": "message-1"}],
    "outbox.of_message": [{"id": "message-1"}],
    "outbox.resend": [{"ids": ["message-1"], "channel": None}],
    "forks.fork": [{"run": uuid.uuid4()}],
    "threads.accept": [
        {"thread": "new", "run": uuid.uuid4(), "holder": None},
        {"thread": "t-5", "run": uuid.uuid4(), "holder": "h", "on_busy": "queue"},
        {"thread": "t-9", "run": uuid.uuid4(), "holder": "h", "client_key": "key-9"},
    ],
    "threads.end": [{"state": "succeeded", "limit": None}],
    "threads.run": [{"thread": "t-1"}],
    "threads.cancel": [{"thread": "t-5"}],
    "threads.runs": [{"thread": "t-5"}],
    "waits.put": [{"id": "new", "kind": "question"}],
    "waits.match": [{"thread": "t-5"}],
    "waits.answer": [{"thread": "t-6", "wait": hashlib.md5(b"wait6").hexdigest(), "id": uuid.uuid4()}],
}
HISTORY: Final = {
    # Asked for by people, about all that one thread has: they read the long thread's rows, and no others.
    "approvals.by_digest",
    "audit.entries_of",
    "audit.reasons",
    "operations.attempts",
    "operations.list",
    "threads.runs",
    "waits.answers",
    "waits.of_run",
    # Once for a run, as it ends or is carried on by a person: it looks for what its operations have left.
    "threads.end",
    "operations.forgive",
    # Once for a drive of a run that has a budget: what it has spent is counted.
    "children.spent",
    "operations.model_calls",
    "operations.steps",
    # What is erased or copied is read.
    "outbox.forget",
    *(f"checkpoints.{verb}_{what}" for verb in ("delete", "copy") for what in ("checkpoints", "blobs", "writes")),
    "forks.fork",
    "checkpoints.delete_runs",
    "checkpoints.delete_orphans",
    "checkpoints.copy_references",
}


@pytest.fixture(scope="module")
def crowded(server_url: str, template: str, crowd: Any) -> Iterator[str]:
    name = f"crowd_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}")
    url = at_database(server_url, name)
    crowd(url, THREADS, long=LONG)
    yield url
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(f"drop database {name} with (force)")


def cases() -> Iterator[Any]:
    for file in sorted(one.name for one in resources.files("standfast.checkpoint.sql").iterdir()):
        noun, dot, ending = file.partition(".")
        if (dot, ending) != (".", "sql"):
            continue
        for name, statement in statements(noun).items():
            title = f"{noun}.{name}"
            if title in WHOLE or title in NO_PLAN:
                continue
            for number, own in enumerate(OWN.get(title, [{}])):
                yield pytest.param(title, statement, own, id=f"{title}-{number}" if number else title)


def parameters(title: str, statement: bytes, own: Any) -> Any:
    if isinstance(own, tuple):
        return own
    positional = len(re.findall(rb"%[sb]\b", statement))
    if positional:
        return ("t-9",) if positional == 1 else ("new-thread", "t-9")
    named = {one.decode() for one in re.findall(rb"%\((\w+)\)", statement)}
    return {name: own.get(name, VALUES.get(name)) for name in named}  # a null for those that are not known here


def scans(plan: dict[str, Any]) -> Iterator[str]:
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for inner in plan.get("Plans", ()):
        yield from scans(inner)


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize(("title", "statement", "own"), list(cases()))
def test_an_index_finds_what_it_needs(crowded: str, title: str, statement: bytes, own: Any) -> None:
    if title == "checkpoints.select":
        statement += b" where thread_id = %s and checkpoint_ns = '' order by checkpoint_id desc limit 1"
        own = ("t-1",)
    given = parameters(title, statement, own)
    with psycopg.connect(
        crowded, options="-c search_path=standfast,public -c jit=off", cursor_factory=psycopg.ClientCursor
    ) as conn:
        sizes = dict(conn.execute("select relname, reltuples from pg_class where relkind = 'r'").fetchall())
        for _ in range(2):  # the first time the catalogue is read too
            try:
                row = conn.execute(b"explain (analyze, buffers, format json) " + statement, given).fetchone()
            except psycopg.Error as error:
                pytest.fail(f"{title} with {given}: {error}; give it better values in VALUES or OWN")
            conn.rollback()
    assert row is not None
    plan = row[0][0]["Plan"]
    touched = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    if title in HISTORY:
        return
    large = {one for one in scans(plan) if sizes.get(one, 0) > SMALL}
    assert not large, f"{title} reads all of {sorted(large)}"
    assert touched <= MOST or title in COUNTED, f"{title} touches {touched} blocks"
