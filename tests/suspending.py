"""`pytest --always-suspend`: after each step a thread is given up, and claimed again by whoever comes.

Nothing that a drive knows outlives a step then, but what stands in the database. The suite must not notice.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from standfast.graph.driver import Driver

OPTION: Final = "--always-suspend"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="give a thread up after each step, and claim it again")


@pytest.fixture
def suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver is told to stop when the first of its tasks has ended, in a nested graph too."""
    timed = Driver._timed

    def told(self: Driver, kind: str, path: tuple[str, ...], data: Any) -> Any:
        if kind == "step_end":
            self._control.request_drain()
        return timed(self, kind, path, data)

    monkeypatch.setattr(Driver, "_timed", told)


@pytest.fixture(autouse=True)
def suspending(request: pytest.FixtureRequest) -> None:
    """The option; what is about a single drive is left out."""
    if not request.config.getoption(OPTION):
        return
    alone = request.node.get_closest_marker("one_drive")
    if alone is not None:
        pytest.skip(f"about a single drive: {alone.args[0]}")
    request.getfixturevalue("suspended")
