"""Integers among subscripts that are sizes or are calculated from them: torch's subscripts turn these into constants, `select` and
tensors do not."""
from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

CALCULATIONS = frozenset((operator.add, operator.sub, operator.mul, operator.neg, operator.floordiv, operator.mod))
SUBSCRIPTS = frozenset((operator.getitem, operator.setitem))


def may_select(graph: fx.Graph) -> bool:
    """Whether something in a graph is subscripted with what the graph computes."""
    return any(node.target in SUBSCRIPTS and isinstance(node.args[1], (fx.Node, tuple, list)) and len(node.all_input_nodes) > 1
               for node in graph.nodes)


def select_rows(graph: fx.Graph) -> None:
    """Writes `x[:, n, 1:]` as `x.select(1, n)[:, 1:]`, where `n` is calculated from sizes, and a list `[0, n]` as a tensor; in
    assignments, too."""
    integers: set[fx.Node] = set()
    for node in graph.nodes:
        asked = node.op == "call_method" and node.target in ("size", "stride") and len(node.args) == 2
        if asked or node.target in CALCULATIONS and all(isinstance(arg, int) or arg in integers for arg in node.args):
            integers.add(node)
        elif node.target in SUBSCRIPTS and not integers.isdisjoint(node.all_input_nodes):
            _select_rows_of(graph, node, integers)


def _select_rows_of(graph: fx.Graph, node: fx.Node, integers: set[fx.Node]) -> None:
    tensor, subscript, *values = node.args
    key = list(subscript) if isinstance(subscript, tuple) else [subscript]
    lists = [place for place, part in enumerate(key) if isinstance(part, list) and any(isinstance(item, fx.Node) for item in part)
             and all(type(item) is int or isinstance(item, fx.Node) and item in integers for item in part)]
    for place in lists:
        key[place] = _tensor_of(graph, node, tensor, key[place])
    while (found := _next_row(key, integers)) is not None:
        place, dim = found
        with graph.inserting_before(node):
            tensor = graph.call_function(torch.select, (tensor, dim, key.pop(place)))
        tensor.meta["stack"] = node.meta.get("stack")
    if tensor is node.args[0] and not lists:
        return
    if key or values:
        node.args = (tensor, tuple(key) or Ellipsis, *values)
    else:
        tensor.meta.update(node.meta)
        node.replace_all_uses_with(tensor)
        graph.erase_node(node)


def _tensor_of(graph: fx.Graph, node: fx.Node, tensor: fx.Node, items: Sequence[Any]) -> fx.Node:
    """A list of integers as a tensor, before `node`, where `tensor` is."""
    with graph.inserting_before(node):
        each = [graph.call_method("new_full", (tensor, (), item), {"dtype": torch.int64}) for item in items]
        return graph.call_function(torch.stack, (each,))


def _next_row(key: list[Any], integers: set[fx.Node]) -> tuple[int, int] | None:
    """Which part of a subscript is such an integer, and of which dimension it selects an element, counted from the back if there is
    an ellipsis before it; None if there is none. How many dimensions a tensor takes is not known here, it may be a mask."""
    if any(type(part) is bool for part in key):
        return None
    for place, part in enumerate(key):
        if isinstance(part, fx.Node) and part in integers:
            before, after = key[:place], key[place + 1:]
            from_back = any(other is Ellipsis for other in before)
            between = after if from_back else before
            if all(_takes_one(other, integers) or other is None for other in between):
                taken = sum(_takes_one(other, integers) for other in between)
                return place, -1 - taken if from_back else taken
    return None


def _takes_one(part: Any, integers: set[fx.Node]) -> bool:
    return isinstance(part, (int, slice)) or isinstance(part, fx.Node) and part in integers
