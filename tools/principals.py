"""Who asks and who decides.

Invariant: a principal comes from whoever established it, never from what is being decided. A name that nobody
verified is marked so, and every record of it says so.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from langgraph_sdk.auth.types import StudioUser

from standfast.checkpoint import errors

OPERATING_SYSTEM: Final = "operating-system"
_LANGGRAPH: Final = "langgraph-auth"
_LONGEST: Final = 255


@dataclass(frozen=True)
class Principal:
    """A person or program: by name, within a tenant, with the groups it is in.

    `verified_by` says who established the name; None is nobody, the name is taken on the caller's word. One name in
    one tenant is one person, however he proved it.
    """

    name: str
    verified_by: str | None
    groups: frozenset[str] = frozenset()
    tenant: str = "default"

    def __post_init__(self) -> None:
        _require_name(self.name, "a principal's name")
        _require_name(self.tenant, "a principal's tenant")
        if isinstance(self.groups, str) or not all(isinstance(one, str) and one for one in self.groups):
            raise errors.InvalidRequest(f"the groups of {self.name!r} must be a collection of names")
        object.__setattr__(self, "groups", frozenset(self.groups))

    @property
    def on_word(self) -> bool:
        """Whether nobody verified the name."""
        return self.verified_by is None

    @classmethod
    def vouched(cls, name: str, *, groups: Iterable[str] = (), tenant: str = "default") -> Self:
        """Somebody whom the caller vouches for; marked so in every record."""
        return cls(name, None, frozenset(groups), tenant)

    @classmethod
    def verified(cls, name: str, *, by: str, groups: Iterable[str] = (), tenant: str = "default") -> Self:
        """Somebody whose name an authenticator has established; `by` names the authenticator in every record."""
        _require_name(by, "the name of an authenticator")
        return cls(name, by, frozenset(groups), tenant)

    @classmethod
    def operating_system(cls) -> Self:
        """The user that this process runs as; an account without a name, as in many containers, is `uid-N`."""
        try:
            name = getpass.getuser()
        except (OSError, KeyError, ImportError):
            name = f"uid-{os.getuid()}"
        return cls(name, OPERATING_SYSTEM)

    @classmethod
    def from_langgraph(cls, user: Any, *, groups: str = "groups", tenant: str = "tenant") -> Self:
        """The user that LangGraph's `Auth` handler has authenticated, as `ctx.user` or `server_info.user`.

        `groups` and `tenant` name the fields that the handler returned beside `identity`; one that is not there is
        empty. Raises `NotAuthenticated` for a user who is not authenticated, or whom Studio let in by itself.
        """
        fields = _Fields(user)
        identity = fields.get("identity")
        if isinstance(user, StudioUser) or fields.get("kind") == "StudioUser":
            raise errors.NotAuthenticated(
                'Studio let this user in without your Auth handler; set "disable_studio_auth": true in langgraph.json'
            )
        if not isinstance(identity, str) or fields.get("is_authenticated") is not True:
            raise errors.NotAuthenticated("LangGraph's Auth has not authenticated this user; nothing was done")
        return cls.verified(
            identity, by=_LANGGRAPH, groups=fields.get(groups) or (), tenant=fields.get(tenant) or "default"
        )


class _Fields:
    """A user of LangGraph's is an object, a mapping, or both."""

    def __init__(self, user: Any) -> None:
        self._user = user

    def get(self, name: str) -> Any:
        if isinstance(self._user, Mapping):
            # Of a mapping it is the handler's own answer, which LangGraph takes for authenticated unless it says no.
            return self._user.get(name, True if name == "is_authenticated" else None)
        found = getattr(self._user, name, None)
        if found is None and hasattr(self._user, "__contains__") and name in self._user:
            found = self._user[name]
        return found


def _require_name(given: object, what: str) -> None:
    if not isinstance(given, str) or not given.strip() or "\0" in given or len(given) > _LONGEST:
        raise errors.InvalidRequest(f"{what} must be 1 to {_LONGEST} characters without NUL, not {given!r:.40}")
