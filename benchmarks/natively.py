"""What capture costs a program that it has given up on: calls that no entry fits, divided by those of the program itself.

    python -m benchmarks.natively [--pairs N] [--json FILE]

Each program has as many entries as it may have, none of which fits the calls that are measured.
"""
from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import capture
from benchmarks.common import Ratio, arguments, paired, report, seconds


def product(x: Tensor) -> Tensor:
    return torch.relu(x @ x.T + 1).sum()


class Layers(nn.Module):
    """24 layers, each of which adds what a cache holds for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(24))

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        for layer, held in zip(self.layers, cache, strict=True):
            x = torch.relu(layer(x)) + held
        return x


def sizes(count: int) -> tuple[Any, ...]:
    return torch.randn(count, 64),


def caches(count: int) -> tuple[Any, ...]:
    return torch.randn(count, 32), [torch.randn(count, 32) for _ in range(24)]


def measured(name: str, program: Callable[..., Any], given: Callable[[int], tuple[Any, ...]], calls: int, pairs: int) -> Ratio:
    compiled = capture.compile(program, backend="eager", dynamic=False)
    for count in [*range(2, 14), 14]:
        compiled(*given(count))
        compiled(*given(count))
    args: Iterable[Any] = given(64)
    ours, theirs = (functools.partial(seconds, functools.partial(engine, *args), calls) for engine in (compiled, program))
    before = capture.stats(compiled)
    ratio = paired(name, ours, theirs, pairs, 1.01)
    after = capture.stats(compiled)
    assert (after.captures, after.hits) == (before.captures, before.hits), "the calls were to run natively"
    return ratio


def main() -> None:
    options = arguments(__doc__)
    warnings.simplefilter("ignore")
    with torch.no_grad():
        ratios = [measured("a product", product, sizes, 3_000, options.pairs),
                  measured("24 layers and their cache", Layers(), caches, 200, options.pairs)]
    report("Calls that run natively for good: capture / eager mode", ratios, {}, options.json)


if __name__ == "__main__":
    main()
