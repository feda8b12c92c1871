"""The policy for approvals: the rules of each operation, and the groups that they name.

Invariant: it is checked against the operations before anything runs; what it does not settle, a person decides.
What stands here for an operation replaces the rules of its declaration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

from standfast.checkpoint import errors
from standfast.checkpoint.approvals import Source, Terms
from standfast.checkpoint.groups import Groups
from standfast.tools.conditions import Condition
from standfast.tools.operations import Operation, Registry
from standfast.tools.principals import Principal
from standfast.tools.rules import ANYONE, NOBODY, Rule, asking, digest_of, rule_for

Elsewhere = Literal["table", "claims"]

Place = tuple[str | int, ...]
Members = Collection[str] | Elsewhere


@dataclass(frozen=True)
class ApprovalPolicy:
    """Who decides about which calls. `operations` are rules by an operation's name, the first that fits counts.

    `groups` are by a group's name the names of its members, "table" (they stand in the database's table of groups)
    or "claims" (people's own, as their authenticator vouches for them when they decide). `requester_may_decide` is
    what holds where a rule does not say; None is yes only where no authenticator is configured. `group_admins` is the
    group whose members change the table of groups; where an authenticator is configured, nobody else does. Raises
    `InvalidPolicy`.
    """

    operations: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    groups: Mapping[str, Members] = field(default_factory=dict)
    requester_may_decide: bool | None = None
    group_admins: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "operations", MappingProxyType({k: tuple(v) for k, v in self.operations.items()}))
        for name, members in self.groups.items():
            if name in (NOBODY, ANYONE):
                raise InvalidPlace(("groups", name), f"no group can be named {name!r}: that word has a meaning")
            if isinstance(members, str) and members not in get_args(Elsewhere):
                raise InvalidPlace(("groups", name), f"{name!r} is a list of names, or 'table', or 'claims'")
            if not members:
                raise InvalidPlace(("groups", name), f"nobody is in the group {name!r}")
        if self.group_admins is not None and self.group_admins not in self.groups:
            known = ", ".join(sorted(self.groups)) or "none"
            raise InvalidPlace(("group_admins",), f"there is no group {self.group_admins!r}; there are: {known}")
        for operation, rules in self.operations.items():
            for position, rule in enumerate(rules):
                self._check_group(("operations", operation, position, "approvers"), rule)

    def check(self, registry: Registry) -> None:
        """Refuse what does not fit the operations that there are. Raises `InvalidPolicy`."""
        for name, rules in self.operations.items():
            if name not in registry:
                known = ", ".join(sorted(one.name for one in registry))
                raise InvalidPlace(("operations", name), f"there is no operation {name!r}; there are: {known}")
            fields = registry.get(name).schema.model_fields
            for position, rule in enumerate(rules):
                looked_at = rule.when.arguments() if isinstance(rule.when, Condition) else set()
                if unknown := sorted(looked_at - fields.keys()):
                    raise InvalidPlace(
                        ("operations", name, position, "when"),
                        f"{name} has no argument {unknown[0]!r}; it takes {', '.join(fields)}",
                    )
        for one in registry:
            for rule in one.policy.rules:
                self._check_group(("operations", one.name), rule)

    def where_identity_is(self, *, established: bool) -> ApprovalPolicy:
        """The same, where an authenticator is configured or not."""
        return self if self.requester_may_decide is not None else replace(self, requester_may_decide=not established)

    def only(self, registry: Registry) -> ApprovalPolicy:
        """The same for these operations alone, where others are served elsewhere."""
        return replace(self, operations={name: rules for name, rules in self.operations.items() if name in registry})

    def rules(self, operation: Operation) -> Sequence[Rule]:
        """The rules of an operation: those that stand here, else those of its declaration."""
        return self.operations.get(operation.name, operation.policy.rules)

    def version(self, operation: Operation) -> str:
        """The version of an operation's rules; a grant under another one is void."""
        rules = self.rules(operation)
        if operation.name not in self.operations and not operation.policy.has_own_rules:
            return operation.policy.version
        return f"{operation.policy.version}+{digest_of(rules)}"

    def asks(self, operation: Operation, arguments: Mapping[str, Any], *, objected: bool) -> Rule | None:
        """The rule under which a person decides about a call, or None. `objected`: a check failed, so one does."""
        rules = self.rules(operation)
        rule = rule_for(rules, arguments)
        if rule.asks:
            return rule
        return asking(rules) if objected else None

    def terms(self, operation: Operation, rule: Rule) -> Terms:
        """The terms of a question under this rule, as they are now."""
        members = self.members(rule.group)
        may = rule.requester_may_decide
        return Terms(
            policy_version=self.version(operation),
            valid=rule.valid_for or operation.policy.valid,
            required=len(members or ()) if rule.required == "all" else rule.required,
            group=rule.group,
            source=self.source(rule.group) or "claims",
            approvers=members,
            requester_may_decide=self.requester_may_decide is not False if may is None else may,
            edit_needs_another=rule.edit_needs_another,
            reason_required=rule.reason_required,
            allowed=rule.decisions,
            remind_after=rule.remind_after,
        )

    def members(self, group: str | None) -> tuple[str, ...] | None:
        """The members of a listed group, sorted; None for anyone, and where they stand elsewhere."""
        found = self.groups.get(group) if group is not None else None
        return None if found is None or isinstance(found, str) else tuple(sorted(set(found)))

    def source(self, group: str | None) -> Source | None:
        """Where the members of a group stand; None for anyone, and for a group that is not named here."""
        found = self.groups.get(group) if group is not None else None
        return None if found is None else cast(Source, found) if isinstance(found, str) else "list"

    async def is_member(self, group: str, who: Principal, table: Groups) -> bool:
        """Whether somebody is in a group now: by its list, by the table, or by the claims that came with him."""
        source = self.source(group)
        if source == "table":
            return group in await table.of(who.name, tenant=who.tenant)
        return who.name in (self.members(group) or ()) if source == "list" else group in who.groups

    async def check_table(self, registry: Registry, table: Groups) -> None:
        """Refuse a rule that needs more people than the table of groups has. Raises `InvalidPolicy`."""
        for one in registry:
            for position, rule in enumerate(self.rules(one)):
                if rule.group is not None and self.source(rule.group) == "table" and rule.required != "all":
                    members = await table.members(rule.group)
                    if len(members) < rule.required:
                        raise InvalidPlace(
                            ("operations", one.name, position, "approvers"),
                            f"{rule.required} of {rule.group!r} must approve, and {len(members)} people are in it",
                        )

    def _check_group(self, place: Place, rule: Rule) -> None:
        group = rule.group
        if group is None:
            return
        if group not in self.groups:
            known = ", ".join(sorted(self.groups)) or "none"
            raise InvalidPlace(place, f"there is no group {group!r}; there are: {known}")
        members = self.members(group)
        if members is None and rule.required == "all":
            raise InvalidPlace(place, f"all of {group!r} cannot be asked: its members are not listed here")
        if members is not None and rule.required != "all" and rule.required > len(members):
            raise InvalidPlace(place, f"{rule.required} of {group!r} must approve, and it has {len(members)}")


class InvalidPlace(errors.InvalidPolicy):
    """What is wrong, and at which `place` of the policy; who has read it from a file adds where that is."""

    def __init__(self, place: Place, why: str, /, **data: Any) -> None:
        super().__init__(f"the policy, at {'.'.join(map(str, place))}: {why}", place=place, why=why, **data)
