"""How a backward graph gets sizes that change from call to call: from the tensors that it takes, or as numbers behind these."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from capture.backends.native.signature import Input, Result, Unsupported


def pass_sizes_to_backward(forward: fx.GraphModule, backward: fx.GraphModule,
                           saved: tuple[Input | Result, ...]) -> tuple[Input | Result, ...]:
    """Has the backward graph take, behind the saved values, those sizes that it computes with and that no tensor among them has.
    Returns what is saved then."""
    placeholders = backward.graph.find_nodes(op="placeholder")
    bound = {size.node.expr for node in placeholders for size in node.meta["val"].shape if isinstance(size, torch.SymInt)}
    needed = {symbol for node in backward.graph.nodes for symbol in _symbols_in(node)}
    results = list(forward.graph.output_node().args[0])
    sizes = {size.node.expr: size for node in forward.graph.find_nodes(op="placeholder") for size in node.meta["val"].shape
             if isinstance(size, torch.SymInt)}
    for symbol in sorted(needed - bound, key=str):
        if symbol not in sizes:
            raise Unsupported("a size depends on values")
        size = sizes[symbol]
        with backward.graph.inserting_before(_behind(backward.graph, placeholders, len(saved))):
            node = backward.graph.placeholder(f"size_{symbol}")
        node.meta["val"] = size
        placeholders.insert(len(saved), node)
        saved = (*saved, Result(len(results)))
        results.append(size)
    forward.graph.output_node().args = (tuple(results),)
    return saved


def _behind(graph: fx.Graph, placeholders: Sequence[fx.Node], count: int) -> fx.Node:
    """The node behind the first `count` placeholders."""
    if count < len(placeholders):
        return placeholders[count]
    return next(node for node in graph.nodes if node.op != "placeholder")


def _symbols_in(node: fx.Node) -> set[Any]:
    values = node.meta.get("val")
    found: set[Any] = set()
    for value in values if isinstance(values, (tuple, list)) else [values]:
        if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat)):
            found |= free_symbols(value)

    def add(size: Any) -> Any:
        if isinstance(size, (torch.SymInt, torch.SymFloat)):
            found.update(free_symbols(size))
        return size
    fx.node.map_aggregate((node.args, node.kwargs), add)
    return found
