"""`python -m tests.descriptors --cases 10000 --seed 1`: compares random cases, and prints those that differ."""
from __future__ import annotations

import argparse
import sys
import traceback

import tests.search_settings  # noqa: F401


def main() -> int:
    from tests.descriptors.world import Case, draw, problems_of
    parser = argparse.ArgumentParser(prog="python -m tests.descriptors", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--bugs", type=int, default=20, help="end after so many")
    options = parser.parse_args()
    found = 0
    number = options.first
    for number in range(options.first, options.first + options.cases):
        case: Case = draw(options.seed, number)
        try:
            problems = problems_of(case, backend="eager")
        except Exception:
            problems = traceback.format_exc().splitlines()[-6:]
        if problems:
            found += 1
            print(f"\n{number}: {case}", *problems[:4], sep="\n  ", flush=True)
        if found == options.bugs:
            break
    print(f"\n{number + 1 - options.first} cases, {found} differ")
    return found > 0


sys.exit(main())
