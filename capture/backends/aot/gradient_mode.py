"""How a graph switches torch's gradient mode."""
from __future__ import annotations

import torch
from torch import fx

from capture.backends.native.job import Modes


def _switches(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.target is torch._C._set_grad_enabled]


def mode_after(graph: fx.Graph, modes: Modes) -> bool | None:
    """The gradient mode that a graph leaves behind, if it is another than the one among `modes`, in which it begins."""
    last = next((node.args[0] for node in reversed(_switches(graph))), modes.grad)
    return None if last == modes.grad else last


def drop_switches(graph: fx.Graph) -> None:
    """For a graph that is traced for inference mode, in which no result has gradients, whatever these say."""
    for node in _switches(graph):
        graph.erase_node(node)
