"""Tensors and other objects of torch's own: where they lie in memory, and what asks for it."""
from __future__ import annotations

import operator
from typing import Any

import torch

from capture.refgraph.node import Expr, Shadow

# Tensors about which nothing can be hidden.
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
# Objects of torch that operations take and change, and of which nothing matters but what they are used for.
HANDLES = (torch.Generator, torch.UntypedStorage)
# What asks for the address of memory, and what may be done with it.
ADDRESSES = frozenset({torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr})
COMPARISONS = frozenset({operator.eq, operator.ne})


def is_handle(real: Any) -> bool:
    """Whether an object is one of these, or a node of autograd."""
    return type(real) in HANDLES or isinstance(real, torch.autograd.graph.Node)


def is_address(shadow: Shadow) -> bool:
    """Whether a value is the address of a tensor's memory."""
    return type(shadow) is Expr and shadow.op in ADDRESSES


def storage_of(real: torch.Tensor) -> tuple[int, int] | None:
    """Identity of a tensor's storage and its offset there in bytes, or None when it has no single one, or is not plain."""
    if type(real) not in PLAIN_TENSORS or real.layout is not torch.strided or not torch._C._has_storage(real):
        return None
    return real.untyped_storage()._cdata, real.storage_offset() * real.element_size()
