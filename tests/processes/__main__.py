"""`python -m tests.processes [--only TEXT] [--list]`: all situations, some minutes to an hour of processor time."""
from __future__ import annotations

import argparse
import sys

from tests.processes.run import problems
from tests.processes.situations import table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processes", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="situations whose names hold this text")
    parser.add_argument("--first", type=int, default=0, help="begin with the situation of this number")
    parser.add_argument("--list", action="store_true", help="print their names")
    options = parser.parse_args()
    chosen = [(number, item) for number, item in enumerate(table().values()) if number >= options.first
              and (not options.only or any(text in item.name for text in options.only))]
    bad = 0
    for number, situation in chosen:
        found = [] if options.list else problems(situation)
        bad += bool(found)
        print(f"{number:4} {'WRONG' if found else 'right' if not options.list else '     '} {situation.name}", flush=True)
        for line in found:
            print(f"       {line}", flush=True)
    print(f"{len(chosen)} situations, {bad} wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
