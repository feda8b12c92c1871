"""The rules of the house that no linter holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from standfast.checkpoint.crashpoints import CHILD_POINTS, GROUP_POINTS, OUTCOME_POINTS, POINTS, RETENTION_POINTS

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = sorted(
    path for folder in ("graph", "nodes", "tools", "checkpoint") for path in (ROOT / folder).rglob("*.py")
)
LONGEST: Final = 600  # lines
GRAB_BAGS: Final = {"utils", "util", "helpers", "helper", "common", "misc"}
UNFINISHED: Final = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def calls(path: Path, function: str) -> list[ast.Call]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [
        node
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
    ]


def points(call: ast.Call) -> set[str]:
    """The names that a call of `reach` can be given: a literal, or one of two."""
    (argument,) = call.args
    choices = [argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument]
    named = {choice.value for choice in choices if isinstance(choice, ast.Constant) and isinstance(choice.value, str)}
    assert len(named) == len(choices), f"a point is named by a literal, not by {ast.unparse(argument)}"
    return named


def test_the_modules_are_found() -> None:
    assert {"graph", "nodes", "tools", "checkpoint"} == {path.relative_to(ROOT).parts[0] for path in MODULES}


def test_no_file_is_longer_than_600_lines() -> None:
    sizes = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {} == {path: size for path, size in sizes.items() if size > LONGEST}


def test_every_module_is_named_after_one_noun() -> None:
    assert [] == [name(path) for path in MODULES if path.stem.strip("_") in GRAB_BAGS or path.parent.name in GRAB_BAGS]


def test_every_module_says_what_it_is_for() -> None:
    assert [] == [name(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))]


def test_nothing_unfinished_is_shipped() -> None:
    found = ((path, number, line) for path in MODULES for number, line in enumerate(path.read_text().splitlines(), 1))
    assert [] == [f"{name(path)}:{number}: {line}" for path, number, line in found if UNFINISHED.search(line)]


def test_only_the_command_line_speaks_to_the_terminal() -> None:
    notebook = ROOT / "graph" / "pictures" / "buttons.py"  # prints the lines that its buttons would have said
    shipped = [path for path in MODULES if (ROOT / "graph" / "cli") not in path.parents and path != notebook]
    assert [] == [f"{name(path)}:{call.lineno}" for path in shipped for call in calls(path, "print")]


def test_the_crash_points_in_the_code_are_those_that_are_listed() -> None:
    in_code = set[str]().union(*(points(call) for path in MODULES for call in calls(path, "reach")))
    assert {*POINTS, *OUTCOME_POINTS, *RETENTION_POINTS, *CHILD_POINTS, *GROUP_POINTS} == in_code
