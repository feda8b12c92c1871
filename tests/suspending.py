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


@pytest.fixture(autouse=True)
def suspending(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver is told to stop when the first of its tasks has ended, in a nested graph too."""
    if not request.config.getoption(OPTION):
        return
    timed = Driver._timed

    def told(self: Driver, kind: str, path: tuple[str, ...], data: Any) -> Any:
        if kind == "step_end":
            self._control.request_drain()
        return timed(self, kind, path, data)

    monkeypatch.setattr(Driver, "_timed", told)
