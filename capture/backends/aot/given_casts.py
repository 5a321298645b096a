"""Graphs, in torch's operations, that take as inputs the casts that autocast keeps: for torch's backends.

Most of these trace a graph again with autocast's cache turned off, so that their code would cast a weight on each call.
"""
from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.utils import checkpoint

from capture import _C
from capture.backends.aot.aten import storage_of, tensors_in
from capture.backends.aot.casts import Casts, cached, check, has_blocks, weights_among
from capture.backends.aot.fakes import fake_inputs
from capture.backends.kept_casts import with_casts
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.signature import Unsupported
from capture.backends.traceable import find_obstacle, program_code
from capture.operators.recorded_graph import RecordedGraph

Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def compiled(compile: Compile, gm: fx.GraphModule, inputs: Sequence[Any], specs: Sequence[TensorSpec]) -> Callable[..., Any]:
    """What `compile` makes of a graph, called with the casts that torch keeps, under the modes in force. Raises Unsupported where
    these cannot be told."""
    modes = Modes.current()
    check(gm, specs, modes)
    dtypes, blocks = cached(specs, modes), has_blocks(gm, specs, modes)
    if not dtypes and not blocks:
        return compile(gm, inputs)
    found = find_obstacle(gm) or next(filter(None, map(program_code, gm.graph.nodes)), None)
    if found is not None:
        raise Unsupported(f"the graph {found}")
    run = _Run(gm, specs, dtypes)
    cast_in = {} if blocks else run.casts()
    places = tuple(sorted(set().union(*cast_in.values())))
    if not places:
        return compile(gm, inputs)
    taking = _taking_casts(gm, places, cast_in)
    if _Run(taking, specs, {place: dtypes[place] for place in places}, given=True).operations != run.operations:
        raise Unsupported("an operation does something else with a cast than with its weight")
    return with_casts(gm.forward, places, compile(taking, [*inputs, *(inputs[place].to(dtypes[place]) for place in places)]))


def _taking_casts(gm: fx.GraphModule, places: Sequence[int], cast_in: Mapping[fx.Node, Collection[int]]) -> fx.GraphModule:
    """A copy of a graph that takes casts behind its inputs. cast_in: for each node, of which inputs it takes the casts."""
    graph = fx.Graph()
    weights = [node for node in gm.graph.nodes if node.op == "placeholder"]
    copies: dict[fx.Node, Any] = {node: graph.node_copy(node) for node in weights}
    casts = {place: graph.placeholder(f"cast_{place}") for place in places}
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            own = copies | {weights[place]: casts[place] for place in cast_in.get(node, ())}
            copies[node] = graph.node_copy(node, own.__getitem__)
    taking = RecordedGraph(gm, graph)
    taking.meta = dict(gm.meta)
    return taking


class _Run(fx.Interpreter):
    """A run of a graph on tensors without data. dtypes: of the casts that autocast keeps of inputs, by place; if `given`, these are
    the graph's last inputs, and autocast keeps none. operations: see `_Operations`; spans: those of each node."""

    def __init__(self, gm: fx.GraphModule, specs: Sequence[TensorSpec], dtypes: Mapping[int, torch.dtype],
                 given: bool = False) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.spans: dict[fx.Node, slice] = {}
        self.inputs = fake_inputs(specs)
        others = [place for place in weights_among(specs) if place not in dtypes]
        with _without_inference(), self.inputs[0].fake_mode if self.inputs else FakeTensorMode():
            casts = [self.inputs[place].to(dtype) for place, dtype in dtypes.items()] if given else _C.cached_casts(
                tuple(self.inputs), tuple(dtypes))
            self.seen = _Operations(self.inputs, (*dtypes, *others), casts)
            try:
                with self.seen:
                    _C.with_modes_put_back(lambda: self.run(*self.inputs, *casts if given else ()))
            except Unsupported:
                raise
            except Exception as error:      # whatever an operator does on tensors without data
                raise Unsupported(f"the graph cannot be traced: {type(error).__name__}: {error}") from error
        self.operations = self.seen.operations

    def run_node(self, n: fx.Node) -> Any:
        first = len(self.seen.operations)
        value = super().run_node(n)
        self.spans[n] = slice(first, len(self.seen.operations))
        return value

    def casts(self) -> dict[fx.Node, set[int]]:
        """Of which inputs each node uses casts. Raises Unsupported where that is not all that it uses of one of these."""
        found: dict[fx.Node, set[int]] = {}
        inputs = [node for node in self.spans if node.op == "placeholder"]
        for node, span in self.spans.items():
            taken = {number for _, operands in self.operations[span] for number, *_ in operands}
            places = {place for place in range(len(inputs)) if len(inputs) + place in taken}
            if places and node.target is checkpoint.checkpoint:
                raise Unsupported("a checkpoint casts weights, and casts them anew in the backward pass")
            if any(place in taken or inputs[place] not in node.all_input_nodes for place in places):
                raise Unsupported("an operation uses a weight and its cast")
            if places:
                found[node] = places
        return found


class _Operations(Casts):
    """Notes the operators of ATen that are called, with the tensors that each takes: (number of the storage, shape, strides,
    offset, dtype). Storages are numbered: those of the inputs, their casts, then all others as they are met."""

    def __init__(self, inputs: Sequence[Tensor], weights: Sequence[int], casts: Sequence[Tensor]) -> None:
        super().__init__([inputs[place] for place in weights], {}, casts)
        self.numbers = {storage_of(tensor): place for place, tensor in enumerate(inputs)}
        self.numbers |= {storage_of(cast): len(inputs) + place for place, cast in zip(weights, casts, strict=False)}
        self.further = itertools.count(2 * len(inputs))
        self.operations: list[tuple[Any, list[tuple[Any, ...]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        taken = tensors_in((args, kwargs))
        self.alive += taken
        if func.namespace != "prim":        # which asks for devices
            self.operations.append((func, [
                (self.number(tensor), tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype) for tensor in taken]))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def number(self, tensor: Tensor) -> int:
        """Of the storage of a tensor."""
        found = self.numbers.get(storage_of(tensor))
        if found is None:
            found = self.numbers[storage_of(tensor)] = next(self.further)
        return found


@contextlib.contextmanager
def _without_inference() -> Iterator[None]:
    """Instead of inference mode, the same operations on tensors of any kind."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield
