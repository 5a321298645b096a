"""Hits with the backend "eager", divided by plain eager: what capture costs, or saves, when it optimises nothing.

    python -m benchmarks.steady [--pairs N] [--json FILE] [model …]

Per model: inference under no_grad, and a training step (forward and backward).
"""
from __future__ import annotations

import torch

import capture
from benchmarks.common import Ratio, arguments, paired, report, seconds
from benchmarks.workloads import STEPS
from tests.models.zoo import ZOO

BATCH = 4
LEAST_SECONDS = 0.1  # of one measurement, so that the clock's grain and single interruptions do not matter


def measure(name: str, training: bool, pairs: int) -> Ratio:
    """Model `name` captured and as it is, on the same inputs."""
    torch.manual_seed(0)
    module, inputs = ZOO[name].build()
    module.train(training)
    example = inputs(BATCH)
    compiled = capture.compile(module, backend="eager")
    step = STEPS["training" if training else "inference"]
    calls = max(1, int(LEAST_SECONDS / seconds(lambda: step(module, example), 5)))
    seconds(lambda: step(compiled, example), 5)
    hits = capture.stats(compiled).hits
    ratio = paired(f"{name}, {'training' if training else 'inference'}",
                   lambda: seconds(lambda: step(compiled, example), calls),
                   lambda: seconds(lambda: step(module, example), calls), pairs, 1.0)
    if capture.stats(compiled).hits - hits != pairs * calls:
        raise RuntimeError(f"not every call was a hit: {capture.stats(compiled)}")
    return ratio


def main() -> None:
    options = arguments(__doc__, ZOO)
    ratios, failures = [], {}
    for name in options.names:
        for training in (False, True):
            try:
                ratios.append(measure(name, training, options.pairs))
            except Exception as error:
                failures[f"{name}, training={training}"] = f"{type(error).__name__}: {error}"
    report("Hits with backend eager: capture / plain eager", ratios, failures, options.json)


if __name__ == "__main__":
    main()
