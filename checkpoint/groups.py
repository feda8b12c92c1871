"""Groups as rows: who is in which, beside what people's own tokens claim.

Invariant: a change is in the audit, in the transaction that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from standfast.checkpoint.database import Database
from standfast.checkpoint.statements import statements

_SQL = statements("groups")


@dataclass(frozen=True)
class Member:
    """One person in one group."""

    group: str
    principal: str
    added_by: str
    added_at: datetime


class Groups:
    """The rows of groups; a group is there as long as somebody is in it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(
        self, group: str, principal: str, *, member: bool, by: str, verified_by: str | None, tenant: str
    ) -> bool:
        """Put somebody into a group, or take him out. False if he was (or was not) in it before.

        `verified_by` is who established the name of `by`; None is nobody.
        """
        params = {
            "tenant": tenant,
            "group": group,
            "principal": principal,
            "member": member,
            "who": by,
            "verified_by": verified_by,
        }
        row = await self._database.fetch_one(_SQL["set"], params)
        assert row is not None
        return bool(row["changed"])

    async def of(self, principal: str, *, tenant: str = "default") -> frozenset[str]:
        """The groups that somebody is in."""
        rows = await self._database.fetch(_SQL["of"], {"tenant": tenant, "principal": principal})
        return frozenset(row["name"] for row in rows)

    async def members(self, group: str, *, tenant: str = "default") -> tuple[str, ...]:
        """Who is in a group, by name; nobody is in one that is not known."""
        rows = await self._database.fetch(_SQL["members"], {"tenant": tenant, "group": group})
        return tuple(row["principal"] for row in rows)

    async def list(self, group: str | None = None, *, tenant: str = "default") -> list[Member]:
        """The members of one group, or of all, by name."""
        rows = await self._database.fetch(_SQL["list"], {"tenant": tenant, "group": group})
        return [Member(row["name"], row["principal"], row["added_by"], row["added_at"]) for row in rows]
