"""The wheel holds what the four folders hold, and works where the repository is not."""

from __future__ import annotations

import json
import subprocess
import tomllib
import zipfile
from pathlib import Path

IMPORT_ALL = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__file__ for name in json.load(sys.stdin)}))
"""


def test_the_wheel_holds_every_tracked_file_of_the_four_folders_and_no_other(shipped: list[str], wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {f"standfast/{path}" for path in shipped} == held


def test_every_module_can_be_imported_from_the_wheel(shipped: list[str], environment: Path, tmp_path: Path) -> None:
    paths = [Path("standfast", path).with_suffix("") for path in shipped if path.endswith(".py")]
    names = [".".join(path.parent.parts if path.name == "__init__" else path.parts) for path in paths]
    run = subprocess.run(
        [str(environment / "python"), "-I", "-c", IMPORT_ALL],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert 0 == run.returncode, run.stderr
    files = json.loads(run.stdout)
    assert sorted(names) == sorted(files)
    assert [] == [name for name, file in files.items() if not Path(file).is_relative_to(environment.parent)]


def test_the_console_script_knows_the_version_of_pyproject(environment: Path, root: Path, tmp_path: Path) -> None:
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    script = [str(environment / "standfast"), "--version"]
    run = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path)
    assert (0, version) == (run.returncode, run.stdout.split()[-1]), run.stderr


def test_the_links_for_type_checkers_point_to_the_folders(root: Path) -> None:
    links = root / "tests" / "typings" / "standfast"
    expected = {name: Path("../../..") / name for name in ("graph", "nodes", "tools", "checkpoint")}
    assert expected == {link.name: link.readlink() for link in links.iterdir()}
