"""Convolutions whose filters are one pixel large, as matrix products over the channels.

On images of few pixels, a convolution costs more than the product: with two threads up to three times as much, since oneDNN
reorders the filters in every call, and images too if their channels are not last. As products they follow the rules of products:
MKL or oneDNN by their sizes, fixed weights packed, results in the plan's own memory. `docs/performance.md`.
"""
from __future__ import annotations

import math

import torch
from torch import fx

from capture.backends.native.layouts import is_channels_last
from capture.backends.native.nodes import insert_call, replace_each

aten = torch.ops.aten


def use_products(gm: fx.GraphModule) -> int:
    """Replaces convolutions by filters of one pixel; returns how many."""
    return replace_each(gm, _as_product)


def _as_product(node: fx.Node) -> fx.Node | None:
    if not is_pixelwise(node):
        return None
    channels_last = all(is_channels_last(n.meta["val"]) for n in (node, node.args[0]))    # an image can lie in both ways
    return _by_rows(node) if channels_last else _by_images(node)


def is_pixelwise(node: fx.Node) -> bool:
    """Whether a node is a dense convolution in float32, on the CPU, each pixel of whose result is that of one pixel."""
    if node.target is not aten.convolution.default:
        return False
    image, weight, _, stride, padding, _, transposed, _, groups = node.args
    x, w = image.meta["val"], weight.meta["val"]
    return (x.dim() == 4 and x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0 and w.numel() > 0
            and not transposed and groups == 1 and w.is_contiguous() and math.prod((*w.shape[2:], *stride)) == 1
            and not any(padding) and (x.is_contiguous() or is_channels_last(x)))


def _by_rows(node: fx.Node) -> fx.Node:
    """Channels last: every pixel is a row of one product."""
    image, weight, bias = node.args[:3]
    n, c, h, w = image.meta["val"].shape
    out = weight.meta["val"].shape[0]
    rows = insert_call(node, aten.view.default, insert_call(node, aten.permute.default, image, [0, 2, 3, 1]), [n * h * w, c])
    filters = insert_call(node, aten.permute.default, insert_call(node, aten.view.default, weight, [out, c]), [1, 0])
    product = (insert_call(node, aten.mm.default, rows, filters) if bias is None
               else insert_call(node, aten.addmm.default, bias, rows, filters))
    if h * w == 1 and node.meta["val"].stride(3) == 1:      # images of one pixel lie in both ways, and have the strides of either
        return insert_call(node, aten.view.default, product, [n, out, 1, 1])
    return insert_call(node, aten.permute.default, insert_call(node, aten.view.default, product, [n, h, w, out]), [0, 3, 1, 2])


def _by_images(node: fx.Node) -> fx.Node:
    """Channels first: a product for each image, with the same filters."""
    image, weight, bias = node.args[:3]
    n, c, h, w = image.meta["val"].shape
    out = weight.meta["val"].shape[0]
    filters = insert_call(node, aten.expand.default, insert_call(node, aten.view.default, weight, [1, out, c]), [n, out, c])
    product = insert_call(node, aten.bmm.default, filters, insert_call(node, aten.view.default, image, [n, c, h * w]))
    result = insert_call(node, aten.view.default, product, [n, out, h, w])
    if bias is None:
        return result
    return insert_call(node, aten.add.Tensor, result, insert_call(node, aten.view.default, bias, [1, out, 1, 1]))
