"""A token proves a name only if the provider signed it, for us, for now. Real keys, a real provider over HTTP."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from standfast.checkpoint import errors
from standfast.graph import OIDC, Principal
from standfast.tools.authenticators import authenticate
from tests.servers.oidc import AUDIENCE, OIDCServer

pytestmark = pytest.mark.guarantee("G6")


def oidc(server: OIDCServer, **options: Any) -> OIDC:
    return OIDC(server.issuer, AUDIENCE, **{"refetch_seconds": 0.0, **options})


def _segment(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _unsigned(server: OIDCServer, algorithm: str) -> str:
    return f"{_segment({'alg': algorithm, 'typ': 'JWT', 'kid': server.kid})}.{_segment(server.claims())}."


def _signed_by_public_key(server: OIDCServer) -> str:
    """RS taken for HS: the public key, which everybody has, used as the shared secret."""
    body = f"{_segment({'alg': 'HS256', 'typ': 'JWT', 'kid': server.kid})}.{_segment(server.claims())}"
    signature = hmac.digest(server.public_pem(), body.encode(), "sha256")
    return f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _by_another_key(server: OIDCServer) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return jwt.encode(server.claims(), key, "RS256", headers={"kid": server.kid})


def _changed_after_signing(server: OIDCServer) -> str:
    head, _, signature = server.token().split(".")
    return f"{head}.{_segment(server.claims(sub='the-boss'))}.{signature}"


def _key_in_its_own_header(server: OIDCServer) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    own = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return jwt.encode(server.claims(), key, "ES256", headers={"kid": server.kid, "jwk": own})


FORGERIES: dict[str, Callable[[OIDCServer], str]] = {
    "signed with another key": _by_another_key,
    "changed after it was signed": _changed_after_signing,
    "its own key in its header": _key_in_its_own_header,
    "alg=none": lambda server: _unsigned(server, "none"),
    "alg=None": lambda server: _unsigned(server, "None"),
    "no signature": lambda server: _unsigned(server, "RS256"),
    "HS256 with the public key": _signed_by_public_key,
    "expired": lambda server: server.token(exp=int(time.time()) - 60),
    "without an expiry": lambda server: server.token(exp=None),
    "not yet valid": lambda server: server.token(nbf=int(time.time()) + 60),
    "for another audience": lambda server: server.token(aud="somebody-else"),
    "for no audience": lambda server: server.token(aud=None),
    "of another issuer": lambda server: server.token(iss="https://evil.example.com"),
    "of no issuer": lambda server: server.token(iss=None),
    "signed with a key that is not published": lambda server: server.token(kid="unknown"),
    "without a name": lambda server: server.token(sub=None),
    "with a blank name": lambda server: server.token(sub=" "),
    "with groups that are no names": lambda server: server.token(groups=[{"name": "admins"}]),
    "no token at all": lambda _: "",
    "not a token": lambda _: "kim",
    "endless": lambda _: "a" * 100_000,
    "not even text": lambda _: "\ud800.\u0000.é",
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
async def test_a_token_that_proves_nothing_is_refused(oidc_server: OIDCServer, forge: Callable[..., str]) -> None:
    authenticator = oidc(oidc_server, leeway_seconds=1.0)
    with pytest.raises(errors.NotAuthenticated) as refused:
        await authenticate(authenticator, forge(oidc_server))
    assert not refused.value.transient
    token = forge(oidc_server)
    assert not token or token not in str(refused.value)


async def test_a_good_token_is_the_person_in_its_groups(oidc_server: OIDCServer) -> None:
    authenticator = oidc(oidc_server, groups_claim="realm.roles", tenant_claim="org")
    found = await authenticator(oidc_server.token(realm={"roles": ["finance", "legal"]}, org="acme"))
    assert Principal("kim", f"oidc:{oidc_server.issuer}", frozenset({"finance", "legal"}), "acme") == found


async def test_one_person_under_two_tokens_is_one_name(oidc_server: OIDCServer) -> None:
    by_subject, by_email = oidc(oidc_server), oidc(oidc_server, name_claim="email")
    laptop = oidc_server.token(jti="1", email="Kim@Example.com", email_verified=True)
    seen = {await by_subject(laptop)}, {(await by_email(laptop)).name}
    oidc_server.rotate()
    phone = oidc_server.token(jti="2", email="kim@example.com", exp=int(time.time()) + 60)
    assert ({await by_subject(phone)}, {"kim@example.com"}) == seen
    assert "kim@example.com" == (await by_email(phone)).name


async def test_an_email_that_its_issuer_has_not_verified_is_no_name(oidc_server: OIDCServer) -> None:
    with pytest.raises(errors.NotAuthenticated):
        await oidc(oidc_server, name_claim="email")(oidc_server.token(email="kim@example.com", email_verified=False))


async def test_a_rotated_key_is_found_and_the_old_one_is_refused(oidc_server: OIDCServer) -> None:
    authenticator = oidc(oidc_server)
    before = oidc_server.token()
    assert "kim" == (await authenticator(before)).name
    oidc_server.rotate()
    assert "kim" == (await authenticator(oidc_server.token())).name
    with pytest.raises(errors.NotAuthenticated):
        await authenticator(before)


async def test_keys_are_fetched_once_however_many_unknown_keys_are_named(oidc_server: OIDCServer) -> None:
    authenticator = oidc(oidc_server, refetch_seconds=3600.0)
    await asyncio.gather(*(authenticator(oidc_server.token()) for _ in range(20)))
    for number in range(20):
        with pytest.raises(errors.NotAuthenticated):
            await authenticator(oidc_server.token(kid=f"made-up-{number}"))
    assert 1 == oidc_server.requests.count("/keys")


async def test_a_forged_algorithm_makes_nobody_fetch_keys(oidc_server: OIDCServer) -> None:
    with pytest.raises(errors.NotAuthenticated):
        await oidc(oidc_server)(_unsigned(oidc_server, "none"))
    assert [] == oidc_server.requests


@pytest.mark.parametrize("how", ["discovered", "named"])
async def test_without_its_keys_nobody_is_let_in(oidc_server: OIDCServer, how: str) -> None:
    jwks_url = oidc_server.jwks_url if how == "named" else None
    authenticator = OIDC(oidc_server.issuer, AUDIENCE, jwks_url=jwks_url, timeout_seconds=1.0)
    token = oidc_server.token()
    oidc_server.stop()
    with pytest.raises(errors.AuthenticatorUnavailable) as refused:
        await authenticator(token)
    assert refused.value.transient


async def test_the_configuration_of_another_issuer_is_not_believed(oidc_server: OIDCServer) -> None:
    authenticator = OIDC(oidc_server.issuer + "/", AUDIENCE)
    with pytest.raises(errors.NotAuthenticated):
        await authenticator(oidc_server.token(iss=oidc_server.issuer + "/"))
    assert "/keys" not in oidc_server.requests


@pytest.mark.parametrize(
    ("options", "issuer"),
    [
        ({"algorithms": ["HS256"]}, "https://id.example.com"),
        ({"algorithms": ["none"]}, "https://id.example.com"),
        ({"algorithms": []}, "https://id.example.com"),
        ({"audience": []}, "https://id.example.com"),
        ({"audience": ""}, "https://id.example.com"),
        ({}, "http://id.example.com"),
        ({"jwks_url": "file:///etc/passwd"}, "https://id.example.com"),
    ],
)
def test_a_set_up_that_would_let_anybody_in_is_refused_at_the_start(options: dict[str, Any], issuer: str) -> None:
    with pytest.raises(errors.ConfigurationError):
        OIDC(issuer, **{"audience": AUDIENCE, **options})


async def _slow(_: str) -> Principal:
    raise TimeoutError


async def _away(_: str) -> Principal:
    raise ConnectionRefusedError("10.0.0.7")


async def _denies(_: str) -> Principal:
    raise PermissionError


async def _buggy(credential: str) -> Principal:
    raise KeyError(credential)


async def _name_only(_: str) -> Any:
    return "kim"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_slow, errors.AuthenticatorUnavailable),
        (_away, errors.AuthenticatorUnavailable),
        (_denies, errors.NotAuthenticated),
        (_buggy, errors.NotAuthenticated),
        (_name_only, errors.NotAuthenticated),
    ],
)
async def test_an_authenticator_of_your_own_that_fails_lets_nobody_in(function: Any, expected: type[Exception]) -> None:
    with pytest.raises(errors.NotAuthenticated) as refused:
        await authenticate(function, "secret-credential")
    assert expected is type(refused.value)
    assert "secret-credential" not in str(refused.value)
