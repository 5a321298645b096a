"""Peak memory of the capturing call and of a hit, divided by eager's: tensors must be freed as early as by eager.

    python -m benchmarks.memory [--pairs N] [--json FILE]      (Linux: reads /proc/self)
"""
from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import capture
from benchmarks.common import arguments, paired, peak, report

MEGABYTES = 64  # above 32, malloc gives each tensor its own mapping, and returns it to the system at once
STEPS = 20


def chain(x: Tensor) -> Tensor:
    """Every intermediate tensor dies in the next step; eager needs about two of them at a time."""
    for step in range(STEPS):
        x = torch.relu(x) + step
        x = x * 0.5
    return x


@capture.disable
def stop() -> None:
    """Breaks the graph."""


def broken(x: Tensor) -> Tensor:
    """The chain with a break in each step, at which continuations take over what is alive."""
    for _ in range(STEPS):
        x = torch.relu(x) + 1
        stop()
        x = x * 0.5
    return x


def halves(x: Tensor) -> Iterator[Tensor]:
    """The steps of the chain with breaks, one by one."""
    for _ in range(STEPS):
        x = torch.relu(x) + 1
        stop()
        x = x * 0.5
        yield x[:1]


def in_a_generator(x: Tensor) -> Tensor:
    """The same where a generator takes the steps, which is alive at each break."""
    total = torch.zeros(1)
    rows = halves(x)
    del x
    for first in rows:
        total = total + first.clone()
    return total


def capturing(program: Callable, x: Tensor) -> float:
    capture.reset()
    compiled = capture.compile(program, backend="eager")
    return peak(lambda: compiled(x))


def main() -> None:
    options = arguments(__doc__)
    x = torch.ones(MEGABYTES * 2**20 // 4)
    deep = nn.Sequential(*(nn.Sequential(nn.ReLU(), nn.Dropout(0.1)) for _ in range(STEPS))).eval()
    ratios, failures = [], {}
    with torch.no_grad():
        for name, program in (("a chain of operations", chain), ("a chain of modules", deep), ("a chain with breaks", broken),
                              ("breaks in a generator", in_a_generator)):
            try:
                def eager(program: Callable = program) -> float:
                    return peak(lambda: program(x))
                ratios.append(paired(f"{name}, capture", lambda program=program: capturing(program, x), eager,
                                     options.pairs, 1.1))
                compiled = capture.compile(program, backend="eager")
                compiled(x)
                ratios.append(paired(f"{name}, hit", lambda compiled=compiled: peak(lambda: compiled(x)), eager,
                                     options.pairs, 1.1))
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
    report("Peak memory: capture / eager", ratios, failures, options.json)


if __name__ == "__main__":
    main()
