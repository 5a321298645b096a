"""The placeholders of a graph: tensors from outside, then numbers that change from call to call, and tensors drawn before it."""
from __future__ import annotations

import torch
from torch import fx

from capture.interp.core.frame import Value
from capture.refgraph.node import RefNode, Shadow
from capture.refgraph.source import Source


class GraphInputs:
    """What a graph takes, in the order of its placeholders."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.tensors: list[RefNode] = []
        self.numbers: list[Value] = []                      # whose placeholders come after all those of tensors
        self._last_tensor: fx.Node | None = None
        self._of_numbers: dict[Source | Shadow, fx.Node] = {}           # by their paths, or as what a call returned

    def add_tensor(self, tensor: RefNode, name: str) -> fx.Node:
        """The placeholder of a tensor from outside."""
        first = next(iter(self._of_numbers.values()), None)
        with self.graph.inserting_after(self._last_tensor) if first is None else self.graph.inserting_before(first):
            node = self._last_tensor = self.graph.placeholder(name)
        node.target = node.name         # a parameter's name, made unique by fx
        self.tensors.append(tensor)
        return node

    def add_number(self, key: Source | Shadow, name: str, value: Value) -> fx.Node:
        """The placeholder of a number that has none yet. key: its path, or it itself if a call returned it."""
        with self.graph.inserting_after(self.last):
            node = self._of_numbers[key] = self.graph.placeholder(name)
        node.target = node.name
        self.numbers.append(value)
        return node

    @property
    def last(self) -> fx.Node | None:
        """The last placeholder, if there is any."""
        return next(reversed(self._of_numbers.values()), self._last_tensor)

    def number(self, key: Source | Shadow) -> fx.Node | None:
        """The placeholder of a number, if it has one."""
        return self._of_numbers.get(key)

    def add_drawn(self, tensor: torch.Tensor, shadow: Shadow) -> fx.Node:
        """The placeholder of a tensor of random numbers. shadow: how each call makes it."""
        node = self.add_number(shadow, "drawn", Value(tensor, shadow))
        node.meta.update(source="random numbers", obstacle="takes an array of random numbers")
        return node

    def paths_of_numbers(self) -> dict[fx.Node, Source | Shadow]:
        """The placeholders of numbers: their paths, or what they are if a call returned them."""
        return {node: key for key, node in self._of_numbers.items()}
