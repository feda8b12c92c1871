"""`python -m tests.crash.chaos [--seed 1 2 3] [--threads 200] [--faults 60]`: the last line is the totals, as JSON."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from tests.crash.chaos.faults import KINDS
from tests.crash.chaos.fire import Plan, Report, fire, summed
from tests.crash.chaos.table import write


def main() -> int:
    parser = argparse.ArgumentParser(description="A fleet that is attacked while it works.")
    parser.add_argument("--seed", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--workers", type=int, choices=(2, 3), default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--unfenced", action="store_true", help="without the fence: this must go wrong")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this document, with its date")
    options = parser.parse_args()
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # connections break here, all the time
    reports: list[Report] = []
    for seed in options.seed:
        ashes = fire(
            Plan(seed, options.threads, options.faults, options.workers, options.kinds, fenced=not options.unfenced)
        )
        print("\n".join((*ashes.told, *ashes.put_aside, *ashes.complaints)))
        if ashes.folder is not None:
            print(f"the logs are in {ashes.folder}")
        print(ashes.report.line(), flush=True)
        reports.append(ashes.report)
    if options.write is not None:
        write(options.write, reports)
    if len(reports) > 1:
        print(json.dumps(summed(reports)))
    return 0 if all(one.well for one in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
