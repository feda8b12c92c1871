"""A policy's file is checked at the start; what is wrong is said with the file, the line and the place."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from standfast.checkpoint import errors
from standfast.graph import ApprovalPolicy, Effect, Policy, Rule, operation
from standfast.tools.conditions import Condition
from standfast.tools.operations import Registry
from standfast.tools.policy_file import policy_for, read_policy


@operation(policy=Policy(effect=Effect.IDEMPOTENT, approval=True))
async def refund(order: str, amount: str) -> str:
    """Refund an order."""
    return f"refunded {amount} for {order}"


REGISTRY = Registry([refund])

YAML = """\
groups:
  finance: [ann, bob, cyd]
  board: claims

operations:
  refund:
    - when: {argument: amount, over: 500}
      approvers: finance
      required: 2
      remind_after: P1D
      valid_for: P3D
      requester_may_decide: false
      edit_needs_another: true
      reason_required: true
      decisions: [approve, reject, edit]
    - approvers: nobody
"""

TOML = """\
[groups]
finance = ["ann", "bob", "cyd"]
board = "claims"

[[operations.refund]]
when = {argument = "amount", over = 500}
approvers = "finance"
required = 2
remind_after = "P1D"
valid_for = "P3D"
requester_may_decide = false
edit_needs_another = true
reason_required = true
decisions = ["approve", "reject", "edit"]

[[operations.refund]]
approvers = "nobody"
"""


@pytest.mark.parametrize(("name", "text"), [("policy.yaml", YAML), ("policy.toml", TOML)])
def test_both_formats_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    high = Rule(
        when=Condition(argument="amount", over=500),
        approvers="finance",
        required=2,
        remind_after=timedelta(days=1),
        valid_for=timedelta(days=3),
        requester_may_decide=False,
        edit_needs_another=True,
        reason_required=True,
        decisions=("approve", "reject", "edit"),
    )
    in_code = ApprovalPolicy(
        {"refund": [high, Rule(approvers="nobody")]}, {"finance": ["ann", "bob", "cyd"], "board": "claims"}
    )
    policy = policy_for(path, REGISTRY)
    assert in_code.operations == policy.operations
    assert in_code.version(refund) == policy.version(refund)
    assert ("ann", "bob", "cyd") == policy.members("finance")


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("  refund:", "  refnd:", 6, "no operation 'refnd'"),
        ("finance: [ann, bob, cyd]", "finance: []", 2, "nobody is in the group 'finance'"),
        ("finance: [ann, bob, cyd]", "finance: everybody", 2, "finance"),
        ("approvers: finance", "approvers: finanse", 8, "no group 'finanse'"),
        ("required: 2", "required: 4", 8, "it has 3"),
        ("required: 2", "required: many", 9, "required"),
        ("remind_after", "remind_afer", 10, "no such key"),
        ("over: 500", "ovr: 500", 7, "no such key"),
        ("argument: amount", "argument: amuont", 7, "no argument 'amuont'"),
        ("over: 500", "over: {a: b}", 7, "over"),
        ("groups:", "grups:", 1, "no such key"),
        ("  board: claims", "  finance: claims", 3, "twice"),
        ("  board: claims", "  nobody: claims", 3, "no group can be named 'nobody'"),
        ("approvers: nobody", "approvers: nobody\n      required: 2", 16, "nobody decides"),
        ("decisions: [approve, reject, edit]", "decisions: [approve", 16, "expected"),
        ("requester_may_decide: false", "requester_may_decide: 'no'", 12, "boolean"),
    ],
)
def test_what_is_wrong_in_yaml_is_said_with_its_line(tmp_path: Path, old: str, new: str, line: int, said: str) -> None:
    assert old in YAML
    path = tmp_path / "policy.yaml"
    path.write_text(YAML.replace(old, new, 1))
    with pytest.raises(errors.InvalidPolicy, match=said) as raised:
        policy_for(path, REGISTRY)
    assert (line, str(path)) == (raised.value.line, raised.value.file)
    assert f"line {line}" in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("refund]]", "refnd]]", "no operation 'refnd'"),
        ("remind_after", "remind_afer", "operations.refund.0.remind_afer"),
        ("required = 2", "required =", "line 8"),
    ],
)
def test_what_is_wrong_in_toml_is_said_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(TOML.replace(old, new))
    with pytest.raises(errors.InvalidPolicy) as raised:
        policy_for(path, REGISTRY)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there_or_of_no_known_kind_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidPolicy, match="cannot be read"):
        read_policy(tmp_path / "none.yaml")
    (tmp_path / "policy.json").write_text("{}")
    with pytest.raises(errors.InvalidPolicy, match=r"or \.toml file"):
        read_policy(tmp_path / "policy.json")


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"operations: !!python/object/apply:os.system ['touch {tmp_path / 'made'}']\n")
    with pytest.raises(errors.InvalidPolicy):
        read_policy(path)
    assert not (tmp_path / "made").exists()


def test_a_rule_in_code_that_names_a_group_needs_the_group() -> None:
    @operation(policy=Policy(effect=Effect.IDEMPOTENT, approval=Rule(approvers="finance")))
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    with pytest.raises(errors.InvalidPolicy, match="no group 'finance'"):
        policy_for(None, Registry([pay]))
    policy_for(ApprovalPolicy(groups={"finance": ["ann"]}), Registry([pay]))


def test_whoever_changes_groups_is_a_group_that_there_is(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"{YAML}group_admins: finance\n")
    assert "finance" == policy_for(path, REGISTRY).group_admins
    path.write_text(f"{YAML}group_admins: finanse\n")
    with pytest.raises(errors.InvalidPolicy, match="line 17, at group_admins: there is no group 'finanse'"):
        policy_for(path, REGISTRY)
