"""What `standfast --help` shows first."""

from __future__ import annotations

from collections import Counter

import typer
from typer.testing import CliRunner

from standfast.graph.cli.app import app
from standfast.graph.cli.panels import PANELS


def test_every_command_stands_in_one_group_of_the_help() -> None:
    commands = getattr(typer.main.get_command(app), "commands")  # noqa: B009
    grouped = Counter(name for names in PANELS.values() for name in names)
    assert set(commands) == set(grouped)
    assert {1} == set(grouped.values())


def test_the_help_shows_the_groups_and_what_begins_comes_first() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "Commands:" not in shown
    places = [shown.index(f"\n{panel}:\n") for panel in PANELS]
    assert sorted(places) == places
    assert shown.index("\n  run ") < shown.index("\n  resume ") < shown.index("\n  approve ") < shown.index("\n  db ")
