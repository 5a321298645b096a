"""What the parts of a recorder, which each know some of the graph, ask of the whole."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.fx import Graph, Node

from capture.interp.recording.graph_inputs import GraphInputs
from capture.interp.recording.scalar_specialization import Place
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import RefNode, Shadow
from capture.refgraph.source import Source


class Recorder(Protocol):
    """What it is, see GraphBuilder. `numbers`: the nodes of numbers that were needed before."""

    refs: RefGraph
    fx: Graph
    inputs: GraphInputs
    numbers: dict[tuple[Shadow, bool], Any]

    def node(self, tensor: RefNode) -> Node: ...

    def effect(self, target: Callable[..., Any], *args: Any) -> Node: ...

    def literal(self, real: Any) -> Any: ...

    def argument(self, shadow: Shadow, real: Any, place: Place) -> Any: ...

    def note_number(self, shadow: Shadow, as_tensor: bool, node: Any) -> None: ...

    def varies(self, source: Source, real: Any) -> bool: ...

    def size_input(self, source: Source, real: int | float) -> Node: ...

    def plain_number(self, source: Source) -> Any: ...

    def drawn(self, tensor: torch.Tensor, shadow: Shadow) -> RefNode: ...
