"""The command line. Results go to stdout, progress and notes to stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script `standfast`."""
    from standfast.graph.cli.app import run_app

    sys.exit(run_app(sys.argv[1:] if arguments is None else arguments))
