"""What a hit costs where nothing hides it: functions of one to three tiny operations, with graph breaks and without.

    python -m benchmarks.hits [--pairs N] [--json FILE] [name ...]

Each function runs eagerly, captured, and under torch.compile, both with a backend that runs graphs as they are; measured in turn.
"""
from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

import capture
from benchmarks.common import arguments, paired, report, seconds

ITEMS = [torch.full((8,), float(i)) for i in range(20)]
AGAINST_EAGER, AGAINST_TORCH = 1.5, 1.0     # goals
WARM_UP, CALLS = 60, 300


def as_it_is(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that compiles nothing."""
    return gm.forward


def programs(stop: Callable[[Any], Any]) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Functions and their arguments. `stop`: what no graph holds."""
    def operation(x: Tensor) -> Tensor:
        return x + 1

    def numbers(a: int, b: int) -> int:
        return a + b

    def stops(x: Tensor) -> Tensor:
        x = x * 2
        stop(1)
        return x.relu()

    def inner(x: Tensor) -> Tensor:
        return stops(x.exp()) - 1

    def deep(x: Tensor) -> Tensor:
        return inner(x + 1) * 3

    def decides(x: Tensor) -> Tensor:
        x = x * 2
        return x + 1 if x.sum() > 1e9 else x - 1

    def counts(x: Tensor) -> Tensor:
        for i in range(20):
            x = x + 1
            stop(i)
        return x

    def walks(x: Tensor) -> Tensor:
        for i, item in enumerate(ITEMS):
            x = x + item
            stop(i)
        return x

    x = torch.randn(8)
    return {"one operation": (operation, (x,)), "no tensor": (numbers, (2, 3)), "a break": (stops, (x,)),
            "a break three calls deep": (deep, (x,)), "a decision": (decides, (x,)),
            "breaks in a range": (counts, (x,)), "breaks in a list": (walks, (x,))}


def main() -> None:
    known = programs(print)
    options = arguments(__doc__, known)
    ratios, failures = [], {}
    ours_stop, theirs_stop = capture.disable(lambda value: value), torch.compiler.disable(lambda value: value)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in options.names:
            try:
                function, args = programs(ours_stop)[name]
                ours = capture.compile(function, backend=as_it_is)
                theirs = torch.compile(programs(theirs_stop)[name][0], backend=as_it_is)
                eager = programs(lambda value: value)[name][0]
                for engine in (ours, theirs):
                    seconds(functools.partial(engine, *args), WARM_UP)
                measure = {engine: functools.partial(seconds, functools.partial(engine, *args), CALLS)
                           for engine in (ours, theirs, eager)}
                ratios.append(paired(f"{name} / eager", measure[ours], measure[eager], options.pairs, AGAINST_EAGER))
                ratios.append(paired(f"{name} / torch.compile", measure[ours], measure[theirs], options.pairs, AGAINST_TORCH))
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
    report("Time of a hit: capture / eager, capture / torch.compile", ratios, failures, options.json)


if __name__ == "__main__":
    main()
