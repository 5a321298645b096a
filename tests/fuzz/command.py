"""The command line of searches that run random cases of a seed, and print the bugs found."""
from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tests.search_settings  # noqa: F401

if TYPE_CHECKING:
    from tests.fuzz.case import Engine
    from tests.fuzz.hunt import Bug, Found


@dataclass(frozen=True)
class Search:
    """`python -m tests.{name}`. amount: what is counted, `steps` or `cases`, and what that is. tolerance: with kernels.

    draw: the case of a seed and number. run: goes on with the search. lines: what is printed of a bug; summary: of all, given the
    seconds that it took."""

    name: str
    meaning: str | None
    amount: tuple[str, str]
    tolerance: float | None
    draw: Callable[[int, int], Any]
    run: Callable[[Found, argparse.Namespace, Engine, Callable[[Found], None]], None]
    lines: Callable[[Bug], Iterable[object]]
    summary: Callable[[Found, argparse.Namespace, float], str]

    def options(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m tests.{self.name}", description=self.meaning)
        counted, explained = self.amount
        parser.add_argument(f"--{counted}", type=int, default=10_000, help=explained, dest="amount")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--first", type=int, default=0, help="the number of the first case: to go on where another run ended")
        parser.add_argument("--case", type=int, help="run this one case only, and print it")
        parser.add_argument("--jobs", type=int, default=2, help="processes")
        parser.add_argument("--bugs", type=int, default=10, help="end after so many bugs")
        parser.add_argument("--backend", default="eager")
        return parser.parse_args()

    def main(self) -> int:
        """Runs it, in a process of its own. Returns the exit status."""
        with tempfile.TemporaryDirectory(prefix=f"capture-{self.name}-") as cache:
            os.environ.setdefault("CAPTURE_CACHE_DIR", cache)
            return self.search(self.options())

    def search(self, options: argparse.Namespace) -> int:
        importlib.import_module("torch._dynamo")    # which programs come to import, for seconds: here, and not in each process
        from tests.fuzz.case import Engine
        from tests.fuzz.hunt import Found
        engine = Engine({"backend": options.backend})
        if options.backend == "native":
            engine = Engine({"backend": "native", "options": {"background": False}}, tolerance=self.tolerance)
        if options.case is not None:
            print(self.draw(options.seed, options.case), "\n")
            options.first, options.amount, options.jobs = options.case, 1, 1
        start, told = time.monotonic(), 0

        def tell(found: Found) -> None:
            nonlocal told
            for bug in found.bugs[told:]:
                print(f"\n{'=' * 100}\nseed {options.seed}, case {bug.number}", *self.lines(bug), "", bug.case or "", sep="\n",
                      flush=True)
            told = len(found.bugs)
            if sys.stderr.isatty():
                print(f"\r{found.counts.calls} calls, {found.cases} cases, {told} bugs", end="", file=sys.stderr, flush=True)
        found = Found(options.first)
        for number in (signal.SIGINT, signal.SIGTERM):      # either ends the run, which says where to go on
            signal.signal(number, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            self.run(found, options, engine, tell)
        print(f"\nseed {options.seed}, cases {options.first} to {found.next - 1}: "
              f"{self.summary(found, options, time.monotonic() - start)}. Go on with --first {found.next}.")
        return bool(found.bugs)
