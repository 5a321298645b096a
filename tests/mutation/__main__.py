"""`python -m tests.mutation tests/stale tests/language`: changes the worlds of the programs of these tests, and prints the bugs."""
from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time

import tests.search_settings  # noqa: F401


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("tests", nargs="*", help="files or folders of tests; arguments of pytest, such as -k")
    parser.add_argument("--random", type=int, default=0, help="as many worlds of tests.fuzz instead")
    parser.add_argument("--programs", action="store_true", help="the programs of paritybench_subset instead")
    parser.add_argument("--each", type=int, default=20, help="mutations of each world")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=float, default=1.0, help="of the worlds, drawn at random")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no world is begun")
    parser.add_argument("--guards", action="store_true", help="look instead which guards of these programs nothing tells")
    options, rest = parser.parse_known_args()
    import pytest

    from tests.mutation import plugin, sources
    from tests.mutation.guards import Survey
    from tests.mutation.hunt import Bug, Hunt
    arguments = [*options.tests, *rest, "-p", "tests.mutation.plugin", "-p", "no:terminal", "-p", "no:cacheprovider",
                 "-p", "no:timeout", "-o", "faulthandler_timeout=0"]
    start = time.monotonic()
    out = os.fdopen(os.dup(1), "w")

    def tell(bug: Bug) -> None:
        print(f"\n{'=' * 60} {bug.kind}\n{bug}", file=out, flush=True)
    def each_world(at: Hunt | Survey) -> None:
        plugin.HUNT = at
        if options.tests:
            pytest.main(arguments)
        drawn = sources.random_worlds(options.seed, 0, options.random) if options.random else iter(())
        for world in (*drawn, *(sources.programs() if options.programs else ())):
            at.world(world)
    if options.guards:
        survey = Survey(options.each, options.seed, part=options.part, until=start + options.seconds)
        each_world(survey)
        print(survey.report(), file=out, flush=True)
        return bool(survey.mismatches)
    hunt = Hunt(options.each, options.seed, options.part, start + options.seconds, tell)
    each_world(hunt)
    print(f"\nseed {options.seed}: {hunt.worlds} worlds, {hunt.possible} possible mutations, {hunt.mutations} compared in "
          f"{time.monotonic() - start:.0f} s, {len(hunt.bugs)} bugs of {len({bug.kind for bug in hunt.bugs})} kinds; not compared: "
          f"{dict(hunt.skipped.most_common(12))}", file=out, flush=True)
    out.close()
    return bool(hunt.bugs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="capture-mutation-") as cache:
        os.environ.setdefault("CAPTURE_CACHE_DIR", cache)
        sys.exit(main())
