"""The tutorial, typed from top to bottom: it kills a real process in the middle of a payment."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.timeout(900)  # some thirty commands, each a process
def test_what_the_tutorial_says_can_be_done(walk: Any) -> None:
    walk("docs/tutorial.md").through()
