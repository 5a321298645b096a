"""What is left in the process by captures that `capture.reset()` forgot: it must be nothing.

    python -m benchmarks.growth [--captures N] [--backend NAME] [--programs NAME …]      (Linux: reads /proc/self)

Prints, ten times on the way, the resident memory, the blocks of Python's allocator and the objects of its garbage collector. Fails
when objects or blocks grew after the first tenth, which fills the caches that are bounded.
"""
from __future__ import annotations

import argparse
import gc
import sys
import time
import types
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import capture

ALLOWED = 100           # objects; and twenty blocks for each: integers, strings and the like
PROGRAMS = "plain", "broken", "containers", "raising", "failing", "generators", "module"


@capture.disable
def outside(x: torch.Tensor) -> torch.Tensor:
    """Breaks the graph."""
    return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.steps = nn.Linear(4, 4), nn.BatchNorm1d(4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.norm(self.linear(x)).relu()


def makers() -> dict[str, Callable[[], Callable[[torch.Tensor], Any]]]:
    """Factories of the programs that are captured, by name: each is made anew, and dropped, with every capture."""
    state = SimpleNamespace(scale=2.0, log=[])
    model = Model()

    def plain() -> Callable:
        return lambda x: (x * state.scale).relu()

    def broken() -> Callable:
        def program(x: torch.Tensor) -> torch.Tensor:
            for k in range(2):
                x = outside(x * k)
            return x + 1
        return program

    def containers() -> Callable:
        def program(x: torch.Tensor) -> Any:
            class Box:
                pass
            box = Box()
            box.rows = {k: [row] for k, row in enumerate(x)}
            state.log[:] = [x.ndim]
            return box.rows
        return program

    def raising() -> Callable:
        def program(x: torch.Tensor) -> torch.Tensor:
            try:
                raise KeyError(x.ndim)
            except KeyError as error:
                return x * error.args[0]
        return program

    def failing() -> Callable:
        def program(x: torch.Tensor) -> torch.Tensor:
            raise ValueError(x.ndim)
        return program

    def generators() -> Callable:
        return lambda x: sum(row * 2 for row in x)

    def module() -> Callable:
        return model
    return {make.__name__: make for make in (plain, broken, containers, raising, failing, generators, module)}


def captures(count: int, backend: str, programs: Sequence[str] = PROGRAMS) -> None:
    """`count` times: a program is captured, called again (a hit), and forgotten."""
    known = makers()
    made = [known[name] for name in programs]
    x = torch.ones(3, 4)
    options = {"background": False} if backend == "native" else None
    for number in range(count):
        compiled = capture.compile(made[number % len(made)](), backend=backend, options=options)
        for _ in range(2):
            try:
                result = compiled(x)
                if isinstance(result, torch.Tensor) and result.requires_grad:
                    result.sum().backward()
            except ValueError:
                pass
        capture.reset()


def census() -> tuple[int, Counter[str]]:
    """Blocks of Python's allocator, and objects of its garbage collector by type; but for what abstract classes remember of the
    classes that they were asked for, which is bounded."""
    gc.collect()
    gc.collect()
    objects = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects() if not is_abc_memory(each))
    return sys.getallocatedblocks(), objects


def is_abc_memory(each: object) -> bool:
    """A weak reference in the memory of an abstract class, or its callback."""
    callback = each.__callback__ if type(each) is weakref.ref else each
    return type(callback) is types.BuiltinFunctionType and callback.__name__ == "_destroy"


def grown(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    """How many objects of each type there are more than before, most first."""
    return dict((after - before).most_common(10))


def resident() -> float:
    """Resident memory of the process in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--captures", type=int, default=100_000)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS, metavar="NAME",
                        help=f"of {', '.join(PROGRAMS)}; `plain`, `raising` and `failing` are captured in little time")
    options = parser.parse_args()
    start, first = time.monotonic(), None
    for tenth in range(1, 11):
        captures(options.captures // 10, options.backend, options.programs)
        blocks, objects = census()
        print(f"{tenth * options.captures // 10} captures, {time.monotonic() - start:.0f} s: {resident():.1f} MB, {blocks} blocks, "
              f"{objects.total()} objects", flush=True)
        first = first or (blocks, objects)
    more = objects.total() - first[1].total()
    print(f"grown since the first tenth: {more} objects, {blocks - first[0]} blocks; {grown(first[1], objects)}")
    return more > ALLOWED or blocks - first[0] > 20 * ALLOWED


if __name__ == "__main__":
    sys.exit(main())
