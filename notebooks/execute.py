"""Run notebooks from top to bottom and keep their output: `python notebooks/execute.py [NAME ...]`, by default all.

Times of execution are left out of the files, so that they differ only where a result does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def execute(path: Path) -> None:
    """Run one notebook in this folder and write it back. Raises `CellExecutionError`."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(HERE)}}).execute()
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, path)


def main(names: list[str]) -> None:
    """Those that are named by the beginning of their name, or all."""
    for path in sorted(HERE.glob("*.ipynb")):
        if not names or path.name.startswith(tuple(names)):
            execute(path)


if __name__ == "__main__":
    main(sys.argv[1:])
