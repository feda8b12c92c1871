"""`standfast policy FILE`: whether a policy fits a graph's operations, and who decides about what under it."""

from __future__ import annotations

from pathlib import Path

from standfast.graph.builder import build_agent, registry_of
from standfast.graph.cli.exits import SUCCEEDED
from standfast.graph.cli.output import say_json, say_table
from standfast.graph.cli.session import load_graph
from standfast.tools.conditions import Condition
from standfast.tools.operations import Registry
from standfast.tools.policy_file import read_policy
from standfast.tools.rules import Rule


def check(path: Path, *, graph: str | None, as_json: bool) -> int:
    """Check a file and print the rules of every operation, those of the code too. No database is needed."""
    registry = registry_of(build_agent() if graph is None else load_graph(graph)) or Registry()
    policy = read_policy(path).check(registry)
    rules = [(one.name, policy.version(one), rule) for one in registry for rule in policy.rules(one)]
    if as_json:
        say_json([{"operation": name, "version": version, "rule": _json(rule)} for name, version, rule in rules])
        return SUCCEEDED
    rows = [(name, version, _when(rule), _who(rule)) for name, version, rule in rules]
    say_table(("OPERATION", "VERSION", "WHEN", "DECIDED BY"), rows)
    return SUCCEEDED


def _when(rule: Rule) -> str:
    if rule.when is None:
        return "always"
    if not isinstance(rule.when, Condition):
        return "as its function says"
    return " ".join(f"{name} {value}" for name, value in rule.when.model_dump(exclude_unset=True).items())


def _who(rule: Rule) -> str:
    return rule.approvers if rule.required == 1 else f"{rule.required} of {rule.approvers}"


def _json(rule: Rule) -> dict[str, object]:
    function = rule.when is not None and not isinstance(rule.when, Condition)
    shown = rule.model_dump(mode="json", exclude={"when"} if function else None, exclude_unset=True)
    return {**shown, "when": _when(rule)} if function else shown
