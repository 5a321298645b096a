"""Operations of a graph on tensors whose classes would be asked about them. The trace has asked already, so the graph does not."""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from capture.refgraph.memory import PLAIN_TENSORS, is_overriding

OBSTACLE = "works on a tensor of a class with operations of its own"


def of_class(node: fx.Node, cls: type) -> None:
    """Notes that a node is a tensor of a subclass."""
    if cls not in PLAIN_TENSORS:
        node.meta["subclass"] = cls


def note(node: fx.Node, asking: bool) -> fx.Node:
    """Notes of an operation whether some class might be asked about it. asking: the program has classes asked where it stands."""
    classes = [operand.meta["subclass"] for operand in node.all_input_nodes if "subclass" in operand.meta]
    if classes and (not asking or any(map(is_overriding, classes))):
        node.meta["unasked"] = True
    return node


def settle(graph: fx.Graph) -> None:
    """Has those operations ask nobody."""
    for node in graph.nodes:
        if node.meta.pop("unasked", False):
            method = node.op == "call_method"
            node.target = _unasked(getattr(torch.Tensor, node.target) if method else node.target)
            node.op, node.meta["obstacle"] = "call_function", OBSTACLE


@functools.cache
def _unasked(function: Any) -> Any:
    """The function, under a name that generated code can refer to."""
    def unasked(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)
    unasked.__name__, unasked.__module__ = f"plain_{getattr(function, '__name__', 'operation')}", "tensors"
    return unasked
