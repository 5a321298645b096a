"""Convolutions and products with fixed weights, as oneDNN likes them: weights in its own layout, and what follows computed before
results leave the registers.
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

ADD = aten.add.Tensor
VIEWS = (aten.view.default, aten.permute.default)


@dataclass(frozen=True, slots=True)
class Unary:
    """An activation, as oneDNN names it, with its numbers. `of`: reads both off a node, None where the node is another function."""

    name: str
    numbers: tuple[float, ...] = ()
    algorithm: str = ""

    @property
    def arguments(self) -> tuple[str, list[float], str]:
        """As the operators of oneDNN take them."""
        return self.name, list(self.numbers), self.algorithm


def _plain(name: str) -> Callable[[fx.Node], Unary | None]:
    return lambda node: Unary(name) if len(node.args) == 1 and not node.kwargs else None


def _gelu(node: fx.Node) -> Unary:
    return Unary("gelu", (), node.kwargs.get("approximate", "none"))


def _hardtanh(node: fx.Node) -> Unary | None:
    low, high = (*node.args[1:], None, None)[:2]
    return None if low is None or high is None else Unary("hardtanh", (float(low), float(high)))


def _leaky_relu(node: fx.Node) -> Unary:
    return Unary("leaky_relu", (float((*node.args[1:], 0.01)[0]),))


UNARY: dict[Any, Callable[[fx.Node], Unary | None]] = {
    aten.relu.default: _plain("relu"),
    aten.silu.default: _plain("swish"),
    aten.sigmoid.default: _plain("sigmoid"),
    aten.tanh.default: _plain("tanh"),
    aten.hardswish.default: _plain("hardswish"),
    aten.hardsigmoid.default: _plain("hardsigmoid"),
    aten.gelu.default: _gelu,
    aten.hardtanh.default: _hardtanh,
    aten.clamp.default: _hardtanh,
    aten.leaky_relu.default: _leaky_relu,
}

LOSING_NAN = ("relu", "hardtanh", "hardsigmoid")    # to oneDNN, NaN is a number below the others


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
        fused = {ADD, aten.convolution.default, aten.mm.default, aten.addmm.default, *VIEWS, *UNARY}
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
    settings = (packed, bias, padding, stride, dilation, groups)
    total, other = _sum(node)
    unary, last = _activation(total)
    if other is None:
        call = insert_call(node, mkldnn._convolution_pointwise.default, image, *settings, *(unary or Unary("none")).arguments,
                           val=node.meta["val"])
    else:
        if unary is not None and unary.name != "relu":      # no other one may follow a sum
            unary, last = None, total
        call = insert_call(last, mkldnn._convolution_pointwise.binary, image, other, *settings, "add", None,
                           *(unary.arguments if unary else (None, [], None)), val=node.meta["val"])
    last.replace_all_uses_with(call)


def _is_fixed(linear: Linear, fixed: Container[object]) -> bool:
    return linear.weight in fixed and (linear.bias is None or linear.bias in fixed)


def _pack_linear(linear: Linear, packed: dict[tuple[fx.Node, int], fx.Node]) -> None:
    node, filters = linear.result, linear.filters()
    key = filters, linear.rows
    if key not in packed:
        packed[key] = insert_call(node, mkldnn._reorder_linear_weight.default, filters, linear.rows, val=filters.meta["val"])
    unary, last = _activation(_last_view(node))
    if unary is None or unary.name in LOSING_NAN:       # these cost nothing measurable in a kernel of their own
        unary, last = Unary("none"), node
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


def _same(left: fx.Node, right: fx.Node) -> bool:
    a, b = left.meta["val"], right.meta["val"]
    return a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()


def _sum(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """The sum with another tensor of the same kind that a convolution ends in, and that tensor."""
    user = next(iter(node.users)) if len(node.users) == 1 else None
    if user is None or user.target is not ADD or user.kwargs or len(user.args) != 2 or user.args[0] is user.args[1]:
        return node, None
    other = user.args[1] if user.args[0] is node else user.args[0]
    if not isinstance(other, fx.Node) or not _same(other, node) or not _same(user, node):
        return node, None
    return user, other


def _activation(node: fx.Node) -> tuple[Unary | None, fx.Node]:
    """The activation that alone reads a value, and its node; else the node itself."""
    user = next(iter(node.users)) if len(node.users) == 1 else None
    if user is not None and user.target in UNARY and user.args[0] is node and _same(user, node):
        unary = UNARY[user.target](user)
        if unary is not None:
            return unary, user
    return None, node
