"""Rules: who decides about a call, and under what terms.

Invariant: a rule that cannot be decided asks a person. A rule is data with a digest, so that a grant can be bound
to the rules that it was given under.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from standfast.tools.conditions import Condition

NOBODY: Final = "nobody"
ANYONE: Final = "anyone"
Predicate = Callable[[Mapping[str, Any]], bool | None]


class Rule(BaseModel):
    """Who decides about the calls for which `when` holds; without `when`, about all.

    `approvers` is "nobody" (the call needs no person), "anyone", or a group's name. `required` of them must approve,
    each once; "all" is every member of the group. `remind_after` and `valid_for` (else the operation's `valid`, 7
    days) count from the question; after `valid_for` it is rejected. `requester_may_decide` unset means yes only
    while no authenticator is configured. With `edit_needs_another` an edit needs another person's approval.
    `decisions` are those that may be given. `when` in code may be a function too; what it raises is undecided.
    Raises pydantic's `ValidationError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    when: Condition | Predicate | None = None
    approvers: str = Field(ANYONE, min_length=1)
    required: int | Literal["all"] = 1
    remind_after: timedelta | None = Field(None, strict=False)
    valid_for: timedelta | None = Field(None, strict=False)
    requester_may_decide: bool | None = None
    edit_needs_another: bool = False
    reason_required: bool = False
    decisions: tuple[Literal["approve", "reject", "edit", "respond"], ...] = Field(
        ("approve", "reject", "edit", "respond"), strict=False
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.required != "all" and self.required < 1:
            raise ValueError("required is at least 1")
        if self.approvers == NOBODY and self.model_fields_set - {"when", "approvers"}:
            raise ValueError("nobody decides under this rule, so it takes nothing but when")
        if self.required == "all" and self.group is None:
            raise ValueError('required = "all" needs a group')
        if any(one is not None and one <= timedelta(0) for one in (self.remind_after, self.valid_for)):
            raise ValueError("remind_after and valid_for are positive")
        if not {"approve", "reject"} <= set(self.decisions):
            raise ValueError("approve and reject are always among the decisions")
        return self

    @property
    def group(self) -> str | None:
        """The group that decides, if not just anyone does."""
        return None if self.approvers in (NOBODY, ANYONE) else self.approvers

    @property
    def asks(self) -> bool:
        """Whether it asks a person."""
        return self.approvers != NOBODY

    def holds(self, arguments: Mapping[str, Any]) -> bool | None:
        """Whether the rule is for a call with these arguments; None if that cannot be said."""
        if self.when is None:
            return True
        if isinstance(self.when, Condition):
            return self.when.holds(arguments)
        try:
            held = self.when(arguments)
        except Exception:  # noqa: BLE001 - the user's code: what it cannot decide, a person does
            return None
        return held if isinstance(held, bool) else None


ASK: Final = Rule()
LET_THROUGH: Final = Rule(approvers=NOBODY)


def rule_for(rules: Sequence[Rule], arguments: Mapping[str, Any]) -> Rule:
    """The first rule that is for this call. None that is, or one that would let through but is undecided: a person."""
    sure = True
    for rule in rules:
        held = rule.holds(arguments)
        if held is None and not rule.asks:
            sure = False
        elif held is not False and (rule.asks or sure):
            return rule
    return asking(rules)


def asking(rules: Sequence[Rule]) -> Rule:
    """The rule under which a person is asked about a call that the rules would not ask about."""
    return next((one for one in rules if one.asks), ASK)


def digest_of(rules: Sequence[Rule]) -> str:
    """The version of some rules: changes when they change. A function counts by its name."""
    described = [
        {
            **one.model_dump(mode="json", exclude={"when"}),
            "when": one.when.model_dump(mode="json", exclude_unset=True)
            if isinstance(one.when, Condition)
            else one.when and f"{one.when.__module__}.{one.when.__qualname__}",
        }
        for one in rules
    ]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]
