"""Each notebook runs from top to bottom with the wheel alone, on the embedded server, without a network.

Its cells assert the facts that it tells of. Plain `pytest` runs the quick ones; with STANDFAST_TEST_NOTEBOOKS=all, as
in .ci/run, all are run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import nbformat
import pytest
from nbclient import NotebookClient

HERE: Final = Path(__file__).parents[2] / "notebooks"
NAMES: Final = sorted(path.stem for path in HERE.glob("*.ipynb"))
QUICK: Final = {"07_your_own_graph"}
ALL: Final = os.environ.get("STANDFAST_TEST_NOTEBOOKS") == "all"

OFFLINE: Final = '''
"""Refuses every connection that would leave this machine."""
import socket

_connect, _look_up = socket.socket.connect, socket.getaddrinfo


def connect(self, address):
    if self.family != socket.AF_UNIX and not str(address[0]).startswith(("127.", "::1", "localhost")):
        raise AssertionError(f"a notebook asked the network: {address}")
    return _connect(self, address)


def look_up(host, *rest, **named):
    if host not in (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0"):
        raise AssertionError(f"a notebook asked the network for {host}")
    return _look_up(host, *rest, **named)


socket.socket.connect, socket.getaddrinfo = connect, look_up
'''


@pytest.fixture(scope="module")
def kernel(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A kernel of the environment that has the wheel, in which the network is out of reach."""
    (site,) = environment.parent.glob("lib/python*/site-packages")
    (site / "sitecustomize.py").write_text(OFFLINE)
    folder = tmp_path_factory.mktemp("jupyter")
    spec = folder / "kernels" / "wheel"
    spec.mkdir(parents=True)
    command = [str(environment / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "wheel", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        yield "wheel"


@pytest.fixture
def copy(open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of notebooks, elsewhere; each makes a database of its own."""
    for name in [one for one in os.environ if one.startswith("STANDFAST_")]:
        monkeypatch.delenv(name)
    target = open_directory / "notebooks"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(HERE, target)
    return target


def run(path: Path, kernel: str) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=120, kernel_name=kernel, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    return notebook


@pytest.mark.filterwarnings("default")  # of Jupyter's own
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom_with_the_wheel_and_no_network(name: str, kernel: str, copy: Path) -> None:
    if not ALL and name not in QUICK:
        pytest.skip("takes longer than the others: STANDFAST_TEST_NOTEBOOKS=all runs it, as .ci/run does")
    done = run(copy / f"{name}.ipynb", kernel)
    kept = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    assert [one.source for one in kept.cells] == [one.source for one in done.cells]


@pytest.mark.filterwarnings("default")
def test_the_network_is_out_of_a_notebooks_reach_and_it_runs_what_the_wheel_holds(
    kernel: str, copy: Path, environment: Path
) -> None:
    cells = [
        "import pathlib, socket, standfast.graph\n"
        f"assert pathlib.Path(standfast.graph.__file__).is_relative_to({str(environment.parent)!r})",
        "try:\n    socket.create_connection(('192.0.2.1', 80), timeout=1)\n"
        "except AssertionError:\n    pass\nelse:\n    raise Exception('connected')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    nbformat.write(notebook, copy / "guard.ipynb")
    run(copy / "guard.ipynb", kernel)


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_notebook_was_run_in_order_and_ended_well(name: str) -> None:
    cells = [one for one in nbformat.read(HERE / f"{name}.ipynb", as_version=4).cells if one.cell_type == "code"]
    assert list(range(1, len(cells) + 1)) == [one.execution_count for one in cells]
    assert not [output for one in cells for output in one.outputs if output.output_type == "error"]
    assert len((HERE / f"{name}.ipynb").read_bytes()) < 200_000
