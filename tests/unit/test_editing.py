"""What a person's editor makes of an approval's arguments: all of them, as they were left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.graph.cli.ask import edited

ARGUMENTS = {"text": "draft", "copy": True}


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """An editor that changes the arguments, a dict `a`, by this line of Python."""

    def choose(line: str) -> None:
        path = tmp_path / "editor.py"
        path.write_text(
            f"import json, sys\na = json.load(open(sys.argv[1]))\n{line}\njson.dump(a, open(sys.argv[1], 'w'))\n"
        )
        monkeypatch.setenv("VISUAL", f"{sys.executable} {path}")

    return choose


def test_an_argument_that_was_taken_out_is_gone(editor: Callable[[str], None]) -> None:
    editor("del a['copy']")
    assert {"text": "draft"} == edited(ARGUMENTS)


def test_what_was_left_alone_stays(editor: Callable[[str], None]) -> None:
    editor("a['text'] = 'final'")
    assert {"text": "final", "copy": True} == edited(ARGUMENTS)


def test_one_is_not_true(editor: Callable[[str], None]) -> None:
    editor("a['copy'] = 1")
    changed = edited(ARGUMENTS)
    assert changed is not None
    assert "int" == type(changed["copy"]).__name__


def test_nothing_changed_is_no_edit(editor: Callable[[str], None]) -> None:
    editor("a = dict(reversed(a.items()))")
    assert edited(ARGUMENTS) is None
