"""`python -m tests.universe --seed 1 --cases 10000`: runs random cases of a seed, and prints the bugs found."""
from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import tempfile
import time

# read when capture is imported
os.environ.setdefault("CAPTURE_STRICT", "1")
os.environ.setdefault("CAPTURE_TRIAL_CALLS", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.universe", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many cases to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case: to go on where another run ended")
    parser.add_argument("--case", type=int, help="run this one case only, and print it")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--bugs", type=int, default=10, help="end after so many bugs")
    parser.add_argument("--backend", default="eager")
    options = parser.parse_args()
    importlib.import_module("torch._dynamo")        # which programs come to import, for seconds: here, and not in each process
    from tests.fuzz.case import Engine
    from tests.fuzz.hunt import Bug, Found, hunt
    from tests.universe.case import draw, examine
    engine = Engine({"backend": options.backend})
    if options.backend == "native":
        engine = Engine({"backend": "native", "options": {"background": False}})
    if options.case is not None:
        print(draw(options.seed, options.case), "\n")
        options.first, options.cases, options.jobs = options.case, 1, 1
    start, told = time.monotonic(), 0

    def show(bug: Bug) -> None:
        print(f"\n{'=' * 100}\nseed {options.seed}, case {bug.number}: {len(bug.problems)} calls\n", *bug.problems[:3], "",
              bug.case or "", sep="\n", flush=True)

    def tell(found: Found) -> None:
        nonlocal told
        for bug in found.bugs[told:]:
            show(bug)
        told = len(found.bugs)
        if sys.stderr.isatty():
            print(f"\r{found.counts.calls} calls, {found.cases} cases, {told} bugs", end="", file=sys.stderr, flush=True)
    found = Found(options.first)
    for number in (signal.SIGINT, signal.SIGTERM):      # either ends the run, which says where to go on
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        hunt(found, options.seed, sys.maxsize, engine, options.jobs, options.bugs, tell, examine, options.first + options.cases)
    counts = found.counts
    print(f"\nseed {options.seed}, cases {options.first} to {found.next - 1}: {found.cases} cases, {counts.calls} answers compared "
          f"in {time.monotonic() - start:.0f} s ({counts.captures} captures, {counts.hits} hits; {counts.native} calls fitted no "
          f"entry), {len(found.bugs)} bugs. Go on with --first {found.next}.")
    return bool(found.bugs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="capture-universe-") as cache:
        os.environ.setdefault("CAPTURE_CACHE_DIR", cache)
        sys.exit(main())
