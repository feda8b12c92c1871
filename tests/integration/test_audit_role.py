"""The role that docs/audit.md describes runs everything, and cannot change what the audit tells."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from standfast.checkpoint.audit import Refusal
from standfast.checkpoint.settings import Settings
from standfast.graph import DEFAULT_OPERATIONS, Principal, Runtime, build_agent
from tests.crash.support.scripted_model import OPERATIONS, ScriptedModel, call, script
from tests.servers.reports import ReportsServer

pytestmark = pytest.mark.guarantee("G6")

DOCS = Path(__file__).parents[2] / "docs" / "audit.md"


@pytest.fixture
def runtime_url(database_url: str) -> Iterator[str]:
    """The test's database, as the role of the recipe's name made unique for this test."""
    role, password = f"runtime_{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    [recipe] = re.findall(r"^```sql\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(recipe.replace("standfast_runtime", role))
        conn.execute(recipe.replace("standfast_runtime", role))  # after each migration: again is allowed
        conn.execute(f"alter role {role} password '{password}'")
    parts = urlsplit(database_url)
    place = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=f"{role}:{password}@{place}"))
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(f"drop owned by {role}")
        conn.execute(f"drop role {role}")


async def test_the_runtimes_role_runs_everything(runtime_url: str, reports_server: ReportsServer) -> None:
    graph = build_agent(model=ScriptedModel(), operations=[*DEFAULT_OPERATIONS, *OPERATIONS])
    settings = Settings(reports_url=f"{reports_server.url}/reports")
    async with Runtime(graph, database_url=runtime_url, settings=settings) as runtime:
        waiting = await runtime.ainvoke(script([call("note", text="agreed")]), thread_id="t")
        kim = Principal.vouched("kim")
        end = await runtime.aresume("t", approve=waiting.approvals[0].id, as_=kim)
        await runtime.store.audit.refused(Refusal("t", "X"))
        assert await runtime.aanchor_audit() is not None
        assert await runtime.aset_member("finance", "kim", as_=kim)
        found = await runtime.averify_audit()
    assert ("succeeded", 6, ()) == (end.status, found.entries, found.findings)


@pytest.mark.parametrize(
    "statement",
    [
        "update audit set entry = ''",
        "delete from audit",
        "truncate audit",
        "insert into audit values ('t', 9, '', '')",
        "update audit_heads set seq = 0",
        "delete from audit_heads",
        "update audit_anchors set entry = ''",
        "delete from audit_anchors",
        "select append_audit_1('t', '{}')",
        "alter table audit disable trigger all",
        "alter table approvals disable trigger all",
        "drop trigger audited_change on approvals",
        "create or replace function now() returns timestamptz language sql as 'select clock_timestamp()'",
        "set session_replication_role = replica",
        "update migrations set sha256 = ''",
    ],
)
def test_the_runtimes_role_cannot_change_it(
    runtime_url: str, query: Callable[..., list[tuple[Any, ...]]], statement: str
) -> None:
    query("select audit_refusal_1('t', gen_random_uuid(), null, null, null, 'kim', false, null, 'X')")
    before = query("select * from audit")
    with psycopg.connect(runtime_url, autocommit=True, options="-c search_path=standfast") as conn:
        conn.execute("set standfast.audit_may_change = 'yes'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(statement)
    assert before == query("select * from audit")
