"""The command line of searches that draw one question after the other, by a seed and a number, and print those that differ."""
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import capture


def main(module: str, description: str | None, problems: Callable[[int, int], list[str]], told: Callable[[int, int], str]) -> int:
    """Whether any differs. Of a seed and a number, `problems` returns a line for each difference, and `told` what was asked."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=sys.maxsize)
    parser.add_argument("--seconds", type=float, default=120)
    options = parser.parse_args()
    started, found, number = time.monotonic(), 0, options.first
    while number < options.first + options.count and time.monotonic() - started < options.seconds:
        if lines := problems(options.seed, number):
            found += 1
            print(f"--- {number}: {told(options.seed, number)}" + "\n".join(lines), flush=True)
        number += 1
        if number % 100 == 0:
            capture.reset()
    print(f"{number - options.first} cases up to {number - 1}, {found} that differ, in {time.monotonic() - started:.0f} s")
    return bool(found)
