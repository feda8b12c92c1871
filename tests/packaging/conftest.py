"""What the packaging tests share: the files that git knows, and a wheel built from them alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("graph", "nodes", "tools", "checkpoint")


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def tracked() -> list[str]:
    """The paths that git tracks, relative to the top."""
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return [path for path in listed.split("\0") if path and (ROOT / path).exists()]


@pytest.fixture(scope="session")
def shipped(tracked: list[str]) -> list[str]:
    """Those of the tracked paths that stand in the four folders."""
    return [path for path in tracked if path.split("/")[0] in FOLDERS]


@pytest.fixture(scope="session")
def wheel(shipped: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that nothing that lies about here gets into it."""
    copy, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in [*shipped, "pyproject.toml", "README.md", "LICENSE"]:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, copy / path)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(copy)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert 0 == built.returncode, built.stdout + built.stderr
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheel in it; its dependencies are those of this environment."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    installed = subprocess.run(command, capture_output=True, text=True)
    assert 0 == installed.returncode, installed.stdout + installed.stderr
    # A folder on the path whose own .pth files are not read: the editable install stays out of sight.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return home / "bin"
