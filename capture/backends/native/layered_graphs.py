"""Graphs of torch's operations with the layers put in that were left out (`layers`): what an artifact has beside its programs."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch.autograd.graph import increment_version

from capture.backends.native.layers import key_of, layers_of, operands
from capture.backends.native.repetition import NotAlike, Place, beside


def lengthened_core(gm: fx.GraphModule, left_out: int, given: Sequence[Place], given_in_full: Sequence[Place]) -> fx.GraphModule:
    """A graph with `left_out` more layers. given: what its inputs are; given_in_full: the same with all layers. Its results belong
    to no layer. Raises NotAlike."""
    nodes = [node for node in gm.graph.nodes if node.op != "placeholder"]
    layers = layers_of(gm, nodes, left_out, given)
    graph = fx.Graph()
    inputs = {place: graph.placeholder(f"input_{number}") for number, place in enumerate(given_in_full)}
    copies: dict[tuple[fx.Node, int], fx.Node] = {}
    for number, copy in layers:
        node = nodes[number]
        *taken, _ = layers.mentioned(number, copy)
        new = iter([inputs[thing] if isinstance(thing, Place) else copies[thing] for thing in taken])
        copies[node, copy] = graph.node_copy(node, lambda _, new=new: next(new))
    return fx.GraphModule(gm, graph)


def tail_with_edges(tail: fx.GraphModule, taken: Sequence[Place], taken_in_full: Sequence[Place], edges: Sequence[Sequence[Place]],
                    edges_in_full: Sequence[Sequence[Place]]) -> fx.GraphModule:
    """A tail that makes nodes of autograd (`aot.attaching_tail`), in whose edges layers were left out. taken: what it takes behind
    its first argument. edges: of each node. Raises NotAlike."""
    graph = fx.Graph()
    first, *others = tail.graph.find_nodes(op="placeholder")
    places = dict(zip(others, taken, strict=True))
    copies = {first: graph.placeholder("hang")}
    inputs = {place: graph.placeholder(f"given_{number}") for number, place in enumerate(taken_in_full)}
    copies |= {node: inputs[place] for node, place in places.items() if place.layer is None}
    for node in tail.graph.nodes:
        if node.op == "call_method" and node.target == "node" and node.args[0] is first:
            _, number, *ends = node.args
            own = dict(zip(edges[number], ends, strict=True))
            copies[node] = graph.call_method("node", (copies[first], number, *(
                inputs[place] if place.layer is not None else copies[own[place]] for place in edges_in_full[number])))
        elif node.op != "placeholder":
            if any(operand in places and places[operand].layer is not None for operand in operands(node)):
                raise NotAlike("a view is made of what is a layer's own")
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule({}, graph, "Tail")


def tail_with_outputs(tail: fx.GraphModule, taken: Sequence[Place], returned: Sequence[Place], returned_in_full: Sequence[Place],
                      left_out: int) -> tuple[fx.GraphModule, list[Place]]:
    """A tail (`aot.tail`) with the results that layers return which were left out, and what it takes. Raises NotAlike."""
    return _Tail(tail, taken, returned, left_out).with_outputs(returned_in_full)


class _Tail:
    def __init__(self, tail: fx.GraphModule, taken: Sequence[Place], returned: Sequence[Place], left_out: int) -> None:
        if any(node.target in (torch._C._set_grad_enabled, increment_version) for node in tail.graph.nodes):
            raise NotAlike("views are made in different modes, or count writes")
        self.places = dict(zip(tail.graph.find_nodes(op="placeholder"), taken, strict=True))
        self.left_out = left_out
        self.outputs = dict(zip(returned, tail.graph.output_node().args[0], strict=True))
        self.graph = fx.Graph()
        self.inputs: dict[Place, fx.Node] = {}
        self.copies: dict[tuple[fx.Node, int], fx.Node] = {}

    def with_outputs(self, returned_in_full: Sequence[Place]) -> tuple[fx.GraphModule, list[Place]]:
        end = self.graph.output(None)
        outputs = []
        for place in returned_in_full:
            node, layers = self._output(place)
            with self.graph.inserting_before(end):
                outputs.append(self._copy(node, layers))
        end.args = (tuple(outputs),)
        return fx.GraphModule({}, self.graph, "Tail"), list(self.inputs)

    def _output(self, place: Place) -> tuple[fx.Node, int]:
        """The node for an output of the short tail that this one is like, so many layers later."""
        if place.layer is None:
            node = self.outputs[place]
            moved = {beside(place.row[0], leaf, self.left_out, 1) == leaf for leaf in self._leaves(node) if leaf.layer is not None}
            if len(moved) > 1:
                raise NotAlike("a result is a view of the first layer's and of the last one's")
            return node, 0 if moved != {False} else self.left_out
        row = {other.layer: node for other, node in self.outputs.items() if other.row == place.row}
        # each output's first tensor of a layer stands for it: the others go with it
        leaves = {layer: [leaf for leaf in self._leaves(node) if leaf.layer is not None] for layer, node in row.items()}
        first = next((layer for layer in sorted(row) if leaves[layer]), None)
        if first is None:
            raise NotAlike("no layer's result is one of those that are repeated")
        for layer in row:
            if layer > first and leaves[layer] and not self._alike(row[first], row[layer], layer - first):
                raise NotAlike("layers make views in different ways")
        since = place.layer - first
        if since < 0:
            return row[place.layer], 0
        return (row[first], since) if since <= self.left_out else (row[place.layer - self.left_out], self.left_out)

    def _leaves(self, node: fx.Node) -> list[Place]:
        if node in self.places:
            return [self.places[node]]
        return [leaf for operand in operands(node) for leaf in self._leaves(operand)]

    def _alike(self, one: fx.Node, other: fx.Node, layers: int) -> bool:
        """Whether a node is so many layers later what another one is."""
        if one in self.places or other in self.places:
            return one in self.places and other in self.places and self.places[one].later(layers) == self.places[other]
        return key_of(one) == key_of(other) and all(
            self._alike(*pair, layers) for pair in zip(operands(one), operands(other), strict=True))

    def _copy(self, node: fx.Node, layers: int) -> fx.Node:
        if node in self.places:
            place = self.places[node].later(layers)
            if place not in self.inputs:
                made = next((other for other in self.graph.nodes if other.op != "placeholder"), None)
                with self.graph.inserting_before(made):
                    self.inputs[place] = self.graph.placeholder(f"given_{len(self.inputs)}")
            return self.inputs[place]
        if (node, layers) not in self.copies:
            for operand in operands(node):
                self._copy(operand, layers)
            self.copies[node, layers] = self.graph.node_copy(node, lambda operand: self._copy(operand, layers))
        return self.copies[node, layers]
