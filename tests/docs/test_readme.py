"""The README, done from top to bottom."""

from __future__ import annotations

from typing import Any


def test_what_the_readme_says_can_be_done(walk: Any) -> None:
    readme = walk("README.md")
    readme.names["bank"] = None
    readme.through()
