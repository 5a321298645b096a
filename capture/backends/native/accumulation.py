"""Sums of matrix products, such as the gradient of a weight that a program uses in several places: each product is added to the sum
of those before it, by `addmm`, when it is computed, and not stored by itself first.

Eager mode adds them one by one as well. A kernel that adds them all passes over memory once, but all products must be kept until it
runs.
"""
from __future__ import annotations

import torch
from torch import fx

from capture.backends.native.nodes import insert_call, replace_each, same

aten = torch.ops.aten


def accumulate_products(gm: fx.GraphModule) -> int:
    """Replaces additions of products to products that nothing else needs; returns how many."""
    count = replace_each(gm, _as_sum)
    if count:
        gm.graph.eliminate_dead_code(lambda node: node.target not in (aten.mm.default, aten.permute.default))
        gm.recompile()
    return count


def _as_sum(node: fx.Node) -> fx.Node | None:
    operands = _operands(node)
    if operands is None:
        return None
    total, product = operands
    return insert_call(node, aten.addmm.default, total, *product.args, val=node.meta["val"])


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The sum of products and the product that a node adds up."""
    if node.target is not aten.add.Tensor or node.kwargs or not all(isinstance(arg, fx.Node) for arg in node.args):
        return None
    value = node.meta["val"]
    if value.dtype not in (torch.float32, torch.float64) or not value.is_contiguous():     # others are rounded after each operation
        return None
    operands = [_transposed_back(arg) for arg in node.args]
    if any(len(operand.users) > 1 or not _fits(operand.meta["val"], value) for operand in operands):
        return None
    for total, product in (operands, operands[::-1]):
        if product.target is aten.mm.default and _is_sum(total):
            return total, product
    return None


def _fits(operand: torch.Tensor, result: torch.Tensor) -> bool:
    return same(operand.shape, result.shape) and operand.dtype == result.dtype


def _is_sum(node: fx.Node) -> bool:
    """Whether a node is a product, or a sum of them that this pass has made."""
    return node.target is aten.mm.default or node.target is aten.addmm.default and node.args[0].meta["val"].dim() == 2


def _transposed_back(node: fx.Node) -> fx.Node:
    """The node itself, or, if the node is the transpose of a transpose that nothing else needs, the original."""
    if _is_transpose(node) and _is_transpose(node.args[0]) and len(node.users) == len(node.args[0].users) == 1:
        return _transposed_back(node.args[0].args[0])
    return node


def _is_transpose(node: fx.Node) -> bool:
    return node.target is aten.permute.default and list(node.args[1]) == [1, 0]
