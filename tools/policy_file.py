"""Reads an `ApprovalPolicy` from one YAML or TOML file.

Invariant: what cannot be read is refused with the file, the line (of YAML; of TOML where it is malformed) and the
place. Nothing in the file is ever executed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from standfast.checkpoint import errors
from standfast.tools.approval_policy import ApprovalPolicy, Elsewhere, InvalidPlace, Place
from standfast.tools.operations import Registry
from standfast.tools.rules import Rule


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    groups: dict[str, list[str] | Elsewhere] = {}
    operations: dict[str, list[Rule]]
    group_admins: str | None = None


@dataclass(frozen=True)
class PolicyFile:
    """A policy with the file that it came from, so that later objections can say where."""

    path: Path
    policy: ApprovalPolicy
    data: Any = field(repr=False)
    lines: Mapping[Place, int] = field(repr=False)

    def check(self, registry: Registry) -> ApprovalPolicy:
        """The policy, if it fits these operations. Raises `InvalidPolicy` with file and line."""
        try:
            self.policy.check(registry)
        except InvalidPlace as error:
            raise _at(self.path, self.data, self.lines, error.place, error.why) from error
        return self.policy


def read_policy(path: str | Path) -> PolicyFile:
    """The policy in a .yaml, .yml or .toml file. Raises `InvalidPolicy`."""
    path = Path(path)
    lines: dict[Place, int] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise errors.InvalidPolicy(f"the policy {str(path)!r} cannot be read: {why}", file=str(path)) from error
    if path.suffix == ".toml":
        data = _toml(path, text)
    elif path.suffix in (".yaml", ".yml"):
        data = _yaml(path, text, lines)
    else:
        raise errors.InvalidPolicy(f"a policy is a .yaml or .toml file, not {path.name!r}", file=str(path))
    try:
        document = _Document.model_validate(data)
        policy = ApprovalPolicy(document.operations, document.groups, group_admins=document.group_admins)
    except ValidationError as error:
        first = error.errors()[0]
        message = "there is no such key" if first["type"] == "extra_forbidden" else first["msg"]
        raise _at(path, data, lines, first["loc"], message) from error
    except InvalidPlace as error:
        raise _at(path, data, lines, error.place, error.why) from error
    return PolicyFile(path, policy, data, lines)


def policy_for(given: ApprovalPolicy | str | Path | None, registry: Registry | None) -> ApprovalPolicy:
    """The policy that was given, or is in the file that was named, if it fits these operations.

    Raises `InvalidPolicy`.
    """
    operations = Registry() if registry is None else registry
    if isinstance(given, str | Path):
        return read_policy(given).check(operations)
    policy = given or ApprovalPolicy()
    policy.check(operations)
    return policy


def policies_for(path: Path, registries: Sequence[Registry]) -> list[ApprovalPolicy]:
    """The part of one file that is for each of several graphs. Raises `InvalidPolicy` for what is for none of them."""
    every = {one.name: one for registry in registries for one in registry}
    whole = read_policy(path).check(Registry(every.values()))
    return [whole.only(one) for one in registries]


def _toml(path: Path, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.InvalidPolicy(f"{path}: {error}", file=str(path)) from error


def _yaml(path: Path, text: str, lines: dict[Place, int]) -> Any:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _walk(root, (), lines)
        return yaml.safe_load(text)
    except _Twice as error:
        raise _at(path, None, lines, error.args[0], "this key is there twice") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        where = str(path) if line is None else f"{path}, line {line}"
        why = getattr(error, "problem", None) or str(error)
        raise errors.InvalidPolicy(f"{where}: {why}", file=str(path), line=line) from error


class _Twice(Exception):
    pass


def _walk(node: Any, place: Place, lines: dict[Place, int]) -> None:
    lines.setdefault(place, 1 if node is None else node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, str(key.value))
            again = inner in lines
            lines[inner] = key.start_mark.line + 1
            if again:
                raise _Twice(inner)
            _walk(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            _walk(value, (*place, position), lines)


def _at(path: Path, data: Any, lines: Mapping[Place, int], place: Place, why: str) -> errors.InvalidPolicy:
    """Where it is: the line of the place itself, else of what holds it."""
    place = place if data is None else _real(place, data)
    line = next((lines[place[:end]] for end in range(len(place), -1, -1) if place[:end] in lines), None)
    where = str(path) if line is None else f"{path}, line {line}"
    named = ".".join(map(str, place)) or "the top"
    return errors.InvalidPolicy(f"{where}, at {named}: {why}", file=str(path), line=line, place=place)


def _real(place: Place, data: Any) -> Place:
    """The place without the names of alternatives that pydantic puts in between."""
    real: list[str | int] = []
    for number, step in enumerate(place, 1):
        inside = isinstance(data, dict) and step in data
        if inside or (isinstance(data, list) and isinstance(step, int) and step < len(data)):
            data = data[step]
        elif number < len(place) or not isinstance(data, dict):
            continue
        real.append(step)
    return tuple(real)
