"""Builds reference graphs by hand, as the interpreter does: real objects, and what is known of them."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from capture.refgraph.graph import RefGraph
from capture.refgraph.mock import plan
from capture.refgraph.node import RefNode, Shadow, TensorState
from capture.refgraph.pycode import PythonCode, generate
from capture.refgraph.source import Local
from capture.refgraph.verify import verify


class Pair(NamedTuple):
    """A value of the program with its shadow."""

    real: Any
    shadow: Any


class World:
    """One trace of a frame with arguments of the given names; `self.name` is the pair of one."""

    def __init__(self, **arguments: Any) -> None:
        self.graph = RefGraph()
        self.arguments = list(arguments)
        self.pairs = {name: Pair(real, self.graph.external(real, Local(name, index)))
                      for index, (name, real) in enumerate(arguments.items())}
        self.inputs: list[RefNode] = []

    def __getattr__(self, name: str) -> Any:
        return self.pairs[name].shadow

    def attribute(self, node: Shadow, name: str) -> Any:
        """Reads an instance attribute."""
        return self.graph.dict_get(self.graph.attributes(node), name)

    def set_attribute(self, pair: Pair, name: str, value: Pair) -> None:
        """Assigns an instance attribute, for real and in the graph."""
        namespace = self.graph.attributes(pair.shadow)
        pair.real.__dict__[name] = value.real
        self.graph.dict_set(namespace, name, value.shadow)

    def tensor(self, name: str = "t") -> Pair:
        """A tensor that the trace computes."""
        real = torch.zeros(2)
        return Pair(real, self.graph.create(real, TensorState(name, None)))

    def input(self, *nodes: Any) -> None:
        """The tensors that the compiled graph takes."""
        self.inputs += nodes

    def code(self, result: Pair, compute: Callable[..., Any] | None = None) -> PythonCode:
        """Verifies and seals the graph, and prints its mock function."""
        verify(self.graph, result)
        self.graph.seal()
        steps = plan(self.graph, result.shadow, self.inputs)
        return generate(steps, self.arguments, self.inputs, compute, "mock")
