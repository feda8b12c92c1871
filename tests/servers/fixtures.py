"""The test servers as fixtures; `tests/conftest.py` names this module in `pytest_plugins`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.servers.oidc import OIDCServer
from tests.servers.openai import OpenAIServer
from tests.servers.process import ServerProcess
from tests.servers.reports import ReportsServer


class Eventually(Protocol):
    """Wait until a condition holds; AssertionError after `seconds`."""

    def __call__(self, condition: Callable[[], bool], seconds: float = 5.0) -> None: ...


@pytest.fixture
def eventually() -> Eventually:
    """For what another process or a server's thread does: there is nothing to wait on but the condition."""

    def wait(condition: Callable[[], bool], seconds: float = 5.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"the condition was not met within {seconds} s"
            time.sleep(0.01)

    return wait


@pytest.fixture
def openai_server(tmp_path: Path) -> Iterator[OpenAIServer]:
    """The model's server on a thread of this process: its script may hold functions."""
    with OpenAIServer(tmp_path / "openai.jsonl") as server:
        yield server


@pytest.fixture
def reports_server(tmp_path: Path) -> Iterator[ReportsServer]:
    """The reports API on a thread of this process; it deduplicates by key."""
    with ReportsServer(tmp_path / "reports.jsonl") as server:
        yield server


@pytest.fixture
def openai_process(tmp_path: Path) -> Iterator[ServerProcess]:
    """The model's server as a process."""
    with ServerProcess("openai", tmp_path / "openai.jsonl") as server:
        yield server


@pytest.fixture
def reports_process(tmp_path: Path) -> Iterator[ServerProcess]:
    """The reports API as a process; it deduplicates by key."""
    with ServerProcess("reports", tmp_path / "reports.jsonl") as server:
        yield server


@pytest.fixture
def oidc_server() -> Iterator[OIDCServer]:
    """An OpenID provider on a thread of this process."""
    with OIDCServer() as server:
        yield server
