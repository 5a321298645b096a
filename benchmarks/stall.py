"""What a program feels of being compiled in the background: its calls during a compile, divided by calls without one.

    python -m benchmarks.stall [--pairs N] [--json FILE] [model …]

Both run the graph as it is, so that nothing differs but the compile. Per model: the median call, and the slowest but one in
a hundred, which shows single stalls.
"""
from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import capture
from benchmarks.common import Ratio, arguments, paired, report
from capture import config
from tests.models.zoo import ZOO

NAMES = ("bert", "resnet", "lstm")
BATCH = 4
CALLS = 100             # gathered over as many compiles as it takes
MOST_COMPILES = 50


def during(module: torch.nn.Module, example: dict[str, Any]) -> list[float]:
    """Seconds of each call while the module's graph is compiled, again and again until there are enough. Raises RuntimeError where
    there are too few, since compiles fail or end at once."""
    times: list[float] = []
    for _ in range(MOST_COMPILES):
        capture.reset()
        compiled = capture.compile(module, backend="native")
        compiled(**example)
        times += timed(functools.partial(compiled, **example), functools.partial(is_pending, compiled))
        capture.wait()
        if len(times) >= CALLS:
            return times
    errors = capture.stats(compiled).compile_errors
    raise RuntimeError(f"only {len(times)} calls were made during {MOST_COMPILES} compiles: {errors}")


def is_pending(compiled: torch.nn.Module) -> bool:
    """Whether a graph of the module's is being compiled, or waits for that."""
    return capture.stats(compiled).pending > 0


def without(module: torch.nn.Module, example: dict[str, Any], calls: int) -> list[float]:
    """Seconds of each of `calls` calls when nothing is compiled."""
    compiled = capture.compile(module, backend="eager")
    compiled(**example)
    left = iter(range(calls))
    return timed(lambda: compiled(**example), lambda: next(left, None) is not None)


def timed(call: Callable[[], object], more: Callable[[], bool]) -> list[float]:
    times = []
    while more():
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def slowest(times: list[float]) -> float:
    """The slowest but one in a hundred."""
    return statistics.quantiles(times, n=100)[-1]


def measure(name: str, pairs: int) -> list[Ratio]:
    """Model `name`, on the same inputs with and without a compile."""
    module, inputs = ZOO[name].build()
    module.eval()
    example = inputs(BATCH)
    calls = len(during(module, example))        # this also starts the compiling process

    def pair(subject: str, value: Callable[[list[float]], float], goal: float) -> Ratio:
        return paired(f"{name}, {subject}", lambda: value(during(module, example)), lambda: value(without(module, example, calls)),
                      pairs, goal)
    return [pair("median", statistics.median, 1.05), pair("slowest of 100", slowest, 1.5)]


def main() -> None:
    options = arguments(__doc__, NAMES)
    ratios, failures = [], {}
    with config.CACHE.set(0), torch.no_grad():
        for name in options.names:
            try:
                ratios += measure(name, options.pairs)
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
    report("Calls during a compile: with it / without", ratios, failures, options.json)


if __name__ == "__main__":
    main()
