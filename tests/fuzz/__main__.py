"""`python -m tests.fuzz --steps 10000 --seed 1`: runs random cases until so many calls were compared, and prints the bugs found."""
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.fuzz.command import Search

if TYPE_CHECKING:
    from tests.fuzz.case import Case, Engine
    from tests.fuzz.hunt import Found


def draw(seed: int, number: int) -> Case:
    from tests.fuzz import case
    return case.draw(seed, number)


def run(found: Found, options: argparse.Namespace, engine: Engine, tell: Callable[[Found], None]) -> None:
    from tests.fuzz.hunt import hunt
    hunt(found, options.seed, options.amount, engine, options.jobs, options.bugs, tell)


def summary(found: Found, options: argparse.Namespace, seconds: float) -> str:
    counts = found.counts
    return (f"{counts.calls} calls compared in {seconds:.0f} s ({counts.captures} captures, {counts.hits} hits, {counts.native} "
            f"native), {len(found.bugs)} bugs, {found.unstable} cases not deterministic")


if __name__ == "__main__":
    sys.exit(Search("fuzz", __doc__, ("steps", "calls to compare"), 1e-4, draw, run, lambda bug: ["", *bug.problems[:10]],
                    summary).main())
