"""The joint graph of both passes, recorded or else traced by AOTAutograd, and what is made of it."""
from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import fx
from torch._subclasses import FakeTensor
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module

from capture.backends.aot.aten import aten, cloned, draws, merge_duplicates, outputs_of, random_operators
from capture.backends.aot.casts import keep_casts
from capture.backends.aot.formulas import eager_formulas
from capture.backends.aot.inner import put_in
from capture.backends.aot.partition import partition
from capture.backends.aot.recorder import JointGraph, NotRecorded, record
from capture.backends.aot.rematerialization import rematerialized
from capture.backends.aot.saving import keep_apart, origin
from capture.backends.aot.size_nodes import inline_sizes
from capture.backends.decompositions import decompositions
from capture.backends.native.signature import Input, Result, Unsupported

# Operators whose functional forms draw in another order than what they are the functional forms of, or with another method.
LAYOUT_MATTERS = frozenset({aten.bernoulli.p, aten.normal_functional.default})


class Joint:
    """What was made of one graph: `forward`, which returns `values` and `saved`; `backward`. tangents: the values that have
    gradients, in the order in which `backward` takes these. written: whether the graph writes to each input. differentiable:
    whether each result has a gradient. drawn: the random operators that were run. kept: what eager mode saves of inputs and
    results, these numbered as the graph returns them. casts: inputs whose casts autocast keeps, with their dtypes. inner: how many
    of the last inputs stand for values that the graph returns at its end (`aot.inner`); in `forward` these inputs are the
    values."""

    forward: fx.GraphModule
    backward: fx.GraphModule | None = None
    written: tuple[bool, ...]
    differentiable: tuple[bool, ...]
    values: list[fx.Node]
    saved: list[fx.Node]
    tangents: list[fx.Node]

    def __init__(self, kept: Collection[Input | Result] = (), casts: dict[int, Any] | None = None, inner: int = 0) -> None:
        self.kept = kept
        self.casts = casts or {}
        self.inner = inner
        self.drawn: Counter[Any] = Counter()
        self.tangents = []

    def trace(self, gm: fx.GraphModule, make_inputs: Callable[[], list[FakeTensor]], unsure: bool) -> None:
        """Traces a graph on these inputs. unsure: as of `Eager`. Raises Unsupported, and whatever an operator raises on fake
        tensors."""
        with eager_formulas(), _use_lazy_graph_module(True):
            try:
                made = record(gm, make_inputs(), self._counting(decompositions()))
            except (NotRecorded, RuntimeError):     # which AOTAutograd can trace, or raises
                if unsure:
                    raise Unsupported("a tensor is written to that may be a view in eager mode and a copy where torch traces it, "
                                      "or the other way round") from None
                self.drawn.clear()
                made = trace_by_torch(gm, make_inputs(), self._counting(decompositions()))
            self.written, self.differentiable = made.written, made.differentiable
            inline_sizes(made.graph)
            if any(self.differentiable):
                self._divide(made.graph)
            else:
                merge_duplicates(made.graph.graph)
                self.forward = rematerialized(made.graph, made.seeds)
        if self.inner and len(self.forward.graph.find_nodes(op="placeholder")) != len(self.written):
            raise Unsupported("tracing adds inputs, and results are computed from others")
        self._split()

    def _divide(self, joint: fx.GraphModule) -> None:
        keep_casts(joint, self.casts)
        results = len(self.differentiable)
        keep_apart(joint, outputs_of(joint.graph)[:results], self.kept)
        merge_duplicates(joint.graph)
        # modules that are turned into Python code when they are run, and not each time that the graph is changed
        self.forward, self.backward = (_LazyGraphModule(joint, graph) for graph in partition(joint.graph, results))

    def _split(self) -> None:
        """Tells apart what the forward graph returns."""
        results = len(self.differentiable) - self.inner
        if self.inner:
            put_in(self.forward, results, self.inner)
        returned = list(outputs_of(self.forward.graph))
        self.values, self.saved = list(map(origin, returned[:results])), returned[results:]
        for i, value in enumerate(self.values):
            if value.op == "placeholder":      # a copy that was optimised away
                self.values[i] = cloned(self.forward, value)
        if self.backward:
            self.tangents = list(itertools.compress(self.values, self.differentiable))

    def _counting(self, table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
        """The table, made to count the random operators that are run: tracing drops those of which nothing is used."""
        return {**table, **{op: functools.partial(self._count, op, table.get(op, _kept)) for op in random_operators()}}

    def _count(self, op: Any, decompose: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        if draws(op, args, kwargs):
            self.drawn[op] += 1
        if op in LAYOUT_MATTERS and not args[0].is_contiguous():
            raise Unsupported("random numbers are drawn into a tensor that is not contiguous")
        return NotImplemented


def trace_by_torch(gm: fx.GraphModule, inputs: list[FakeTensor], table: Mapping[Any, Callable[..., Any]]) -> JointGraph:
    """As the function of this name in `traced_by_torch`."""
    from capture.backends.aot import traced_by_torch  # which imports much of torch: only where it is needed
    return traced_by_torch.trace_by_torch(gm, inputs, table)


def _kept(*args: Any, **kwargs: Any) -> Any:
    return NotImplemented
