"""Results from which other results are computed.

In the core, each is replaced by a further input where other results are computed from it. Then no result is computed from another,
and the backward graph that AOTAutograd traces ends where a result's own autograd node passes gradients on.
"""
from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from capture.backends.aot.aten import is_random, is_view, is_write, steps, storage_of
from capture.backends.aot.inlining import call_original
from capture.backends.aot.observed import Eager, below, edge, edges_below
from capture.backends.aot.saving import origin
from capture.backends.aot.strides import laid_out
from capture.backends.aot.tail import Split
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.nodes import same
from capture.backends.native.signature import Unsupported


@dataclass(frozen=True, slots=True)
class Inner:
    """Results, or views or bases of them, from which other results of the core are computed. For each, the core takes a further
    input, and returns its value behind the results."""

    tensors: tuple[Tensor, ...]                 # eager mode's
    specs: tuple[TensorSpec, ...]               # of the further inputs
    sources: tuple[frozenset[int], ...]         # for each differentiable result, those whose passes come to it, and itself
    reached: tuple[frozenset[int], ...]         # for each of them, the inputs, further ones too, at which its passes arrive
    # The tail's nodes for tensors with nodes of autograd, in the order in which eager mode makes those (and calls them in reverse).
    order: tuple[fx.Node, ...]


def cut_out(parts: Split, eager: Eager, specs: Sequence[TensorSpec], modes: Modes) -> Inner | None:
    """Gives the core its further inputs; None if one node of autograd can make all results. Raises Unsupported if what is computed
    from a result cannot be told from the rest of the core."""
    tensors = _computed_from(parts)
    roots = parts.differentiable
    if not tensors and len(set(_inputs_reached(eager, roots))) < 2:
        return None
    reached = list(map(below, roots))
    sources = tuple(frozenset(j for j, nodes in enumerate(reached) if root.grad_fn in nodes) for root in roots)
    own = tuple(map(_spec, tensors))
    made = [(tensor.grad_fn._sequence_nr(), node) for tensor, node in parts.nodes if tensor.grad_fn is not None]
    order = tuple(node for _, node in sorted(made, key=operator.itemgetter(0)))
    for place, tensor in enumerate(tensors):
        _Cut(parts.core, eager, tensor).run(f"inner_{place}")
    parts.core.recompile()
    return Inner(tensors, own, sources, _reached(parts, [*specs, *own], modes), order)


def _computed_from(parts: Split) -> tuple[Tensor, ...]:
    """The tensors that the tail makes or is given, and that results of the core are computed from, as autograd knows it."""
    known = {edge(t): t for t in parts.tensors if t.grad_fn is not None}
    found: dict[Any, Tensor] = {}
    seen: set[Any] = set()
    stack = [root.grad_fn for root in parts.differentiable]
    while stack:
        for following in stack.pop().next_functions:
            if following in known:
                found[following] = known[following]
            elif following[0] is not None and following[0] not in seen:
                seen.add(following[0])
                stack.append(following[0])
    return tuple(found.values())


def _spec(tensor: Tensor) -> TensorSpec:
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported("a result that others are computed from is a conjugate or negative view")
    return TensorSpec(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.layout, True, False, False, 0, None)


class _Cut:
    """Has the core use a further input in place of one of its tensors."""

    def __init__(self, core: fx.GraphModule, eager: Eager, tensor: Tensor) -> None:
        self.graph, self.eager, self.tensor = core.graph, eager, tensor
        self.holders = [node for node in self.graph.nodes if eager.values.get(node) is tensor and node.op != "output"]

    def run(self, name: str) -> None:
        if not self.holders:
            raise Unsupported("a result that others are computed from is made within an operation")
        order = {node: place for place, node in enumerate(self.graph.nodes)}
        first = self.holders[0]
        writer = self.eager.writers.get(storage_of(self.tensor), first)
        start = max(order[first], order[writer])        # from here on nothing writes to it
        with self.graph.inserting_after(self.graph.find_nodes(op="placeholder")[-1]):
            stand_in = self.graph.placeholder(name)
        for node, place in order.items():
            if place > start and node in self.eager.values and node.op != "output" and node not in self.holders:
                node.args, node.kwargs = (fx.map_arg(value, lambda arg: stand_in if arg in self.holders else arg)
                                          for value in (node.args, node.kwargs))
        end = self.graph.output_node()
        with self.graph.inserting_before(end):
            value = self.graph.call_method("clone", (self.graph.call_method("detach", (first,)),))
        end.args = ((*end.args[0], value),)


def _reached(parts: Split, specs: Sequence[TensorSpec], modes: Modes) -> tuple[frozenset[int], ...]:
    """`Inner.reached`, of eager mode's run of the core. Raises Unsupported if results are still computed from others, since these
    were written to afterwards."""
    again = Eager.run(parts.core, specs, modes)
    roots = [tensor for tensor in again.outputs if tensor.requires_grad]
    edges = list(map(edges_below, roots))
    if len(roots) != len(parts.differentiable) or any(
            edge(a) in known for b, known in zip(roots, edges, strict=True) for a in roots if a is not b):
        raise Unsupported("a result is written to after others were computed from it")
    return _inputs_reached(again, roots)


def _inputs_reached(eager: Eager, roots: Sequence[Tensor]) -> tuple[frozenset[int], ...]:
    """For each of the results the inputs that a backward pass from it comes to."""
    places = {id(tensor): place for place, tensor in enumerate(eager.inputs)}
    leaves = [[id(node.variable) for node in below(root) if hasattr(node, "variable")] for root in roots]
    return tuple(frozenset(places[leaf] for leaf in found if leaf in places) for found in leaves)


def replayable(core: fx.GraphModule, results: Sequence[Tensor]) -> fx.GraphModule:
    """The core in a form that other processes can run and name: it returns the differentiable results, and behind these the values
    of the inner ones."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in core.graph.nodes:
        if node.op == "output":
            made, values = node.args[0][:len(results)], node.args[0][len(results):]
            graph.output((*(copies[result] for result, tensor in zip(made, results, strict=True) if tensor.requires_grad),
                          *(copies[value] for value in values)))
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            call_original(copies[node])
    return _LazyGraphModule({}, graph)


# --- the traced graph

def put_in(forward: fx.GraphModule, first: int, count: int) -> None:
    """Puts the values that a forward graph returns, `count` from `first` on, in the places of its last inputs."""
    graph = forward.graph
    end = graph.output_node()
    values = end.args[0][first:first + count]
    stand_ins = graph.find_nodes(op="placeholder")[-count:]
    end.args = ((*end.args[0][:first], *end.args[0][first + count:]),)
    for stand_in, value in zip(stand_ins, values, strict=True):
        actual = _actual(graph, origin(value).args[0])
        found, wanted = actual.meta["val"], stand_in.meta["val"]
        if steps(found) != steps(wanted):
            raise Unsupported("a result that others are computed from has other strides where it is traced")
        if not same(found.stride(), wanted.stride()):
            actual = laid_out(end, actual, wanted)
        stand_in.replace_all_uses_with(actual)
        graph.erase_node(stand_in)
    _order(graph)
    forward.recompile()


def _actual(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The node for a tensor itself, where the given one is computed from a copy of what it is a view of."""
    node = origin(node)
    if "copy" in node.meta:
        return node.args[0]
    if not is_view(node) or (below := _actual(graph, node.args[0])) is node.args[0]:
        return node
    with graph.inserting_after(node):
        actual = graph.node_copy(node, lambda _: below)
    actual.meta = dict(node.meta)
    return actual


def _order(graph: fx.Graph) -> None:
    """Moves what stands before what it takes to behind that. Raises Unsupported where that would change the order of draws, or of a
    write and other operations."""
    end = graph.output_node()
    placed: set[fx.Node] = set()
    waiting: list[fx.Node] = []
    order: list[fx.Node] = []
    for node in graph.nodes:
        waiting.append(node)
        while ready := [one for one in waiting if placed.issuperset(one.all_input_nodes)]:
            waiting = [one for one in waiting if one not in ready]
            if any(is_random(one) and one is not node for one in ready) or (waiting and is_write(node)):
                raise Unsupported("what is computed from a result comes before it in the traced graph")
            placed.update(ready)
            order += ready
    for node in order:
        if node is not end:
            end.prepend(node)
