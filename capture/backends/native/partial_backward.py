"""Backward passes from some of the results only, for cases in which zeros in place of the other gradients would be wrong (zero
times infinity is NaN): what is computed from a missing gradient is left out, as in autograd."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from capture.backends.native.transport import decode_graph

aten = torch.ops.aten
SIGNS = {aten.add.Tensor: 1, aten.sub.Tensor: -1}


class PartialBackward:
    """A backward graph, whose first `saved` arguments are saved values and whose others are gradients; run by torch. graph: as
    bytes, since it is hardly ever needed."""

    def __init__(self, graph: bytes, saved: int) -> None:
        self.graph, self.saved = graph, saved
        self.runs: tuple[fx.GraphModule, frozenset[fx.Node]] | None = None

    def __call__(self, arguments: Sequence[Tensor], given: Sequence[bool]) -> tuple[Tensor | None, ...]:
        """What the graph returns, None for what is computed of gradients alone that are not there. arguments: zeros for these.
        given: for each gradient, whether it is there."""
        if self.runs is None:
            gm = decode_graph(self.graph)
            self.runs = gm, _dependent(gm.graph, self.saved)
        gm, dependent = self.runs
        with torch.no_grad(), torch._C._DisableAutocast(), torch._C._AutoDispatchBelowADInplaceOrView():
            zeros = WithNumbers(gm, garbage_collect_values=False)
            zeros.run(*arguments)
            values = [*arguments[:self.saved], *(value if there else None for value, there in zip(
                arguments[self.saved:], given, strict=True))]
            return _Run(gm, dependent, zeros.env).run(*values)


def _dependent(graph: fx.Graph, saved: int) -> frozenset[fx.Node]:
    """The nodes that are computed of gradients, and these."""
    found = set(graph.find_nodes(op="placeholder")[saved:])
    for node in graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return frozenset(found)


class WithNumbers(fx.Interpreter):
    """Runs a graph in which tensors stand for numbers of Python: torch's operators take numbers."""

    def run_node(self, n: fx.Node) -> Any:
        numbers = {} if "number" in n.meta else {arg: self.env[arg] for arg in n.all_input_nodes if "number" in arg.meta}
        self.env.update((arg, value.item()) for arg, value in numbers.items())
        try:
            return super().run_node(n)
        finally:
            self.env.update(numbers)


class _Run(WithNumbers):
    """zeros: what the nodes are where gradients that are not there are zeros."""

    def __init__(self, gm: fx.GraphModule, dependent: frozenset[fx.Node], zeros: dict[fx.Node, Any]) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.dependent, self.zeros = dependent, zeros

    def run_node(self, n: fx.Node) -> Any:
        there = {arg: self.env[arg] is not None for arg in n.all_input_nodes if arg in self.dependent}
        if n.op != "call_function" or all(there.values()):
            return super().run_node(n)
        if not any(there.values()):
            return None
        if n.target in SIGNS:
            first, second = n.args
            alpha = n.kwargs.get("alpha", 1)
            alpha = self.env[alpha] if isinstance(alpha, fx.Node) else alpha
            added = self.env[first] if there[first] else self.env[second] * alpha * SIGNS[n.target]
            return added.to(self.zeros[n].dtype).expand_as(self.zeros[n])
        missing = [arg for arg, is_there in there.items() if not is_there]
        self.env.update((arg, torch.zeros_like(self.zeros[arg])) for arg in missing)
        try:
            return super().run_node(n)
        finally:
            self.env.update(dict.fromkeys(missing))
