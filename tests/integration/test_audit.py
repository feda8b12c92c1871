"""What happened to approvals is told in the transaction that it happened in, and whoever changes it later is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, TypedDict

import psycopg
import pytest
import rfc8785
from langgraph.graph import START, StateGraph

from standfast.checkpoint import errors
from standfast.checkpoint.audit import Anchor, Refusal
from standfast.checkpoint.database import Database
from standfast.checkpoint.store import Store
from standfast.checkpoint.stored_types import TypeRegistry
from standfast.graph import OIDC, OperationContext, Pending, Policy, Principal, Runtime, ask, operation
from standfast.graph.answers import Said
from tests.conftest import Clock
from tests.crash.support.scripted_model import call, script
from tests.servers.oidc import AUDIENCE, OIDCServer

pytestmark = pytest.mark.guarantee("G6")

Open = Callable[..., Any]
Query = Callable[..., list[tuple[Any, ...]]]
KIM = Principal.vouched("kim")
REQUEST = script([call("note", text="agreed")])
SAY_CHANGED = "set standfast.audit_may_change = 'yes'"


@pytest.fixture
async def runtime(opened: Open) -> AsyncIterator[Runtime]:
    """A runtime with a request that waits for a decision on the thread `t`."""
    async with opened() as found:
        await found.ainvoke(REQUEST, thread_id="t", as_=Principal.vouched("lee"))
        yield found


async def told(runtime: Runtime, thread: str = "t") -> list[tuple[Any, ...]]:
    return [(one.facts["kind"], one.facts.get("by"), one.facts.get("error")) for one in await runtime.aaudit(thread)]


async def faults(runtime: Runtime, expected: Anchor | None = None) -> list[tuple[str, str | None, int | None]]:
    found = await runtime.averify_audit(expected=expected)
    return [(one.fault, one.thread_id, one.seq) for one in found.findings]


# -- what is told


async def test_a_request_its_decision_and_its_use_are_told(runtime: Runtime) -> None:
    [approval] = await runtime.aapprovals()
    await runtime.aresume("t", approve=approval.id, as_=KIM)
    entries = await runtime.aaudit("t")
    assert [("request", "lee", None), ("decision", "kim", None), ("outcome", None, None), ("use", None, None)] == (
        await told(runtime)
    )
    assert {approval.digest} == {one.facts["digest"] for one in entries}
    assert ["open", None, "approved", "approved"] == [one.facts.get("state") for one in entries]
    assert (True, False) == (entries[1].facts["vouched"], entries[1].facts["self_approved"])
    assert [] == await faults(runtime)


async def test_a_reason_is_told_by_its_digest_only(runtime: Runtime, query: Query) -> None:
    [approval] = await runtime.aapprovals()
    await runtime.adecide(approval.id, Said("reject", "confidential reason"), as_=KIM)
    assert ["request", "decision", "outcome"] == [kind for kind, *_ in await told(runtime)]
    assert 0 == query("select count(*) from audit where entry like '%%confidential%%'")[0][0]


async def test_an_expiry_is_told(clock: Clock, runtime: Runtime) -> None:
    clock.move(timedelta(days=8))
    [approval] = await runtime.aapprovals(state=None)
    with pytest.raises(errors.ApprovalExpired):
        await runtime.adecide(approval.id, Said("approve"), as_=KIM)
    assert [("request", "lee", None), ("expiry", None, None), ("refusal", "kim", "ApprovalExpired")] == (
        await told(runtime)
    )
    assert [] == await faults(runtime)


async def test_a_withdrawal_is_told(runtime: Runtime) -> None:
    await runtime.acancel("t")
    assert ["request", "withdrawal"] == [kind for kind, *_ in await told(runtime)]


async def test_whoever_was_refused_is_told(runtime: Runtime) -> None:
    [approval] = await runtime.aapprovals()
    with pytest.raises(errors.DigestMismatch):
        await runtime.adecide(approval.id, Said("approve"), as_=KIM, seen_digest="0" * 64)
    with pytest.raises(errors.InvalidRequest):
        await runtime.aanswer("t", "yes", as_=KIM)
    await runtime.adecide(approval.id, Said("reject"), as_=KIM)
    with pytest.raises(errors.AlreadyDecided):
        await runtime.adecide(approval.id, Said("approve"), as_=Principal.vouched("sam"))
    refusals = [one for one in await told(runtime) if one[0] == "refusal"]
    assert [("kim", "DigestMismatch"), ("kim", "InvalidRequest"), ("sam", "AlreadyDecided")] == [
        one[1:] for one in refusals
    ]


async def test_a_token_that_proves_nothing_is_told_without_a_name(runtime: Runtime, oidc_server: OIDCServer) -> None:
    async with Runtime(
        runtime._graph, database_url=runtime._url, authenticator=OIDC(oidc_server.issuer, AUDIENCE)
    ) as strict:
        [approval] = await strict.aapprovals()
        with pytest.raises(errors.NotAuthenticated):
            await strict.adecide(approval.id, Said("approve"), token=oidc_server.token(aud="else"))
    assert ("refusal", None, "NotAuthenticated") == (await told(runtime))[-1]


class Asked(TypedDict, total=False):
    got: Any


async def question(state: Asked) -> Asked:
    return {"got": await ask("For how many days?", schema=int)}


async def test_an_answer_to_a_question_is_told_by_its_digest_and_a_second_one_as_refused(
    database_url: str, oidc_server: OIDCServer, query: Query
) -> None:
    graph = StateGraph(Asked)
    graph.add_node("question", question)
    graph.add_edge(START, "question")
    async with Runtime(
        graph, database_url=database_url, authenticator=OIDC(oidc_server.issuer, AUDIENCE), accept_vouched=True
    ) as runtime:
        await runtime.ainvoke({}, thread_id="t", as_=KIM)
        await runtime.aresume("t", "confidential", token=oidc_server.token())  # not a number: asked again
        [second] = (await runtime.aresume("t")).questions
        await runtime.aanswer("t", 30, as_=KIM)
        with pytest.raises(errors.AlreadyDecided):
            await runtime.aanswer("t", {second.id: 31}, as_=KIM)
        with pytest.raises(errors.NotAuthenticated):
            await runtime.aanswer("t", 31, token="forged")
        facts = [one.facts for one in await runtime.aaudit("t")]
        exported = [one async for one in runtime.aexport_audit("t")]
        assert [] == await faults(runtime)
        assert "succeeded" == (await runtime.aresume("t")).status
        by = f"oidc:{oidc_server.issuer}"
        assert [
            ("answer", "kim", False, by),
            ("answer", "kim", True, None),
            ("refusal", "kim", True, None),
            ("refusal", None, None, None),
        ] == [(one["kind"], one.get("by"), one.get("vouched"), one.get("verified_by")) for one in facts]
        assert (second.id, "question") == (facts[1]["question"], facts[1]["node"])
        assert ["confidential", 30] == [one["values"]["answer"] for one in exported[:2]]
        assert 0 == query("select count(*) from audit where entry like '%%confidential%%'")[0][0]
        for forged in ("answered_by = 'sam'", "answer_sha256 = repeat('0', 64)"):
            query(f"set session_replication_role = replica; update waits set {forged} where verified_by is null")
            assert [("unrecorded", "t", None)] == await faults(runtime)


async def test_who_told_the_end_of_work_elsewhere_is_told_and_who_came_too_late(opened: Open, query: Query) -> None:
    handles: list[str] = []

    @operation(policy=Policy(effect="at_most_once"))
    async def render(context: OperationContext) -> dict[str, str] | Pending:
        """Begin to render."""
        handles.append(context.operation_id)
        return Pending()

    async with opened(render) as runtime:
        await runtime.ainvoke(script([call("render")]), thread_id="t")
        await runtime.acomplete(handles[0], {"file": "confidential"}, as_=KIM)
        with pytest.raises(errors.AlreadyCompleted):
            await runtime.acomplete(handles[0], {"file": "late"}, as_=Principal.vouched("sam"))
        await runtime.aresume("t")
        assert [("completion", "kim", None), ("refusal", "sam", "AlreadyCompleted")] == await told(runtime)
        [entry, _] = await runtime.aaudit("t")
        facts = entry.facts
        assert ("render", handles[0], 1, "succeeded", True) == tuple(
            facts[one] for one in ("operation", "operation_id", "attempt", "state", "vouched")
        )
        digest = runtime.store.sealer.digest({"file": "confidential"}, where="result")
        assert digest == facts["result_sha256"]
        assert 0 == query("select count(*) from audit where entry like '%%confidential%%'")[0][0]
        assert [] == await faults(runtime)
        for forged in ("completed_by = 'sam'", "result_sha256 = repeat('0', 64)"):
            query(f"set session_replication_role = replica; update completions set {forged}")
            assert [("unrecorded", "t", None)] == await faults(runtime)


async def test_a_refusal_sent_again_is_told_once(store: Store) -> None:
    refusal = Refusal("t", "AlreadyDecided", by="kim")
    await store.audit.refused(refusal)
    await store.audit.refused(refusal)
    assert 1 == len([one async for one in store.audit.entries("t")])


async def test_a_thread_without_approvals_writes_nothing_into_the_audit(opened: Open, query: Query) -> None:
    async with opened() as runtime:
        assert "succeeded" == (await runtime.ainvoke(script([]), thread_id="plain")).status
    assert [(0, 0)] == query("select (select count(*) from audit), (select count(*) from audit_heads)")


async def test_what_is_rolled_back_is_not_told(runtime: Runtime, database_url: str) -> None:
    with psycopg.connect(database_url, options="-c search_path=standfast") as conn:
        conn.execute("update approvals set state = 'withdrawn'")
        conn.rollback()
    assert ["request"] == [kind for kind, *_ in await told(runtime)]


async def test_a_grant_written_past_the_runtime_is_told(runtime: Runtime, query: Query) -> None:
    query("update approvals set state = 'approved'")
    assert [("request", "lee", None), ("outcome", None, None)] == await told(runtime)


async def test_the_audit_of_a_thread_outlives_it(runtime: Runtime, query: Query) -> None:
    query("delete from threads")
    assert ["request"] == [kind for kind, *_ in await told(runtime)]
    assert [] == await faults(runtime)


async def test_groups_are_told_and_count_for_whoever_is_in_them(runtime: Runtime) -> None:
    assert await runtime.aset_member("finance", "kim", as_=KIM)
    assert not await runtime.aset_member("finance", "kim", as_=KIM)
    assert frozenset({"finance"}) == (await runtime.aprincipal(KIM)).groups
    assert [("finance", "kim", "kim")] == [(one.group, one.principal, one.added_by) for one in await runtime.amembers()]
    await runtime.aset_member("finance", "kim", member=False, as_=Principal.vouched("sam"))
    assert frozenset() == (await runtime.aprincipal(KIM)).groups
    chain = [one.facts async for one in runtime.store.audit.entries("")]
    assert [("insert", "kim"), ("delete", "sam")] == [(one["change"], one["by"]) for one in chain]


# -- the chain


@pytest.mark.parametrize("thread", ["t", "ünï \u2028 \U0001d4b3", 'quo"te\\ \u007f', "a" * 255])
async def test_entries_are_canonical_json(store: Store, thread: str) -> None:
    await store.audit.refused(Refusal(thread, "X", by="kim 😀 \t\n", vouched=True))
    await store.audit.anchor()
    [entry] = [one async for one in store.audit.entries(thread)]
    [anchor] = await store.database.fetch(b"select entry from audit_anchors")
    for text in (entry.text, anchor["entry"]):
        assert rfc8785.dumps(json.loads(text)) == text.encode()


async def test_many_writers_make_one_chain(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(3):
            database = Database(database_url, pool_size=5)
            await database.open()
            stack.push_async_callback(database.close)
            stores.append(Store.over(database, TypeRegistry()))
        refusals = [stores[n % 3].audit.refused(Refusal("t", "X", by=str(n))) for n in range(60)]
        done = await asyncio.gather(
            *refusals, *(stores[n % 3].audit.anchor() for n in range(10)), return_exceptions=True
        )
        found = await stores[0].audit.verify()
        told = {one.facts["by"] async for one in stores[0].audit.entries("t")}
    assert [] == [one for one in done if isinstance(one, BaseException)]
    assert (60, 1, ()) == (found.entries, found.threads, found.findings)
    assert {str(n) for n in range(60)} == told


async def test_an_anchor_is_made_only_for_what_is_new(store: Store) -> None:
    assert await store.audit.anchor() is None
    await store.audit.refused(Refusal("t", "X"))
    first = await store.audit.anchor()
    assert first is not None
    assert await store.audit.anchor() is None
    await store.audit.refused(Refusal("t", "X"))
    assert await store.audit.anchor(seconds=3600) is None
    second = await store.audit.anchor()
    assert (first.number + 1) == (second and second.number)


# -- tampering

TAMPERINGS: dict[str, tuple[str, list[tuple[str, str, int]]]] = {
    "a changed entry": (
        "update audit set entry = replace(entry, 'Two', 'Zwo') where thread_id = 'a' and seq = 2",
        [("changed", "a", 2)],
    ),
    "an entry with a new hash": (
        "update audit set entry = replace(entry, 'Two', 'Zwo'), hash = sha256('x') where thread_id = 'a' and seq = 2",
        [("changed", "a", 2), ("changed", "a", 3)],
    ),
    "not JSON any more": (
        "update audit set entry = 'gone' where thread_id = 'a' and seq = 2",
        [("changed", "a", 2)],
    ),
    "a removed entry": (
        "delete from audit where thread_id = 'a' and seq = 2",
        [("removed", "a", 2)],
    ),
    "the first entry removed": (
        "delete from audit where thread_id = 'a' and seq = 1",
        [("removed", "a", 1)],
    ),
    "two entries exchanged": (
        "update audit set seq = 12 where thread_id = 'a' and seq = 2;"
        "update audit set seq = 2 where thread_id = 'a' and seq = 3;"
        "update audit set seq = 3 where thread_id = 'a' and seq = 12",
        [("reordered", "a", 2), ("reordered", "a", 3)],
    ),
    "an entry of another thread": (
        "update audit set entry = (select entry from audit where thread_id = 'b' and seq = 2),"
        " hash = (select hash from audit where thread_id = 'b' and seq = 2) where thread_id = 'a' and seq = 2",
        [("reordered", "a", 2)],
    ),
    "a cut tail": (
        "delete from audit where thread_id = 'a' and seq = 4",
        [("truncated", "a", 4)],
    ),
    "a cut tail and its head": (
        "delete from audit where thread_id = 'a' and seq = 4;"
        "update audit_heads set seq = 3, hash = (select hash from audit where thread_id = 'a' and seq = 3)"
        " where thread_id = 'a'",
        [("truncated", "a", 4)],
    ),
    "a whole chain and its head removed": (
        "delete from audit where thread_id = 'a'; delete from audit_heads where thread_id = 'a'",
        [("truncated", "a", 4)],
    ),
    "a chain written anew": (
        "delete from audit where thread_id = 'a'; delete from audit_heads where thread_id = 'a';"
        "select audit_refusal_1('a', gen_random_uuid(), null, null, null, 'new', false, null, 'X')"
        " from generate_series(1, 4)",
        [("rewritten", "a", 4)],
    ),
    "an entry put on top": (
        "insert into audit select 'a', 5, e, sha256(hash || convert_to(e, 'UTF8')) from audit,"
        ' (select \'{"seq":5,"thread":"a"}\' as e) as made where thread_id = \'a\' and seq = 4',
        [("rewritten", "a", 5)],
    ),
    "a changed anchor": (
        "update audit_anchors set entry = replace(entry, '\"a\"', '\"b\"')",
        [("changed", "", 1)],
    ),
}


@pytest.fixture
async def kept(store: Store) -> Anchor:
    """Two threads with four entries each, and an anchor over them."""
    for number in ("One", "Two", "Three", "Four"):
        await store.audit.refused(Refusal("a", number))
        await store.audit.refused(Refusal("b", number))
    anchor = await store.audit.anchor()
    assert anchor is not None
    return anchor


@pytest.mark.parametrize(("statement", "expected"), TAMPERINGS.values(), ids=TAMPERINGS.keys())
async def test_tampering_is_found_and_named(
    store: Store, kept: Anchor, query: Query, statement: str, expected: list[tuple[str, str, int]]
) -> None:
    assert () == (await store.audit.verify(expected=kept)).findings
    query(f"{SAY_CHANGED}; {statement}")
    found = [(one.fault, one.thread_id or "", one.seq) for one in (await store.audit.verify()).findings]
    assert expected == [one for one in found if one[1] != "b"]


async def test_anchors_that_went_with_what_they_knew_are_missed_by_whoever_kept_one(
    store: Store, kept: Anchor, query: Query
) -> None:
    query(f"{SAY_CHANGED}; delete from audit; delete from audit_heads; delete from audit_anchors")
    assert () == (await store.audit.verify()).findings
    [finding] = (await store.audit.verify(expected=kept)).findings
    assert ("truncated", None, kept.number) == (finding.fault, finding.thread_id, finding.seq)


async def test_an_anchor_written_anew_is_not_the_one_that_was_kept(store: Store, kept: Anchor, query: Query) -> None:
    query(f"{SAY_CHANGED}; delete from audit; delete from audit_heads; delete from audit_anchors")
    await store.audit.refused(Refusal("a", "One"))
    await store.audit.anchor()
    [finding] = (await store.audit.verify(expected=kept)).findings
    assert "rewritten" == finding.fault


@pytest.mark.parametrize(
    "statement",
    [
        "update decisions set principal = 'sam'",
        "update decisions set decision = 'edit'",
        "update approvals set digest = repeat('0', 64)",
        "insert into decisions (thread_id, approval_id, id, decision, principal, vouched, self_approved, digest)"
        " select thread_id, id, gen_random_uuid(), 'approve', 'sam', false, false, digest from approvals",
    ],
)
async def test_rows_changed_with_the_triggers_off_are_found_by_what_the_chain_tells(
    runtime: Runtime, query: Query, statement: str
) -> None:
    [approval] = await runtime.aapprovals()
    await runtime.aresume("t", approve=approval.id, as_=KIM)
    assert [] == await faults(runtime)
    query(f"set session_replication_role = replica; {statement}")
    assert {("unrecorded", "t", None)} == set(await faults(runtime))


# -- who may write


@pytest.mark.parametrize("table", ["audit", "audit_anchors"])
@pytest.mark.parametrize("statement", ["update {} set hash = hash", "delete from {}", "truncate {}"])
async def test_even_the_owner_changes_nothing_unless_he_says_so(
    store: Store, kept: Anchor, query: Query, table: str, statement: str
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(statement.format(table))
    query(f"{SAY_CHANGED}; {statement.format(table)}")


async def test_a_worker_anchors_what_is_new(
    opened: Open, query: Query, caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    async with opened() as runtime:
        await runtime.ainvoke(REQUEST, thread_id="t")
        stop = asyncio.Event()
        with caplog.at_level("INFO", logger="standfast.worker"):
            working = asyncio.create_task(runtime.awork(stop=stop))
            while not query("select 1 from audit_anchors"):
                await asyncio.sleep(0.05)
            stop.set()
            await working
        last = (await runtime.averify_audit()).anchor
    assert last is not None
    assert f"audit anchor {last.number}:{last.hash}" in caplog.text
