"""Counting the operators of ATen that a program calls, and those that its graphs call."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from capture.backends import registry


class Counting(TorchDispatchMode):
    """Counts, by name, the operators that are called while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators[str(function)] += 1
        return function(*args, **(kwargs or {}))


class Graphs:
    """A backend around another one, which notes what becomes of its graphs.

    `callables`: what it has made of graphs; `calls`: how often one ran; `counter`: while it is set, the operators of graphs are
    counted there.
    """

    # What runs a graph by torch's operators makes no constants of numbers among its inputs, and loses no assignments to tensors.
    takes_numbers = takes_assignments = True

    def __init__(self, inner: Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]) -> None:
        self.inner = inner
        self.takes_autograd_functions = registry.takes_autograd_functions(inner)
        self.callables: list[Callable[..., Any]] = []
        self.calls = 0
        self.counter: Counter[str] | None = None

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        graph = self.inner(gm, example_inputs)
        self.callables.append(graph)

        def run(*args: Any) -> Any:
            self.calls += 1
            if self.counter is None:
                return graph(*args)
            with Counting() as counting:
                result = graph(*args)
            self.counter.update(counting.operators)
            return result
        return run


# What a graph need not hold: the mark of a new constant and ranges of the profiler, which compute nothing, and the reading of a
# value, which may follow it.
BESIDE = frozenset({"aten.lift_fresh.default", "aten._local_scalar_dense.default", "profiler._record_function_enter_new.default",
                    "profiler._record_function_exit._RecordFunction"})
LEAST = 0.5                 # of the operators of a program a graph must hold: compilers leave out what nothing depends on


def holds(operators: Counter[str], lacking: dict[str, int]) -> bool:
    """Whether graphs that lack some of a program's operators hold what it computes."""
    computing = sum(count for name, count in operators.items() if name not in BESIDE)
    return computing - sum(lacking.values()) >= LEAST * computing


def missing(program: Counter[str], graph: Counter[str]) -> dict[str, int]:
    """Which operators the program calls and the graph does not, and how often."""
    return {name: count for name, count in (program - graph).items() if name not in BESIDE}
