"""Who acts: what a runtime believes of whoever asks, decides, answers or emits.

Invariant: with an authenticator, a name that it has not established is refused unless the runtime was told to accept
vouched names; without one, a name is taken on the caller's word and marked so.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace

from standfast.checkpoint import errors
from standfast.checkpoint.settings import Settings
from standfast.tools.authenticators import OIDC, Authenticator, authenticate
from standfast.tools.principals import OPERATING_SYSTEM, Principal


@dataclass(frozen=True)
class Identity:
    """What is believed. `local` is whether the system's user is proof enough: the embedded server admits no other."""

    authenticator: Authenticator | None = None
    accept_vouched: bool = False
    local: bool = False

    async def who(self, as_: Principal | None, token: str | None) -> Principal:
        """Whoever acts, by a credential, a principal that was established before, or the system's user.

        Raises `NotAuthenticated`, `AuthenticatorUnavailable`, and `InvalidRequest` for two at once.
        """
        if token is not None:
            if as_ is not None:
                raise errors.InvalidRequest("give a token or a principal, not both: the token says who it is")
            return self._accepted(await self._by(token))
        if as_ is not None and not isinstance(as_, Principal):
            raise errors.InvalidRequest(
                f"as_ takes a Principal, not {type(as_).__name__} {as_!r:.60}; on your word: Principal.vouched(NAME)"
            )
        principal = as_ or Principal.vouched(Principal.operating_system().name)
        if principal.verified_by == OPERATING_SYSTEM and not (self.local and self.authenticator is None):
            principal = replace(principal, verified_by=None)
        return self._accepted(principal)

    async def _by(self, token: str) -> Principal:
        if self.authenticator is None:
            raise errors.NotAuthenticated(
                "there is a token but no authenticator to check it: give Runtime(authenticator=...), "
                "or set STANDFAST_OIDC_ISSUER and STANDFAST_OIDC_AUDIENCE"
            )
        return await authenticate(self.authenticator, token)

    def _accepted(self, principal: Principal) -> Principal:
        if principal.on_word and self.authenticator is not None and not self.accept_vouched:
            raise errors.NotAuthenticated(
                f"nobody has verified that this is {principal.name!r}; give a token "
                "(in Python token=..., on the command line --token-file or STANDFAST_TOKEN)"
            )
        return principal


def configured_authenticator(settings: Settings) -> Authenticator | None:
    """The authenticator that the environment names, if it names one. Raises `ConfigurationError`."""
    if settings.authenticator is not None:
        return _at(settings.authenticator)
    if settings.oidc_issuer is None:
        return None
    if settings.oidc_audience is None:
        raise errors.ConfigurationError(
            "STANDFAST_OIDC_ISSUER is set and STANDFAST_OIDC_AUDIENCE is not: a token for anybody would be taken"
        )
    return OIDC(
        settings.oidc_issuer,
        settings.oidc_audience,
        jwks_url=settings.oidc_jwks_url,
        name_claim=settings.oidc_name_claim,
        groups_claim=settings.oidc_groups_claim,
    )


def _at(place: str) -> Authenticator:
    module, colon, attribute = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise errors.ConfigurationError(f"STANDFAST_AUTHENTICATOR {place!r} cannot be loaded: {error}") from error
    if not callable(found):
        raise errors.ConfigurationError(
            f"STANDFAST_AUTHENTICATOR takes MODULE:ATTR of an async function, such as my_company:authenticate, "
            f"not {place!r}"
        )
    authenticator: Authenticator = found
    return authenticator
