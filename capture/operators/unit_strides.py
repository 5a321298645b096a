"""Strides of dimensions of size 1, which say where no element lies. Torch's kernels for tensors without data often give others than
those that compute. So what they were in a call is noted in terms that hold for other sizes too: between which of the larger
dimensions, that fill the tensor's memory, such a dimension lies."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# For dimensions of size 1, which of the larger ones lies next below: the stride is that one's size times its stride. -1: none.
Below = tuple[tuple[int, int], ...]


def unit_strides(tensor: torch.Tensor) -> Below:
    """Where the dimensions of size 1 lie of a tensor that fills its memory."""
    if torch.Tensor.is_nested.__get__(tensor):  # type: ignore[attr-defined]    # whatever a derived class calls so
        return ()
    shape = torch.Tensor.size(tensor)           # lazy parameters have no attribute `shape`
    if len(shape) < 2 or 1 not in shape or 0 in shape:
        return ()
    if torch.Tensor.layout.__get__(tensor) is not torch.strided:        # type: ignore[attr-defined]
        return ()
    strides = torch.Tensor.stride(tensor)
    ends = {1: -1} | {size * stride: dim for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)) if size > 1}
    return tuple((dim, ends[strides[dim]]) for dim, size in enumerate(shape) if size == 1 and strides[dim] in ends)


def with_unit_strides(shape: Sequence[Any], strides: Sequence[Any], below: Below) -> tuple[Any, ...]:
    """The strides of a tensor of which the same dimensions are of size 1; as they are if others are."""
    if {dim for dim, size in enumerate(shape) if isinstance(size, int) and size == 1} != {dim for dim, _ in below}:
        return tuple(strides)
    places = dict(below)
    return tuple(stride if dim not in places else 1 if places[dim] < 0 else shape[places[dim]] * strides[places[dim]]
                 for dim, stride in enumerate(strides))
