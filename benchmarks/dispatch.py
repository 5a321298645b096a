"""What one call costs before any kernel runs: ours divided by torch.compile's, with a backend that computes nothing.

    python -m benchmarks.dispatch [--pairs N] [--json FILE]
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

import capture
from benchmarks.common import arguments, paired, report, seconds


def nothing(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend whose callable computes once, and returns the outputs of that time ever after."""
    outputs: list[Any] = []

    def compiled(*inputs: Any) -> Any:
        if not outputs:
            outputs.append(gm.forward(*inputs))
        return outputs[0]
    return compiled


def tiny(x: Tensor) -> Tensor:
    return x + 1


def tree() -> nn.Module:
    """320 modules and 512 parameters: a root, 63 blocks, and 256 linear layers in and beside them."""
    layers = [nn.Linear(4, 4) for _ in range(256)]
    blocks = [nn.Sequential(*layers[i:i + 4]) for i in range(0, 252, 4)]
    module = nn.Sequential(*blocks, *layers[252:])
    assert sum(1 for _ in module.modules()) == 320 and len(list(module.parameters())) == 512
    return module


def main() -> None:
    options = arguments(__doc__)
    x = torch.randn(4)
    # A module for each engine: torch.compile leaves attributes on the parameters of what it compiles, which others must guard.
    subjects = [("tiny function", lambda: tiny, 20_000, 1 / 4), ("320 modules, 512 parameters", tree, 2_000, 1 / 10)]
    ratios, failures = [], {}
    with torch.no_grad():
        for name, make, calls, goal in subjects:
            try:
                ours = capture.compile(make(), fullgraph=True, backend=nothing)
                theirs = torch.compile(make(), fullgraph=True, backend=nothing)
                for engine in (ours, theirs):
                    seconds(lambda engine=engine: engine(x), 10)
                ratios.append(paired(name, functools.partial(seconds, functools.partial(ours, x), calls),
                                     functools.partial(seconds, functools.partial(theirs, x), calls),
                                     options.pairs, goal))
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
    report("Overhead of one call: capture / torch.compile", ratios, failures, options.json)


if __name__ == "__main__":
    main()
