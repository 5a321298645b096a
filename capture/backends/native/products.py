"""Matrix products with weights: which of them oneDNN computes, and which stay with ATen, that is with MKL.

What each takes, in multiply-adds of a large product, by the numbers of rows, inner and outer features; fitted to measurements on
one thread of an AMD Zen 4 (AVX-512; 1 to 4096 rows, 16 to 3072 features), where they tell the faster one but for differences of
3 % (`docs/performance.md`):

    MKL                         inner * outer * (rows + 8)                      the weights are packed in each call
    oneDNN, packed weights      inner * outer * (0.91 * rows + 3) + CALL
    oneDNN, plain weights       inner * outer * 0.92 * (rows + 8) + CALL
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from capture.backends.native import processor
from capture.backends.native.nodes import expected, insert_call, replace_each

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn

CALL = 700_000      # what a call of oneDNN costs more than one of MKL: 12 microseconds


@dataclass(frozen=True, slots=True)
class Linear:
    """`input @ weight + bias`: node `result`, (rows, outer), of an input (rows, inner), a weight (inner, outer) that lies in memory
    row by row or column by column, and a vector or None."""

    result: fx.Node
    input: fx.Node
    weight: fx.Node
    bias: fx.Node | None

    @property
    def rows(self) -> int:
        return expected(self.input.meta["val"].shape[0])

    @property
    def weights(self) -> int:
        """inner * outer."""
        return expected(self.weight.meta["val"].numel())

    def gains_packed(self) -> bool:
        """Whether oneDNN is faster than MKL on weights in its own layout. Of one row it is not: that is a product with a vector."""
        return self.rows > 1 and self.weights * (0.09 * self.rows + 5) > CALL

    def gains_plain(self) -> bool:
        """Whether oneDNN gains on weights as they are. The gain must be twice the cost of its call: in a whole model, where caches
        hold other data as well, such weights are read more slowly, and results do not lie where the plan's memory is warm."""
        return self.rows > 1 and self.weights * 0.08 * (self.rows + 8) > 2 * CALL

    def filters(self) -> fx.Node:
        """The weight as oneDNN names its dimensions, (outer, inner)."""
        if self.weight.target is aten.permute.default and list(self.weight.args[1]) == [1, 0]:
            return self.weight.args[0]
        return insert_call(self.result, aten.permute.default, self.weight, [1, 0])


def linear_of(node: fx.Node) -> Linear | None:
    """The product that a node is, if oneDNN could compute it here."""
    if node.target is aten.mm.default:
        linear = Linear(node, *node.args, None)
    elif node.target is aten.addmm.default and not node.kwargs:
        linear = Linear(node, *node.args[1:], node.args[0])
    else:
        return None
    x, weight, dtype = linear.input.meta["val"], linear.weight.meta["val"], node.meta["val"].dtype
    if x.device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16) or not node.meta["val"].numel() or not x.numel():
        return None
    if not is_onednn_there() or dtype == torch.bfloat16 and not mkldnn._is_mkldnn_bf16_supported():
        return None
    if not x.is_contiguous() or not (weight.is_contiguous() or weight.t().is_contiguous()):
        return None
    if linear.bias is not None and linear.bias.meta["val"].shape != weight.shape[1:]:
        return None
    return linear


def is_onednn_there() -> bool:
    """Whether this torch has oneDNN's products with weights in either layout, and may use them."""
    return (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
            and hasattr(mkldnn, "_linear_pointwise") and hasattr(mkldnn, "_reorder_linear_weight"))


def use_onednn(gm: fx.GraphModule) -> int:
    """Replaces the products of a graph that oneDNN computes faster from weights as they are; returns how many. Only float32, since
    ATen passes bfloat16 to oneDNN itself; and only on processors on which it was measured to be faster, which excludes those of
    MKL's maker."""
    return 0 if processor.vendor() != "AuthenticAMD" else replace_each(gm, _as_onednn)


def _as_onednn(node: fx.Node) -> fx.Node | None:
    linear = linear_of(node)
    if linear is None or node.meta["val"].dtype != torch.float32 or not linear.gains_plain():
        return None
    return insert_call(node, mkldnn._linear_pointwise.default, linear.input, linear.filters(), linear.bias, "none", [], "",
                       val=node.meta["val"])
