"""`python -m tests.functions --samples 20`: captures every function of torch and numpy alone, and prints what differs or breaks."""
from __future__ import annotations

import argparse
import collections
import sys

import tests.search_settings  # noqa: F401


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.functions", description=__doc__)
    parser.add_argument("--samples", type=int, default=2, help="of each of torch's operators, in each type")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--numpy", action="store_true", help="numpy's functions alone")
    parser.add_argument("--torch", action="store_true", help="torch's functions alone")
    parser.add_argument("--native", action="store_true", help="with kernels, within a tolerance of 1e-4")
    options = parser.parse_args()
    from tests.functions.catalogue import numpy_cases, torch_cases
    from tests.functions.compare import NATIVE, examine
    engine = {"tolerance": 1e-4, **NATIVE} if options.native else {}
    sources = [] if options.numpy else [torch_cases(options.samples)]
    sources += [] if options.torch else [numpy_cases()]
    ran, found = 0, collections.defaultdict(list)
    for case in (case for source in sources for case in source if options.only in case.name):
        ran += 1
        finding = examine(case, **engine)
        if finding is not None:
            found[finding.kind].append(finding)
            print(finding.kind, finding.name, finding.text, sep=" | ", flush=True)
    print(f"{ran} cases:", *(f"{kind} {len(findings)}" for kind, findings in sorted(found.items())))
    return bool(found["wrong"] or found["fault"])


if __name__ == "__main__":
    sys.exit(main())
