"""Who acts is established by the authenticator, and whoever it has not established decides nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from standfast.checkpoint import errors
from standfast.graph import OIDC, ApprovalPolicy, Principal, Runtime
from standfast.graph.answers import Said
from tests.crash.support.scripted_model import call, script
from tests.servers.oidc import AUDIENCE, OIDCServer
from tests.servers.reports import ReportsServer

pytestmark = pytest.mark.guarantee("G6")

REQUEST = script([call("note", text="agreed")])


@pytest.fixture
async def runtime(opened: Callable[..., Any], oidc_server: OIDCServer) -> AsyncIterator[Runtime]:
    """A runtime with an authenticator, and a report that waits on the thread `t`, asked for by lee."""
    async with opened(authenticator=OIDC(oidc_server.issuer, AUDIENCE)) as found:
        await found.ainvoke(REQUEST, thread_id="t", token=oidc_server.token(sub="lee"))
        yield found


WAYS: dict[str, Callable[[Runtime, str, dict[str, Any]], Any]] = {
    "approve": lambda runtime, approval, who: runtime.aresume("t", approve=approval, **who),
    "edit": lambda runtime, approval, who: runtime.aresume("t", edit=approval, changes={"text": "x"}, **who),
    "answer": lambda runtime, _, who: runtime.aresume("t", {"type": "approve"}, **who),
    "decide": lambda runtime, approval, who: runtime.adecide(approval, Said("approve"), **who),
}
NOBODY: dict[str, Callable[[OIDCServer], dict[str, Any]]] = {
    "nobody": lambda _: {},
    "a vouched name": lambda _: {"as_": Principal.vouched("kim")},
    "the system's user": lambda _: {"as_": Principal.operating_system()},
    "an expired token": lambda server: {"token": server.token(exp=int(time.time()) - 3600)},
    "a token for somebody else": lambda server: {"token": server.token(aud="somebody-else")},
}


@pytest.mark.parametrize("who", NOBODY.values(), ids=NOBODY.keys())
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
async def test_whoever_is_not_established_decides_nothing(
    runtime: Runtime, oidc_server: OIDCServer, reports_server: ReportsServer, way: Any, who: Any
) -> None:
    [approval] = await runtime.aapprovals()
    with pytest.raises(errors.NotAuthenticated):
        await way(runtime, approval.id, who(oidc_server))
    assert "open" == (await runtime.store.approvals.get(approval.id)).state
    assert [] == reports_server.effects()


async def test_without_its_provider_nobody_decides(runtime: Runtime, oidc_server: OIDCServer) -> None:
    fresh = OIDC(oidc_server.issuer, AUDIENCE, timeout_seconds=1.0)
    async with Runtime(runtime._graph, database_url=runtime._url, authenticator=fresh) as other:
        [approval] = await other.aapprovals()
        token = oidc_server.token()
        oidc_server.stop()
        with pytest.raises(errors.AuthenticatorUnavailable):
            await other.aresume("t", approve=approval.id, token=token)
        assert "open" == (await other.store.approvals.get(approval.id)).state


async def test_a_token_decides_as_the_person_whom_it_proves(runtime: Runtime, oidc_server: OIDCServer) -> None:
    [approval] = await runtime.aapprovals()
    end = await runtime.aresume("t", approve=approval.id, token=oidc_server.token())
    [decided] = await runtime.aapprovals(state=None)
    assert ("succeeded", "lee") == (end.status, decided.requested_by)
    assert ("kim", False, False) == (decided.decided_by, decided.vouched, decided.self_approved)
    assert f"oidc:{oidc_server.issuer}" == decided.verified_by
    told = [one.facts for one in await runtime.aaudit("t") if one.facts["kind"] == "decision"]
    assert [("kim", False, decided.verified_by)] == [(one["by"], one["vouched"], one["verified_by"]) for one in told]


async def test_requests_and_events_need_a_name_too(runtime: Runtime, oidc_server: OIDCServer) -> None:
    with pytest.raises(errors.NotAuthenticated):
        await runtime.ainvoke(REQUEST, thread_id="other")
    with pytest.raises(errors.NotAuthenticated):
        await runtime.asubmit(REQUEST, thread_id="other", as_=Principal.vouched("lee"))
    with pytest.raises(errors.NotAuthenticated):
        await runtime.aemit("paid", id="1")
    with pytest.raises(errors.UnknownThread):
        await runtime.astate("other")
    assert 0 == await runtime.aemit("paid", id="1", token=oidc_server.token())


async def test_a_token_beside_a_principal_is_refused(runtime: Runtime, oidc_server: OIDCServer) -> None:
    with pytest.raises(errors.InvalidRequest):
        await runtime.aprincipal(Principal.verified("kim", by="sso"), token=oidc_server.token())


async def test_a_token_that_nobody_can_check_is_refused(opened: Callable[..., Any], oidc_server: OIDCServer) -> None:
    async with opened() as runtime:
        with pytest.raises(errors.NotAuthenticated):
            await runtime.ainvoke(REQUEST, thread_id="t", token=oidc_server.token())


async def test_vouched_names_are_accepted_beside_an_authenticator_only_where_it_is_said(
    opened: Callable[..., Any], oidc_server: OIDCServer
) -> None:
    authenticator = OIDC(oidc_server.issuer, AUDIENCE)
    async with opened(authenticator=authenticator, accept_vouched=True) as runtime:
        assert (await runtime.aprincipal(Principal.vouched("lee"))).on_word
        assert not (await runtime.aprincipal(token=oidc_server.token())).on_word


async def test_the_systems_user_proves_nothing_on_a_server_that_others_reach(opened: Callable[..., Any]) -> None:
    async with opened() as runtime:
        found = await runtime.aprincipal(Principal.operating_system())
    assert (Principal.operating_system().name, True) == (found.name, found.on_word)


async def test_a_function_of_your_own_establishes_who_acts(opened: Callable[..., Any]) -> None:
    async def badge(credential: str) -> Principal:
        if credential != "badge-7":
            raise PermissionError
        return Principal.verified("kim", by="badge", groups={"finance"})

    async with opened(authenticator=badge) as runtime:
        assert Principal("kim", "badge", frozenset({"finance"})) == await runtime.aprincipal(token="badge-7")
        with pytest.raises(errors.NotAuthenticated):
            await runtime.aprincipal(token="badge-8")


async def test_the_answer_of_langgraphs_auth_decides(runtime: Runtime) -> None:
    user = {"identity": "kim", "is_authenticated": True, "groups": ["finance"]}
    [approval] = await runtime.aapprovals()
    decided = await runtime.adecide(approval.id, Said("approve"), as_=Principal.from_langgraph(user))
    assert ("approved", "kim", False) == (decided.state, decided.decided_by, decided.vouched)


# -- who changes groups


ADMINS = ApprovalPolicy(groups={"admins": ["pat"]}, group_admins="admins")
CLAIMED = ApprovalPolicy(groups={"admins": "claims"}, group_admins="admins")
TABLE = ApprovalPolicy(groups={"admins": "table"}, group_admins="admins")


async def groups_told(runtime: Runtime) -> list[tuple[Any, ...]]:
    facts = [one.facts async for one in runtime.store.audit.entries("")]
    return [(one["kind"], one.get("by"), one.get("error", one.get("verified_by")), one.get("vouched")) for one in facts]


async def test_without_an_administrators_group_nobody_with_a_token_changes_groups(
    opened: Callable[..., Any], oidc_server: OIDCServer
) -> None:
    async with opened(authenticator=OIDC(oidc_server.issuer, AUDIENCE)) as runtime:
        with pytest.raises(errors.NotPermitted, match="group_admins") as refused:
            await runtime.aset_member("finance", "kim", token=oidc_server.token())
        with pytest.raises(errors.NotAuthenticated):
            await runtime.aset_member("finance", "kim", as_=Principal.vouched("pat"))
        assert ("no_admins", []) == (refused.value.why, await runtime.amembers())
        assert [("refusal", "kim", "NotPermitted", False), ("refusal", None, "NotAuthenticated", None)] == (
            await groups_told(runtime)
        )


async def test_only_administrators_change_groups_each_in_his_own_tenant(
    opened: Callable[..., Any], oidc_server: OIDCServer
) -> None:
    who = OIDC(oidc_server.issuer, AUDIENCE)
    by = f"oidc:{oidc_server.issuer}"
    async with opened(authenticator=who, policy=ADMINS) as runtime:
        for others in ({"sub": "kim"}, {"sub": "kim", "groups": ["admins"]}):  # a list is a list, whatever is claimed
            with pytest.raises(errors.NotPermitted, match="not in the group 'admins'"):
                await runtime.aset_member("finance", "kim", token=oidc_server.token(**others))
        with pytest.raises(errors.NotPermitted, match="tenant"):
            await runtime.aset_member("finance", "kim", tenant="other", token=oidc_server.token(sub="pat"))
        assert await runtime.aset_member("finance", "kim", token=oidc_server.token(sub="pat"))
        assert ("group", "pat", by, False) == (await groups_told(runtime))[-1]
    async with opened(authenticator=who, policy=CLAIMED) as runtime:
        await runtime.store.groups.set("admins", "lee", member=True, by="x", verified_by=None, tenant="default")
        with pytest.raises(errors.NotPermitted):
            await runtime.aset_member("finance", "lee", token=oidc_server.token(sub="lee"))
        assert await runtime.aset_member("finance", "lee", token=oidc_server.token(sub="zoe", groups=["admins"]))
    async with opened(authenticator=who, policy=TABLE) as runtime:
        assert await runtime.aset_member("finance", "zoe", token=oidc_server.token(sub="lee"))
        await runtime.aset_member("admins", "lee", member=False, token=oidc_server.token(sub="lee"))
        with pytest.raises(errors.NotPermitted):
            await runtime.aset_member("finance", "ian", token=oidc_server.token(sub="lee"))
    assert "finance" not in {one.group for one in await members_of(opened, "ian")}


async def members_of(opened: Callable[..., Any], name: str) -> list[Any]:
    async with opened() as runtime:
        return [one for one in await runtime.amembers() if one.principal == name]


async def test_without_an_authenticator_whoever_changes_groups_is_told_as_vouched(opened: Callable[..., Any]) -> None:
    async with opened() as runtime:
        assert await runtime.aset_member("finance", "kim", as_=Principal.vouched("pat"))
        assert [("group", "pat", None, True)] == await groups_told(runtime)
