"""`python -m tests.fuzz --steps 10000 --seed 1`: runs random cases until so many calls were compared, and prints the bugs found."""
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
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="calls to compare")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case: to go on where another run ended")
    parser.add_argument("--case", type=int, help="run this one case only, and print it")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--bugs", type=int, default=10, help="end after so many bugs")
    parser.add_argument("--backend", default="eager")
    options = parser.parse_args()
    importlib.import_module("torch._dynamo")        # which programs come to import, for seconds: here, and not in each process
    from tests.fuzz.case import Engine, draw
    from tests.fuzz.hunt import Bug, Found, hunt
    engine = Engine({"backend": options.backend})
    if options.backend == "native":
        engine = Engine({"backend": "native", "options": {"background": False}}, tolerance=1e-4)
    if options.case is not None:
        print(draw(options.seed, options.case), "\n")
        options.first, options.steps, options.jobs = options.case, 1, 1
    start, told = time.monotonic(), 0

    def show(bug: Bug) -> None:
        print(f"\n{'=' * 100}\nseed {options.seed}, case {bug.number}\n", *bug.problems[:10], "", bug.case or "", sep="\n",
              flush=True)

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
        hunt(found, options.seed, options.steps, engine, options.jobs, options.bugs, tell)
    counts = found.counts
    print(f"\nseed {options.seed}, cases {options.first} to {found.next - 1}: {counts.calls} calls compared in "
          f"{time.monotonic() - start:.0f} s ({counts.captures} captures, {counts.hits} hits, {counts.native} native), "
          f"{len(found.bugs)} bugs, {found.unstable} cases not deterministic. Go on with --first {found.next}.")
    return bool(found.bugs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="capture-fuzz-") as cache:
        os.environ.setdefault("CAPTURE_CACHE_DIR", cache)
        sys.exit(main())
