"""Tensor operations by what the shapes of their results follow from."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from capture.interp.core.frame import Value

# Operations whose result's shape depends on values: aten's of torch.Tag.dynamic_output_shape (a test compares), and the
# Python functions built upon them.
DYNAMIC_SHAPE = frozenset({
    "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "_unique", "_unique2", "unique_dim", "bincount",
    "unique_dim_consecutive", "linalg_lstsq", "lstsq", "_ctc_loss", "pack_padded_sequence", "pad_packed_sequence", "indices",
    "values", "_indices", "_values", "col_indices", "row_indices"})
# … and those for which it depends on how they are called.
SOMETIMES_DYNAMIC = {
    "where": lambda args: len(args) == 1,
    "one_hot": lambda args: len(args) == 1 or args[1] == -1,
    "repeat_interleave": lambda args: any(isinstance(a, torch.Tensor) for a in args[1:]),
    "tensor_split": lambda args: any(isinstance(a, torch.Tensor) for a in args[1:]),
    "getitem": lambda args: any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8)
                                for i in (args[1] if isinstance(args[1], tuple) else (args[1],))),
}


# Operations which return as many tensors as the shape says.
COUNTED = frozenset({"unbind", "split", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit", "unsafe_split", "unsafe_chunk"})
ROWS = frozenset({"nonzero", "argwhere"})
# Operations whose result is of the shape of their first operand, whatever the others are.
OVERWRITING = frozenset(
    "index_add index_copy index_fill index_put index_reduce put scatter scatter_add scatter_reduce".split())


def name_of(target: Any) -> str:
    """The name of an fx target, as in the tables here."""
    return (target if isinstance(target, str) else getattr(target, "__name__", "")).strip("_")


def is_dynamic(target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> bool:
    """Whether the operation's result has a shape which depends on the values of its arguments."""
    name = name_of(target)
    if name in SOMETIMES_DYNAMIC:
        return SOMETIMES_DYNAMIC[name]([a.real for a in args] + [v.real for v in kwargs.values()])
    return name in DYNAMIC_SHAPE
