"""In which order the dimensions of a tensor lie in memory. Torch's kernels for tensors without data often lay out new tensors
otherwise than those that compute, above all where sizes are 1. So what it was in a call is noted, in terms that hold for other
sizes too."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Order = tuple[int, ...]     # the dimensions, outermost first; in place of one of size 1 its complement, `~dim`


def memory_order(tensor: torch.Tensor) -> Order:
    """The order of a tensor that fills its memory; () for others, and for those of less than two dimensions."""
    if torch.Tensor.is_nested.__get__(tensor):  # type: ignore[attr-defined]    # whatever a derived class calls so
        return ()
    shape = torch.Tensor.size(tensor)           # lazy parameters have no attribute `shape`
    if len(shape) < 2 or 0 in shape or torch.Tensor.layout.__get__(tensor) is not torch.strided:     # type: ignore[attr-defined]
        return ()
    return order_of(shape, torch.Tensor.stride(tensor))


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order:
    """The same of sizes and strides."""
    order = tuple(~dim if shape[dim] == 1 else dim for dim in outermost_first(shape, strides))
    return order if strides_in(order, shape) == tuple(strides) else ()


def outermost_first(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The dimensions in the order of memory, whether or not they fill it."""
    return sorted(range(len(shape)), key=lambda dim: (-strides[dim], shape[dim] == 1))


def strides_in(order: Order, shape: Sequence[Any]) -> tuple[Any, ...]:
    """The strides of a tensor of this order; () if it cannot be one, since other dimensions are of size 1."""
    if len(order) != len(shape):
        return ()
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for place in reversed(order):
        dim = dim_of(place)
        size = shape[dim]
        if (place < 0) != (isinstance(size, int) and size == 1):
            return ()
        strides[dim] = step
        step *= size
    return tuple(strides)


def dim_of(place: int) -> int:
    """The dimension that stands at a place of an order."""
    return ~place if place < 0 else place
