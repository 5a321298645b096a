"""Scales and shifts per channel after a convolution or a matrix product, folded into its weights.

`(x * W + b) * s + t` is `x * (W s) + (b s + t)`: where W, b, s and t are the same in every call, so are the new weights. In graphs
without gradients batch normalisation is such a scale and shift, and so is the layer scale of some networks.
"""
from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from capture.backends.native.nodes import insert_call

aten = torch.ops.aten
CONVERSIONS = (torch.ops.prims.convert_element_type.default, aten._to_copy.default)
SCALES = (aten.mul.Tensor, aten.div.Tensor)
SHIFTS = (aten.add.Tensor, aten.sub.Tensor)
COMMUTATIVE = (aten.mul.Tensor, aten.add.Tensor)
VIEWS = (aten.view.default, aten.permute.default)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on a product's result: `op` with the operand `other`, fixed, one element per channel or one for all."""

    op: torch._ops.OpOverload
    other: fx.Node | float


def fold_affine(gm: fx.GraphModule, fixed: Container[object]) -> int:
    """Folds what it can; returns the number of products that got new weights. fixed: the nodes that are the same in every call."""
    count = 0
    for node in list(gm.graph.nodes):
        product = PRODUCTS.get(node.target)
        if product is not None and product.is_fixed(node, fixed):
            steps, views, last = _chain(node, product.channel, fixed)
            if steps:
                new = product.with_steps(node, last, steps)
                for view in views:
                    new = insert_call(last, view.target, new, *view.args[1:])
                last.replace_all_uses_with(new)
                count += 1
    if count:
        gm.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or not _is_part(node))
        gm.recompile()
    return count


def _is_part(node: fx.Node) -> bool:
    return node.target in (*SCALES, *SHIFTS, *CONVERSIONS, *VIEWS, *PRODUCTS, aten.addcmul.default)


def _chain(product: fx.Node, channel: int, fixed: Container[object]) -> tuple[list[Step], list[fx.Node], fx.Node]:
    """The scales and shifts that nothing but each next one reads, the views between them, and the last value, which is of the dtype
    and layout that the views alone would give."""
    steps: list[Step] = []
    views: list[fx.Node] = []
    found: tuple[list[Step], list[fx.Node], fx.Node] = [], [], product
    value, plain = product, product.meta["val"]         # plain: what the views alone give
    while len(value.users) == 1:
        user = next(iter(value.users))
        if user.target in CONVERSIONS:
            if not user.meta["val"].dtype.is_floating_point:
                break
        elif user.target in VIEWS:
            place = _place(user, value, channel)
            if place is None:
                break
            plain, channel = user.target(plain, *user.args[1:]), place
            views.append(user)
        else:
            more = _steps(user, value, channel, fixed)
            if not more:
                break
            steps += more
        value = user
        ours = value.meta["val"]
        as_plain = (ours.dtype, ours.shape, ours.stride()) == (plain.dtype, plain.shape, plain.stride())
        if steps and as_plain and user.target not in VIEWS:
            found = list(steps), list(views), value
    return found


def _place(view: fx.Node, value: fx.Node, channel: int) -> int | None:
    """Where a view has the dimension of the channels; None where it is not there as a whole."""
    if view.target is aten.permute.default:
        rank = len(view.args[1])
        return [dim % rank for dim in view.args[1]].index(channel)
    before, after = value.meta["val"].shape, view.meta["val"].shape
    return len(after) - 1 if channel == len(before) - 1 and after[-1:] == before[-1:] else None


def _steps(user: fx.Node, value: fx.Node, channel: int, fixed: Container[object]) -> list[Step]:
    """What an operation does to the value; nothing if it does more than to scale and shift."""
    operations: list[tuple[Any, Sequence[Any]]] = []
    if user.target is aten.addcmul.default and not user.kwargs:
        shift, *factors = user.args
        operations = [(aten.mul.Tensor, factors), (aten.add.Tensor, (value, shift))]
    elif user.target in (*SCALES, *SHIFTS) and not user.kwargs:
        operations = [(user.target, user.args)]
    steps = []
    for op, (left, right) in operations:
        if right is value and op in COMMUTATIVE:
            left, right = right, left
        if left is not value or right is value or not _is_per_channel(right, value, channel, fixed):
            return []
        steps.append(Step(op, right))
    return steps if steps and user.meta["val"].dtype == value.meta["val"].dtype else []


def _is_per_channel(operand: object, value: fx.Node, channel: int, fixed: Container[object]) -> bool:
    """Whether an operand of the value is fixed, with one element per channel or one for all."""
    if not isinstance(operand, fx.Node):
        return isinstance(operand, (int, float)) and not isinstance(operand, bool)
    if operand not in fixed or not operand.meta["val"].dtype.is_floating_point:
        return False
    shape, wanted = operand.meta["val"].shape, value.meta["val"].shape
    place = channel - len(wanted) + len(shape)          # of the channel in the operand
    return len(shape) <= len(wanted) and all(
        size == 1 or number == place and size == wanted[channel] for number, size in enumerate(shape))


@dataclass(frozen=True, slots=True)
class Product:
    """A kind of product: the positions of its weight and bias among the arguments, the dimension of the channels in the result, and
    the shape in which a vector over the channels multiplies the weight. `supported`: which calls are meant."""

    weight: int
    bias: int | None
    channel: int
    spread: Callable[[fx.Node], list[int]]
    supported: Callable[[fx.Node], bool] = lambda node: True

    def is_fixed(self, node: fx.Node, fixed: Container[object]) -> bool:
        weights = [node.args[self.weight]] + ([node.args[self.bias]] if self.bias is not None else [])
        return not node.kwargs and self.supported(node) and all(weight is None or weight in fixed for weight in weights)

    def with_steps(self, node: fx.Node, end: fx.Node, steps: list[Step]) -> fx.Node:
        """The product whose weights have the steps in them, computed in the widest dtype that they have; made where the last step
        is."""
        weight, bias = node.args[self.weight], None if self.bias is None else node.args[self.bias]
        narrow = weight.meta["val"].dtype
        wide = torch.promote_types(narrow, torch.float32)
        channels = node.meta["val"].shape[self.channel]
        weight = _to(end, weight, wide)
        bias = None if bias is None else _to(end, bias, wide)
        for step in steps:
            other = step.other
            if isinstance(other, fx.Node):
                flat = insert_call(end, aten.reshape.default, _to(end, other, wide), [-1])
                other = insert_call(end, aten.expand.default, flat, [channels])
            if step.op in SCALES:
                spread = insert_call(end, aten.reshape.default, other, self.spread(node)) if isinstance(other, fx.Node) else other
                weight = insert_call(end, step.op, weight, spread)
            elif bias is None:
                bias = insert_call(end, aten.new_zeros.default, weight, [channels])
            if bias is not None:
                bias = insert_call(end, step.op, bias, other)
        weight, bias = _to(end, weight, narrow), None if bias is None else _to(end, bias, narrow)
        if node.target is aten.mm.default and bias is not None:
            return insert_call(end, aten.addmm.default, bias, node.args[0], weight, val=node.meta["val"])
        args = list(node.args)
        args[self.weight] = weight
        if self.bias is not None:
            args[self.bias] = bias
        return insert_call(end, node.target, *args, val=node.meta["val"])


def _to(node: fx.Node, value: fx.Node, dtype: torch.dtype) -> fx.Node:
    return value if value.meta["val"].dtype == dtype else insert_call(node, aten._to_copy.default, value, dtype=dtype)


def _filters(node: fx.Node) -> list[int]:
    return [-1] + [1] * (node.args[1].meta["val"].dim() - 1)


PRODUCTS = {
    aten.convolution.default: Product(1, 2, 1, _filters, lambda node: not node.args[6]),
    aten.addmm.default: Product(2, 0, 1, lambda node: [1, -1], lambda node: node.args[0].meta["val"].dim() == 1),
    aten.mm.default: Product(1, None, 1, lambda node: [1, -1]),
}
