"""Which files come first. A file is one process's: the long ones come first, so that none is left at the end, alone,
while the other processes idle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

_LONGEST: Final = (  # 20 to 110 s each; those with many processes of their own are not beside each other
    "crash/test_chaos.py",
    "docs/test_pages.py",
    "crash/test_workers.py",
    "docs/test_tutorial.py",
    "crash/test_own_graphs.py",
    "crash/test_soak.py",
    "crash/test_siblings.py",
    "integration/cli/test_run.py",
    "crash/test_kill_matrix.py",
    "integration/test_artifacts.py",
    "crash/test_stream_crash.py",
    "integration/cli/test_terminal.py",
    "crash/test_campaign.py",
    "crash/test_fence.py",
    "crash/test_retry_crash.py",
    "crash/test_effects.py",
    "crash/test_child_crash.py",
    "crash/test_driver_fuzz.py",
)
_FOLDERS: Final = ("crash", "packaging", "docs", "scale", "models", "benchmarks", "migrations", "integration", "unit")
_TESTS: Final = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.path))


def _place(path: Path) -> tuple[int, int]:
    """Stable within a folder; a file or folder that is not named here comes last."""
    parts = path.relative_to(_TESTS).parts
    name = "/".join(parts)
    return (
        _LONGEST.index(name) if name in _LONGEST else len(_LONGEST),
        _FOLDERS.index(parts[0]) if parts[0] in _FOLDERS else len(_FOLDERS),
    )
