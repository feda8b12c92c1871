"""Conditions and rules: what they decide, and that what they cannot decide goes to a person."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from standfast.tools.conditions import Condition
from standfast.tools.rules import ANYONE, LET_THROUGH, NOBODY, Rule, digest_of, rule_for

OVER_500 = Condition(argument="amount", over=500)


@pytest.mark.parametrize(
    ("condition", "arguments", "expected"),
    [
        ({"argument": "amount", "over": 500}, {"amount": 501}, True),
        ({"argument": "amount", "over": 500}, {"amount": 500}, False),
        ({"argument": "amount", "over": 500}, {"amount": "500.01"}, True),
        ({"argument": "amount", "over": "0.1"}, {"amount": 0.1}, False),
        ({"argument": "amount", "over": 500}, {"amount": "1e9"}, True),
        ({"argument": "amount", "over": 500}, {"amount": True}, None),
        ({"argument": "amount", "over": 500}, {"amount": "lots"}, None),
        ({"argument": "amount", "over": 500}, {"amount": "NaN"}, None),
        ({"argument": "amount", "over": 500}, {"amount": float("inf")}, None),
        ({"argument": "amount", "over": 500}, {"amount": [501]}, None),
        ({"argument": "amount", "over": 500}, {}, None),
        ({"argument": "amount", "at_most": 500}, {"amount": 500}, True),
        ({"argument": "target.env", "equals": "prod"}, {"target": {"env": "prod"}}, True),
        ({"argument": "target.env", "equals": "prod"}, {"target": "prod"}, None),
        ({"argument": "flag", "equals": True}, {"flag": 1}, False),
        ({"argument": "flag", "equals": 1}, {"flag": True}, False),
        ({"argument": "flag", "equals": None}, {"flag": None}, True),
        ({"argument": "env", "one_of": ["prod", "live"]}, {"env": "live"}, True),
        ({"argument": "path", "starts_with": "/etc"}, {"path": "/etc/passwd"}, True),
        ({"argument": "path", "starts_with": "/etc"}, {"path": 7}, None),
        ({"argument": "tags", "contains": "x"}, {"tags": ["x"]}, True),
        ({"argument": "copy", "is_missing": True}, {}, True),
        ({"argument": "copy", "is_missing": False}, {"copy": None}, False),
        ({"all_of": [{"argument": "a", "equals": 1}, {"argument": "b", "equals": 1}]}, {"a": 2}, False),
        ({"all_of": [{"argument": "a", "equals": 1}, {"argument": "b", "equals": 1}]}, {"a": 1}, None),
        ({"any_of": [{"argument": "a", "equals": 1}, {"argument": "b", "equals": 1}]}, {"a": 1}, True),
        ({"any_of": [{"argument": "a", "equals": 1}, {"argument": "b", "equals": 1}]}, {"a": 2}, None),
        ({"none_of": [{"argument": "a", "equals": 1}]}, {"a": 2}, True),
        ({"none_of": [{"argument": "a", "equals": 1}]}, {}, None),
    ],
)
def test_a_condition_decides_yes_no_or_nothing(
    condition: dict[str, Any], arguments: dict[str, Any], expected: bool | None
) -> None:
    assert expected is Condition.model_validate(condition).holds(arguments)


@pytest.mark.parametrize(
    "condition",
    [
        {},
        {"argument": "a"},
        {"argument": "a", "over": 1, "under": 3},
        {"over": 1},
        {"argument": "a", "over": "much"},
        {"argument": "a", "over": "NaN"},
        {"argument": "a", "more_than": 1},
        {"argument": "a", "over": 1, "all_of": [{"argument": "b", "equals": 1}]},
        {"all_of": []},
        {"argument": "a", "one_of": []},
        {"argument": "a", "equals": [1]},
    ],
)
def test_a_condition_that_means_nothing_is_refused(condition: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Condition.model_validate(condition)


def test_the_first_rule_that_fits_counts() -> None:
    high, low = Rule(when=OVER_500, approvers="finance", required=2), LET_THROUGH
    assert high is rule_for([high, low], {"amount": 501})
    assert low is rule_for([high, low], {"amount": 5})


def test_an_undecided_rule_asks_a_person() -> None:
    high = Rule(when=OVER_500, approvers="finance")
    small = Rule(when=Condition(argument="amount", under=5), approvers=NOBODY)
    assert high is rule_for([high, LET_THROUGH], {"amount": "lots"})
    assert rule_for([small, LET_THROUGH], {"amount": "lots"}).asks
    assert high is rule_for([small, high, LET_THROUGH], {})


def test_a_call_that_no_rule_is_for_is_asked_about() -> None:
    assert rule_for([Rule(when=OVER_500, approvers=NOBODY)], {"amount": 1}).asks
    assert rule_for([], {}).asks


def test_a_function_that_raises_or_says_neither_asks_a_person() -> None:
    for when in (lambda _: 1 / 0, lambda _: "yes", lambda _: None):
        assert rule_for([Rule(when=when, approvers=NOBODY), LET_THROUGH], {}).asks
    assert not rule_for([Rule(when=lambda a: a["x"] < 5, approvers=NOBODY)], {"x": 1}).asks


@pytest.mark.parametrize(
    "rule",
    [
        {"approvers": NOBODY, "required": 2},
        {"approvers": ANYONE, "required": "all"},
        {"required": 0},
        {"required": True},
        {"valid_for": timedelta(0)},
        {"remind_after": timedelta(seconds=-1)},
        {"decisions": ("edit",)},
        {"decisions": ("approve", "reject", "expire")},
        {"approver": "finance"},
    ],
)
def test_a_rule_that_means_nothing_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Rule(**rule)


def test_a_change_of_a_rule_changes_its_version_and_nothing_else_does() -> None:
    one = Rule(when=OVER_500, approvers="finance")
    assert digest_of([one]) == digest_of([Rule(approvers="finance", when=Condition(argument="amount", over=500))])
    others = [
        [],
        [one, LET_THROUGH],
        [Rule(when=Condition(argument="amount", over=501), approvers="finance")],
        [Rule(when=OVER_500, approvers="board")],
        [Rule(when=OVER_500, approvers="finance", requester_may_decide=True)],
        [Rule(when=OVER_500, approvers="finance", edit_needs_another=True)],
    ]
    assert len(others) + 1 == len({digest_of(rules) for rules in [[one], *others]})


def test_whatever_the_arguments_a_condition_never_raises() -> None:
    dice = random.Random(5)
    values: list[Any] = [None, True, 1, -0.0, "x", "1", [], {}, [1], {"b": 1}, "\ud800", 10**400, float("nan")]
    kinds = ("over", "at_least", "under", "at_most", "equals", "starts_with", "contains")
    for seed in range(2000):
        kind = dice.choice(kinds)
        wanted = "12" if kind in ("starts_with",) else 12
        condition = Condition.model_validate({"argument": dice.choice(("a", "a.b", "c")), kind: wanted})
        assert condition.holds({"a": dice.choice(values)}) in (True, False, None), seed
