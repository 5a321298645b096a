"""Wall time of the capturing call, ours divided by the first call of torch.compile with backend "eager".

    python -m benchmarks.capture_time [--pairs N] [--json FILE] [model …]

Each measurement takes a fresh module and empty caches; one eager call before it initialises the libraries.
"""
from __future__ import annotations

from collections.abc import Callable

import torch

import capture
from benchmarks.common import arguments, paired, report, seconds
from tests.models.zoo import ZOO


def first_call(name: str, engine: Callable, reset: Callable[[], None]) -> float:
    """Seconds of the first call of model `name` under `engine`."""
    reset()
    torch.manual_seed(0)
    module, inputs = ZOO[name].build()
    module.eval()
    example = inputs(2)
    module(**example)
    compiled = engine(module, backend="eager")
    return seconds(lambda: compiled(**example))


def main() -> None:
    options = arguments(__doc__, ZOO)
    ratios, failures = [], {}
    with torch.no_grad():
        for name in options.names:
            try:
                def ours(name: str = name) -> float:
                    return first_call(name, capture.compile, capture.reset)

                def theirs(name: str = name) -> float:
                    return first_call(name, torch.compile, torch._dynamo.reset)
                ours(), theirs()
                ratios.append(paired(name, ours, theirs, options.pairs, 1.0))
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
    report("The capturing call: capture / torch.compile", ratios, failures, options.json)


if __name__ == "__main__":
    main()
