"""From a credential to a principal: who may vouch for a name, and how that is checked.

Invariant: fails closed. Whatever goes wrong between the credential and the principal is `NotAuthenticated`; nothing
of a token is believed, or looked up, before its algorithm is one that was allowed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import jwt

from standfast.checkpoint import errors
from standfast.tools.principals import Principal

Authenticator = Callable[[str], Awaitable[Principal]]
"""An async function from a credential to whom it proves. It raises for a credential that proves nothing."""

_ASYMMETRIC: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
_LONGEST_TOKEN: Final = 16_384
_AUTHENTICATOR_SECONDS: Final = 15.0


async def authenticate(authenticator: Authenticator, credential: str) -> Principal:
    """Whom the credential proves. Raises `NotAuthenticated`, and `AuthenticatorUnavailable` if that cannot be told."""
    try:
        async with asyncio.timeout(_AUTHENTICATOR_SECONDS):
            principal = await authenticator(credential)
    except errors.NotAuthenticated:
        raise
    except PermissionError as error:
        raise errors.NotAuthenticated("the authenticator refused the credential; nothing was done") from error
    except (OSError, httpx.TransportError) as error:  # TimeoutError too
        raise errors.AuthenticatorUnavailable(
            f"the authenticator did not answer ({type(error).__name__}); nothing was done, try again later"
        ) from error
    except Exception as error:  # the message of a foreign error may quote the credential: only its type is told
        raise errors.NotAuthenticated(
            f"the authenticator failed with {type(error).__name__}; nothing was done"
        ) from error
    if not isinstance(principal, Principal):
        raise errors.NotAuthenticated(
            f"the authenticator returned {type(principal).__name__}, not a Principal; nothing was done"
        )
    return principal


class OIDC:
    """Verifies tokens of an OpenID provider: signed JWTs, by the keys that the provider publishes.

    `issuer`: its URL, exactly as tokens name it. `audience`: what tokens must be made out to; one of them is enough.
    `jwks_url`: where the keys are; without it the provider's own configuration says so. `algorithms`: those that are
    allowed, asymmetric ones only. `name_claim`: the name that a person has in every record; "email" is compared
    without case, and refused if the provider says that it is not verified. `groups_claim` and `tenant_claim` may lead
    inside by dots. Keys are kept for `cache_seconds`; a key that is not among them is looked for again, once in
    `refetch_seconds` at most. `leeway_seconds` is how far clocks may differ. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        issuer: str,
        audience: str | Sequence[str],
        *,
        jwks_url: str | None = None,
        algorithms: Sequence[str] = ("RS256", "ES256"),
        name_claim: str = "sub",
        groups_claim: str = "groups",
        tenant_claim: str | None = None,
        leeway_seconds: float = 30.0,
        cache_seconds: float = 300.0,
        refetch_seconds: float = 5.0,
        timeout_seconds: float = 5.0,
    ) -> None:
        weak = sorted(set(algorithms) - _ASYMMETRIC)
        if weak or not algorithms:
            raise errors.ConfigurationError(
                f"algorithms must be some of {', '.join(sorted(_ASYMMETRIC))}, not {', '.join(weak) or 'none at all'}"
            )
        self._audience = [audience] if isinstance(audience, str) else list(audience)
        if not self._audience or not all(self._audience):
            raise errors.ConfigurationError("the audience is empty: a token for anybody would be taken")
        _require_https(issuer, "issuer")
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._algorithms = list(algorithms)
        self._name_claim = name_claim
        self._groups_claim = groups_claim
        self._tenant_claim = tenant_claim
        self._leeway = leeway_seconds
        self._cache_seconds = cache_seconds
        self._refetch_seconds = refetch_seconds
        self._timeout = timeout_seconds
        self._discovering = threading.Lock()
        self._keys: jwt.PyJWKClient | None = None if jwks_url is None else self._client(jwks_url)

    async def __call__(self, credential: str) -> Principal:
        """Whom the token proves. Raises `NotAuthenticated` and `AuthenticatorUnavailable`."""
        try:
            claims = await asyncio.to_thread(self._claims, credential.strip())
        except (jwt.PyJWKClientConnectionError, jwt.PyJWKSetError, httpx.HTTPError, OSError, ValueError) as error:
            raise errors.AuthenticatorUnavailable(
                f"the keys of {self._issuer} cannot be had ({type(error).__name__}); nothing was done, try again later"
            ) from error
        except jwt.PyJWTError as error:
            raise errors.NotAuthenticated(
                f"the token is refused: {str(error).rstrip('.')}; get a new one from {self._issuer}"
            ) from error
        return self._principal(claims)

    def _claims(self, token: str) -> Mapping[str, Any]:
        if len(token) > _LONGEST_TOKEN:
            raise jwt.DecodeError(f"it has more than {_LONGEST_TOKEN:,} characters")
        try:
            header = jwt.get_unverified_header(token)
        except ValueError as error:
            raise jwt.DecodeError("it is not a JWT") from error
        if header.get("alg") not in self._algorithms:
            raise jwt.InvalidAlgorithmError(f"its algorithm {header.get('alg')!r:.20} is not allowed")
        if not isinstance(header.get("kid"), str):
            raise jwt.DecodeError("it does not say which key has signed it")
        with self._discovering:
            keys = self._keys = self._keys or self._client(self._discover())
        claims: Mapping[str, Any] = jwt.decode(
            token,
            keys.get_signing_key(header["kid"]),
            algorithms=self._algorithms,
            audience=self._audience,
            issuer=self._issuer,
            leeway=self._leeway,
            options={"require": ["exp", "iss", "aud"]},
        )
        return claims

    def _client(self, url: str) -> jwt.PyJWKClient:
        _require_https(url, "jwks_url")
        return jwt.PyJWKClient(
            url, lifespan=self._cache_seconds, timeout=self._timeout, cooldown_duration=self._refetch_seconds
        )

    def _discover(self) -> str:
        place = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        found = httpx.get(place, timeout=self._timeout).raise_for_status().json()
        if not isinstance(found, dict) or found.get("issuer") != self._issuer:
            raise jwt.InvalidIssuerError(f"{place} is the configuration of another issuer")
        return str(found.get("jwks_uri"))

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        name = _claim(claims, self._name_claim)
        if not isinstance(name, str) or not name.strip():
            raise errors.NotAuthenticated(f"the token has no claim {self._name_claim!r} to take a name from")
        if self._name_claim == "email":
            if claims.get("email_verified") is False:
                raise errors.NotAuthenticated("the token's email is not verified by its issuer; nothing was done")
            name = name.strip().lower()
        groups = _claim(claims, self._groups_claim)
        groups = [groups] if isinstance(groups, str) else groups or []
        if not isinstance(groups, list) or not all(isinstance(one, str) and one for one in groups):
            raise errors.NotAuthenticated(f"the token's claim {self._groups_claim!r} is not a list of names")
        tenant = "default" if self._tenant_claim is None else _claim(claims, self._tenant_claim)
        try:
            return Principal.verified(name, by=f"oidc:{self._issuer}", groups=groups, tenant=tenant)
        except errors.InvalidRequest as error:
            raise errors.NotAuthenticated(f"the token names nobody who can act: {error}") from error


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, which may have dots of its own, else by its path."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _require_https(url: str, what: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")):
        return
    raise errors.ConfigurationError(
        f"the {what} must be an https URL, not {url!r}: whoever can change it on its way decides who everybody is"
    )
