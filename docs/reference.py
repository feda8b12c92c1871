"""Writes docs/reference.md, every public name, setting and command, from the code: `python docs/reference.py`."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

import typer
from typer.testing import CliRunner

import standfast.graph as public
from standfast.checkpoint import errors
from standfast.checkpoint.settings import Settings
from standfast.graph import twins
from standfast.graph.cli.app import app

PAGE: Final = Path(__file__).with_suffix(".md")
HEAD: Final = """# Reference

Made from the code by `python docs/reference.py`; not to be edited. Everything here is imported from `standfast.graph`.
What has an `a` in front is async; its twin without the `a` is the same for `with`.
"""


def page() -> str:
    """The whole page."""
    names = sorted(public.__all__, key=str.lower)
    parts = [HEAD, "## Names\n", *(_name(name) for name in names)]
    parts += ["## Errors\n", "From `standfast.checkpoint.errors`.\n", _errors()]
    parts += ["## Settings\n", _settings(), "## Commands\n", *_commands()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n"


def _name(name: str) -> str:
    thing = getattr(public, name)
    lines = [f"### {name}\n"]
    if inspect.isclass(thing) and not issubclass(thing, Enum):
        lines += [_code(name, thing), _doc(thing)]
        lines += [f"- {line}" for line in _members(thing)]
    elif inspect.isclass(thing):
        lines += [_doc(thing), "Values: " + ", ".join(f"`{one.value}`" for one in thing) + "."]
    elif callable(thing) and inspect.isroutine(thing):
        lines += [_code(name, thing), _doc(thing)]
    else:
        shown = ", ".join(f"`{getattr(one, 'name', one)}`" for one in thing) if isinstance(thing, tuple) else ""
        lines.append(f"{shown or f'`{thing}`'}\n")
    return "\n".join(lines) + "\n"


def _members(thing: type) -> Iterator[str]:
    """The public methods and properties that this project wrote, each with all that it says of itself."""
    homes = [one for one in thing.__mro__ if one.__module__.startswith("standfast.")]
    names = {name: home for home in reversed(homes) for name in vars(home) if not name.startswith("_")}
    for name, home in sorted(names.items()):
        member = inspect.getattr_static(home, name)
        member = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if isinstance(member, property):
            yield f"`{name}`: {_inside(member)}"
        elif inspect.isfunction(member) and member.__doc__ and member.__module__ != twins.__name__:
            how = "await " if inspect.iscoroutinefunction(member) else ""
            yield f"`{how}{name}{_arguments(member)}`: {_inside(member)}"


def _code(name: str, thing: Any) -> str:
    try:
        return f"`{name}{_arguments(thing)}`\n"
    except (ValueError, TypeError):
        return ""


def _arguments(thing: Any) -> str:
    """The parameters without their types: the page is for looking up a name, an editor shows the rest."""
    parameters = []
    for one in inspect.signature(thing).parameters.values():
        if one.name in ("self", "cls"):
            continue
        plain = one.replace(annotation=inspect.Parameter.empty)
        shown = str(plain)
        if one.default is not inspect.Parameter.empty and re.search(r"0x[0-9a-f]+|<|^.{60}", repr(one.default)):
            shown = f"{one.name}=..."
        parameters.append((one.kind, shown))
    shown = [text for _, text in parameters]
    first = next((n for n, (kind, _) in enumerate(parameters) if kind is inspect.Parameter.KEYWORD_ONLY), None)
    if first is not None and not any(kind is inspect.Parameter.VAR_POSITIONAL for kind, _ in parameters):
        shown.insert(first, "*")
    return f"({', '.join(shown)})"


def _doc(thing: Any) -> str:
    return (inspect.getdoc(thing) or "") + "\n"


def _inside(thing: Any) -> str:
    """The documentation of an item of a list."""
    return textwrap.indent(inspect.getdoc(thing) or "", "  ").strip()


def _first(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def _errors() -> str:
    def lines(error: type, depth: int) -> Iterator[str]:
        yield f"{'  ' * depth}- `{error.__name__}`: {_first(error)}"
        for one in sorted(error.__subclasses__(), key=lambda one: one.__name__):
            if one.__module__ == errors.__name__:
                yield from lines(one, depth + 1)

    return "\n".join(lines(errors.StandfastError, 0)) + "\n"


def _settings() -> str:
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        rows.append(f"| `STANDFAST_{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def _commands() -> Iterator[str]:
    yield from _command(typer.main.get_command(app), ())


def _command(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    helped = CliRunner().invoke(app, [*words, "--help"], prog_name="standfast", env={"COLUMNS": "100"})
    yield f"### standfast {' '.join(words)}".rstrip() + f"\n\n```\n{helped.output.strip()}\n```\n"
    for name, sub in sorted(getattr(command, "commands", {}).items()):
        yield from _command(sub, (*words, name))


if __name__ == "__main__":
    PAGE.write_text(page())
