"""Runs random programs of views and writes beside eager mode: `python -m tests.aliasing --seed 0 --count 10000 [--backend native]`.

Prints each case that differs and the first step after which it does. `--backend`: `traced` (the graphs of the native backend, run
by torch: fast), `native` or `eager`; `--cut`: operations drawn by lot count as such that cannot be compiled.
"""
from __future__ import annotations

import argparse
import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from random import Random

import torch

from capture import config
from capture.errors import CaptureError
from tests.aliasing.hooks import make_hooked, make_numbered
from tests.aliasing.hunt import CALLS, CUT, Traced, differences
from tests.aliasing.programs import make
from tests.aliasing.wide import make_wide
from tests.backends.native.cuts import by_lot

os.environ |= {"TENSORIFY_PYTHON_SCALARS": "0"}         # as in the compiling process


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.aliasing", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first case")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--backend", choices=("traced", "native", "eager"), default="traced")
    parser.add_argument("--wide", action="store_true", help="all kinds of views, writes, hooks and backward passes (`wide`)")
    parser.add_argument("--hooks", action="store_true", help="plans of hooks and gradients with regard to results (`hooks`)")
    parser.add_argument("--numbers", action="store_true",
                        help="numbers that change, gradients that are infinite, passes from some results (`hooks`)")
    parser.add_argument("--cut", action="store_true", help="run graphs in pieces (not with --backend eager)")
    parser.add_argument("--sizes", action="store_true", help="inputs whose sizes change from call to call")
    parser.add_argument("--show", action="store_true", help="print each case before it is run")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    traced, started, found, run = Traced(Random(options.seed) if options.cut else None), time.monotonic(), [], 0
    arguments = {"traced": {"backend": traced}, "eager": {"backend": "eager"},
                 "native": {"backend": "native", "options": {"background": False}}}[options.backend]
    kind = make_wide if options.wide else make_hooked if options.hooks else make_numbered if options.numbers else make
    with config.TRIAL_CALLS.set(0):
        for seed in range(options.seed, options.seed + options.count):
            if time.monotonic() - started > options.seconds:
                break
            case = replace(kind(seed), sized=options.sizes)
            if options.show:
                print(f"--- {seed}\n{case}", flush=True)
            try:
                with by_lot(seed) if options.cut else nullcontext():
                    problems = differences(case, CUT if options.cut else CALLS, **arguments)
            except CaptureError as error:
                problems = [f"{type(error).__name__}: {error}"]
            run += 1
            if problems:
                found.append(seed)
                print(f"--- {seed}\n{case}\n", *(f"{line}\n" for line in problems), flush=True)
    graphs = (f", {traced.compiled} of {traced.graphs} graphs traced, {traced.numbers} with numbers, {traced.sized} for all sizes"
              if traced.graphs else "")
    print(f"{run} cases{graphs}; {len(found)} differ: {found}")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
