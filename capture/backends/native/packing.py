"""Convolutions and products with fixed weights, as oneDNN likes them: weights in its own layout, and activations computed before
results leave the registers.

Sums with a residual could be part of the calls as well: after products that takes as long as in a kernel of ours, and after
convolutions longer.
"""
from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from capture.backends.native.layouts import is_onednn_convolution
from capture.backends.native.nodes import insert_call
from capture.backends.native.products import Linear, linear_of

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn

VIEWS = (aten.view.default, aten.permute.default)


@dataclass(frozen=True, slots=True)
class Unary:
    """An activation, as oneDNN names it, with its numbers and which of its formulas is meant."""

    name: str
    numbers: tuple[float, ...] = ()
    algorithm: str = ""

    @property
    def arguments(self) -> tuple[str, list[float], str]:
        """As the operators of oneDNN take them."""
        return self.name, list(self.numbers), self.algorithm


# How to read activations off their nodes. Not among them: relu, hardtanh and hardsigmoid, of which oneDNN gives a number where the
# argument is NaN. In kernels of ours they cost a hundredth of a network of convolutions, and nothing measurable after products.
UNARY: dict[Any, Callable[[fx.Node], Unary]] = {
    aten.silu.default: lambda node: Unary("swish"),
    aten.sigmoid.default: lambda node: Unary("sigmoid"),
    aten.tanh.default: lambda node: Unary("tanh"),
    aten.hardswish.default: lambda node: Unary("hardswish"),
    aten.gelu.default: lambda node: Unary("gelu", (), node.kwargs.get("approximate", "none")),
    aten.leaky_relu.default: lambda node: Unary("leaky_relu", (float((*node.args[1:], 0.01)[0]),)),
}


def pack_weights(gm: fx.GraphModule, fixed: Container[object]) -> int:
    """Replaces convolutions and products whose weights are fixed; returns how many. Images must be in memory channels last
    already."""
    count = 0
    packed: dict[tuple[fx.Node, int], fx.Node] = {}     # the products' weights, by what they are and for how many rows
    for node in list(gm.graph.nodes):
        if is_onednn_convolution(node) and _is_packable(node, fixed):
            _pack(node)
            count += 1
        linear = linear_of(node)
        if linear is not None and _is_fixed(linear, fixed) and linear.gains_packed():
            _pack_linear(linear, packed)
            count += 1
    if count:
        fused = {aten.convolution.default, aten.mm.default, aten.addmm.default, *VIEWS, *UNARY}
        gm.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or node.target not in fused)
        gm.recompile()
    return count


def _is_packable(node: fx.Node, fixed: Container[object]) -> bool:
    """Whether weight and bias are fixed. Of images of one pixel the product is small, and faster as it is."""
    image, weight, bias, *_ = node.args
    if image.meta["val"].dtype == torch.bfloat16 and not mkldnn._is_mkldnn_bf16_supported():
        return False
    return not node.args[6] and weight in fixed and (bias is None or bias in fixed) and max(image.meta["val"].shape[2:]) > 1


def _pack(node: fx.Node) -> None:
    image, weight, bias, stride, padding, dilation, _, _, groups = node.args
    packed = insert_call(node, mkldnn._reorder_convolution_weight.default, weight, padding, stride, dilation, groups,
                         list(image.meta["val"].shape), val=weight.meta["val"])
    unary, last = _activation(node)
    call = insert_call(node, mkldnn._convolution_pointwise.default, image, packed, bias, padding, stride, dilation, groups,
                       *unary.arguments, val=node.meta["val"])
    last.replace_all_uses_with(call)


def _is_fixed(linear: Linear, fixed: Container[object]) -> bool:
    return linear.weight in fixed and (linear.bias is None or linear.bias in fixed)


def _pack_linear(linear: Linear, packed: dict[tuple[fx.Node, int], fx.Node]) -> None:
    node, filters = linear.result, linear.filters()
    key = filters, linear.rows
    if key not in packed:
        packed[key] = insert_call(node, mkldnn._reorder_linear_weight.default, filters, linear.rows, val=filters.meta["val"])
    unary, last = _activation(_last_view(node))
    call = insert_call(node, mkldnn._linear_pointwise.default, linear.input, packed[key], linear.bias, *unary.arguments,
                       val=node.meta["val"])
    shape = last.meta["val"].shape
    last.replace_all_uses_with(call if shape == node.meta["val"].shape else insert_call(last, aten.view.default, call, list(shape)))


def _last_view(node: fx.Node) -> fx.Node:
    """The value itself, or the last of the views, each of which alone reads the one before."""
    while len(node.users) == 1:
        user = next(iter(node.users))
        if user.target is not aten.view.default:
            break
        node = user
    return node


def _activation(node: fx.Node) -> tuple[Unary, fx.Node]:
    """The activation that alone reads a value, and its node; else none, and the node itself."""
    user = next(iter(node.users)) if len(node.users) == 1 else None
    if user is not None and user.target in UNARY and _is_alike(user, node):
        return UNARY[user.target](user), user
    return Unary("none"), node


def _is_alike(left: fx.Node, right: fx.Node) -> bool:
    a, b = left.meta["val"], right.meta["val"]
    return a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
