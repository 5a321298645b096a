"""The tail of a graph with inner results (results from which others are computed): it also attaches results to autograd nodes,
inner results first, so that views and other results can follow from them."""
from __future__ import annotations

import operator
from collections.abc import Sequence

from torch import fx

from capture.backends.aot.inner import Inner
from capture.backends.aot.tail import Split
from capture.backends.native.signature import Input, Part, Result


def attaching_tail(split: Split, inner: Inner, parts: Sequence[Part],
                   inputs: int) -> tuple[fx.GraphModule, tuple[Input | Result, ...]]:
    """The tail, and what it takes behind the object that makes the nodes (`segment_nodes.Call`). inputs: how many the graph has."""
    return _AttachingTail(split, inner, parts, inputs).run()


class _AttachingTail:
    def __init__(self, split: Split, inner: Inner, parts: Sequence[Part], inputs: int) -> None:
        self.split, self.parts, self.inputs = split, parts, inputs
        made = {id(tensor): node for tensor, node in split.nodes}
        self.inner = [made[id(tensor)] for tensor in inner.tensors]
        self.order = inner.order
        order = [place for place, tensor in enumerate(split.results) if tensor.requires_grad]
        self.places = {Result(order[result]): (number, place)
                       for number, part in enumerate(parts) for place, result in enumerate(part.results)}
        self.graph = fx.Graph()
        self.hang = self.graph.placeholder("hang")
        self.given: dict[Input | Result, fx.Node] = {}
        self.called: dict[int, fx.Node] = {}
        self.copies: dict[fx.Node, fx.Node] = {}

    def run(self) -> tuple[fx.GraphModule, tuple[Input | Result, ...]]:
        wanted = [name for name in self.split.taken.values() if name not in self.places]
        wanted += [Input(place) for part in self.parts for place, number in part.edges if number < 0 and place < self.inputs]
        for name in dict.fromkeys(wanted):
            self.given[name] = self.graph.placeholder(f"given_{len(self.given)}")
        for node in self.order:
            self._copy(node)
        for node in self.split.graph.nodes:
            if node.op == "output":
                self.graph.output(fx.map_arg(node.args[0], self._copy))
            elif node.op != "placeholder":
                self._copy(node)
        return fx.GraphModule({}, self.graph, "Tail"), tuple(self.given)

    def _call(self, number: int) -> fx.Node:
        """The node that makes the results of a part."""
        if number not in self.called:
            edges = [self._edge(place, other) for place, other in self.parts[number].edges]
            self.called[number] = self.graph.call_method("node", (self.hang, number, *edges))
        return self.called[number]

    def _edge(self, place: int, other: int) -> fx.Node:
        if other >= 0:
            return self._item(place, len(self.parts[place].results) + other)
        return self.given[Input(place)] if place < self.inputs else self._copy(self.inner[place - self.inputs])

    def _item(self, number: int, place: int) -> fx.Node:
        return self.graph.call_function(operator.getitem, (self._call(number), place))

    def _copy(self, node: fx.Node) -> fx.Node:
        """A node of the tail as it was, made early where a part hangs on it: then gradients are enabled."""
        if node not in self.copies:
            if node in self.split.taken:
                name = self.split.taken[node]
                self.copies[node] = self._item(*self.places[name]) if name in self.places else self.given[name]
            else:
                for argument in node.all_input_nodes:
                    self._copy(argument)
                self.copies[node] = self.graph.node_copy(node, self._copy)
        return self.copies[node]
