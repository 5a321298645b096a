"""Sizes that change from call to call in fx graphs: from nodes that compute them to arguments, and back."""
from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from capture.backends.aot.symbols import symbols_of
from capture.backends.native.index import Atom, Div, Mod, Size, Symbol, plain
from capture.backends.native.numbers import put_in
from capture.backends.native.symbolic import as_size


def inline_sizes(gm: fx.GraphModule) -> None:
    """Puts sizes, and what is calculated from them, into the arguments of operations, and removes the nodes that computed them:
    operations take only tensors from other nodes."""
    found = {node: value for node in gm.graph.nodes
             if node.op == "call_function" and isinstance(value := node.meta.get("val"), (torch.SymInt, torch.SymFloat))}
    put_in(gm.graph, found)
    for node in reversed(found):
        gm.graph.erase_node(node)
    gm.recompile()


def emit_size(graph: fx.Graph, size: torch.SymInt, node_of: Callable[[str], fx.Node]) -> fx.Node | int:
    """Writes the nodes that compute a size, at the end of a graph. node_of: gives that of a symbol, by its name."""
    def write(value: Size) -> fx.Node | int:
        if isinstance(value := plain(value), int):
            return value
        terms = [chain(operator.mul, [*map(atom, monomial), *([factor] if factor != 1 or not monomial else [])])
                 for monomial, factor in value.terms.items()]
        return chain(operator.add, terms)

    def atom(one: Atom) -> fx.Node | int:
        if isinstance(one, Symbol):
            return node_of(one.name)
        assert isinstance(one, (Div, Mod)), one
        operation = operator.floordiv if isinstance(one, Div) else operator.mod
        return graph.call_function(operation, (write(one.dividend), write(one.divisor)))

    def chain(operation: Callable[..., Any], operands: Sequence[fx.Node | int]) -> fx.Node | int:
        return functools.reduce(lambda left, right: graph.call_function(operation, (left, right)), operands)
    return write(as_size(size, symbols_of(size.node.shape_env)))
