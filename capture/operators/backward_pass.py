"""The backward pass as one operation of a graph, which says what it does to the gradients of leaves."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def backward(tensors: Tensor | Sequence[Tensor], grad_tensors: Any, new: Sequence[Tensor], old: Sequence[Tensor],
             grads: Sequence[Tensor], **options: Any) -> tuple[Tensor | None, ...]:
    """`torch.autograd.backward(tensors, grad_tensors, **options)`, which makes gradients of the leaves `new`, and returns them, and
    adds to the gradients of the leaves `old`: these are `grads`."""
    torch.autograd.backward(tensors, grad_tensors, **options)
    return tuple(leaf.grad for leaf in new)
