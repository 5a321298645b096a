"""Graph breaks: how many graphs programs with a break become, and how many of their operations run outside of any.

    python -m benchmarks.breaks

Each program calls something in its midst that no graph can hold (a function excluded from compilation), or prints, where it is
hardest: in a loop, in `try`, in a `with` of a class of the user's, one and three calls deep. Both engines get the same backend,
which counts. Operations are counted in an eager run; those that no graph ran were run eagerly. Counts, not times: one run tells.
"""
from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import fx
from torch.overrides import TorchFunctionMode

import capture

Tensor = torch.Tensor


@dataclass(slots=True)
class Count:
    """What a backend saw: graphs made, and operations that their calls ran since `ran` was set to 0."""

    graphs: int = 0
    ran: int = 0
    sizes: list[int] = field(default_factory=list)

    def backend(self, gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        size = sum(node.op in ("call_function", "call_method", "call_module") for node in gm.graph.nodes)
        self.graphs += bool(size)
        self.sizes.append(size)

        def run(*args: Any) -> Any:
            self.ran += size
            return gm.forward(*args)
        return run


class Operations(TorchFunctionMode):
    """Counts the calls of torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


class Section:
    """A context manager as users write them."""

    def __enter__(self) -> Section:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def programs(stop: Callable[[Any], Any]) -> dict[str, Callable[[Tensor], Tensor]]:
    """Programs that call `stop` in their midst."""
    def in_a_loop(x: Tensor) -> Tensor:
        for i in range(4):
            x = (x * 2).relu()
            stop(i)
        return x + 1

    def in_try(x: Tensor) -> Tensor:
        try:
            x = (x * 2).relu()
            stop("here")
            x = x + 1
        finally:
            x = x.exp()
        return x

    def in_with(x: Tensor) -> Tensor:
        with Section():
            x = (x * 2).relu()
            stop("here")
            x = x + 1
        return x.exp()

    def one(x: Tensor) -> Tensor:
        x = x * 2
        stop("here")
        return x.relu()

    def two(x: Tensor) -> Tensor:
        return one(x + 1) * 3

    def three(x: Tensor) -> Tensor:
        return two(x.exp()) - 1

    def one_deep(x: Tensor) -> Tensor:
        return one(x + 1).exp()

    def three_deep(x: Tensor) -> Tensor:
        return three(x + 1).exp()
    return {"in a loop of 4": in_a_loop, "in try": in_try, "in a user's with": in_with, "one call deep": one_deep,
            "three calls deep": three_deep}


def measure(program: Callable[[Tensor], Tensor], compiled: Callable[[Tensor], Tensor], count: Count) -> tuple[int, int]:
    """Graphs made, and operations of a hit that ran outside of them."""
    x = torch.randn(8).abs()
    expected = program(x)
    operations = Operations()
    with operations:
        program(x)
    for _ in range(3):
        count.ran = 0
        if not torch.equal(compiled(x), expected):
            raise AssertionError(f"{program.__name__} is wrong")
    return count.graphs, operations.count - count.ran


def main() -> None:
    table = Table("the program", "breaks at", "graphs, ours", "graphs, torch.compile", "eager operations, ours",
                  "eager operations, torch.compile")

    def excluded(x: Any) -> None:
        pass
    kinds = {"a call that cannot be captured": (capture.disable(lambda x: None), torch.compiler.disable(excluded)),
             "print": (print, print)}
    for kind, (ours_stop, theirs_stop) in kinds.items():
        for name in programs(print):
            results = []
            for stop, engine in ((ours_stop, capture.compile), (theirs_stop, torch.compile)):
                torch._dynamo.reset()
                count, program = Count(), programs(stop)[name]
                with contextlib.redirect_stdout(io.StringIO()):
                    results.append(measure(program, engine(program, backend=count.backend), count))
            (graphs, eager), (their_graphs, their_eager) = results
            table.add_row(name, kind, str(graphs), str(their_graphs), str(eager), str(their_eager))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
