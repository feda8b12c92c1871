"""Print one of the README's two lines, so that what is tried is what is promised: `readme_line.py first|test`."""

from __future__ import annotations

import sys
from pathlib import Path

STARTS = {"first": "pip install . && ", "test": "pip install -e "}
README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    start = STARTS[sys.argv[1]]
    lines = {line.strip() for line in README.read_text().splitlines() if line.strip().startswith(start)}
    if len(lines) != 1:
        raise SystemExit(f"README.md has {len(lines)} lines that start with {start!r}, not 1")
    sys.stdout.write(lines.pop() + "\n")


if __name__ == "__main__":
    main()
