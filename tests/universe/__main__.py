"""`python -m tests.universe --seed 1 --cases 10000`: runs random cases of a seed, and prints the bugs found."""
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.fuzz.command import Search

if TYPE_CHECKING:
    from tests.fuzz.case import Engine
    from tests.fuzz.hunt import Found
    from tests.universe.case import Case


def draw(seed: int, number: int) -> Case:
    from tests.universe import case
    return case.draw(seed, number)


def run(found: Found, options: argparse.Namespace, engine: Engine, tell: Callable[[Found], None]) -> None:
    from tests.fuzz.hunt import hunt
    from tests.universe.case import examine
    hunt(found, options.seed, sys.maxsize, engine, options.jobs, options.bugs, tell, examine, options.first + options.amount)


def summary(found: Found, options: argparse.Namespace, seconds: float) -> str:
    counts = found.counts
    return (f"{found.cases} cases, {counts.calls} answers compared in {seconds:.0f} s ({counts.captures} captures, {counts.hits} "
            f"hits; {counts.native} calls fitted no entry), {len(found.bugs)} bugs")


if __name__ == "__main__":
    sys.exit(Search("universe", __doc__, ("cases", "how many cases to run"), None, draw, run,
                    lambda bug: [f"{len(bug.problems)} calls", "", *bug.problems[:3]], summary).main())
