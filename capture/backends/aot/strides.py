"""Has tensors without data lie in memory as those with data did in the capturing call, and results as they lie in eager mode."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from capture.backends.aot.aten import aten, steps
from capture.backends.native.nodes import expected, insert_call, same
from capture.backends.native.signature import Unsupported
from capture.operators.memory_order import Order, dim_of, order_of, strides_in


def noted(node: fx.Node, made: Any) -> Iterator[tuple[Tensor, Order]]:
    """The new tensors among results of which the capture has noted in what order they lie."""
    results = made if isinstance(made, (tuple, list)) else [made]
    yield from ((results[place], order) for place, order in node.meta.get("orders", ())
                if strides_in(order, results[place].shape))


def lies_in(tensor: Tensor, order: Order) -> bool:
    return same(strides_in(order, tensor.shape), tensor.stride())


def moves(tensor: Tensor, strides: Sequence[Any]) -> bool:
    """Whether elements lie elsewhere with other strides; those of dimensions of size 1 do not matter."""
    larger = [dim for dim, size in enumerate(tensor.shape) if not (isinstance(size, int) and size == 1)]
    return not same([strides[dim] for dim in larger], [tensor.stride(dim) for dim in larger])


def set_order(tensor: Tensor, order: Order) -> bool:
    """Has a tensor without data lie in an order, without autograd's notice; returns whether it did not."""
    if lies_in(tensor, order):
        return False
    with torch._C._AutoDispatchBelowADInplaceOrView():
        tensor.as_strided_(tensor.shape, strides_in(order, tensor.shape))
    return True


def laid_out(before: fx.Node, node: fx.Node, like: Tensor) -> fx.Node:
    """A tensor with the strides of another one, made before a node of its graph: itself where only those of dimensions of size 1
    differ, else a copy. Raises Unsupported where that one does not fill its memory."""
    if steps(node.meta["val"]) == steps(like) or any(isinstance(size, int) and size == 0 for size in like.shape):
        return insert_call(before, aten.as_strided.default, node, tuple(like.shape), like.stride())
    order = order_of(list(map(expected, like.shape)), list(map(expected, like.stride())))
    if not order or not same(strides_in(order, like.shape), like.stride()):
        raise Unsupported("a result has other strides where it is traced")
    return copied(node, order, lambda op, *args, **kwargs: insert_call(before, op, *args, **kwargs))


def copied(of: Any, order: Order, call: Callable[..., Any]) -> Any:
    """A copy of a tensor, or of a node for one, that lies in memory in some order. call: calls an operator."""
    dims = list(map(dim_of, order))
    copy = call(aten.clone.default, call(aten.permute.default, of, dims), memory_format=torch.contiguous_format)
    return call(aten.permute.default, copy, [dims.index(dim) for dim in range(len(dims))])
