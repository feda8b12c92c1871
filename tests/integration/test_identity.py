"""Who acts is established by the authenticator, and whoever it has not established decides nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from standfast.checkpoint import errors
from standfast.graph import OIDC, Principal, Runtime
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
