"""What remains of backward passes that a compiled graph runs itself: gradients of leaves, and results that had a history."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from capture import _C
from capture.backends.native.autograd_nodes import function
from capture.backends.native.saved_tensors import TWICE, picker
from capture.backends.native.signature import InlinedBackward

Call = Callable[..., tuple[Tensor, ...]]


def with_gradients(passes: InlinedBackward, call: Call) -> Call:
    """`call`, which returns gradients behind the results, with these assigned to the leaves."""
    leaves, made, spent = picker(passes.leaves), picker(passes.made), passes.spent
    dropped = picker(passes.dropped)

    def run(*inputs: Any) -> tuple[Tensor, ...]:
        outputs = call(*inputs)
        for leaf, grad in zip(made(inputs), outputs[passes.outputs:], strict=True):
            leaf.grad = grad
        for leaf in dropped(inputs):
            leaf.grad = None
        outputs = outputs[:passes.outputs]
        return _with_nodes(outputs, spent, leaves(inputs)) if spent else outputs
    return run


def unless_hooked(uncompiled: Call, passes: InlinedBackward, call: Call) -> Call:
    """`call`, unless nodes of leaves have hooks: then the graph runs as it is, and calls them."""
    leaves, is_hooked = picker(passes.leaves), _C.any_is_hooked
    return lambda *inputs: (uncompiled if is_hooked(leaves(inputs)) else call)(*inputs)


def _with_nodes(outputs: tuple[Tensor, ...], spent: tuple[int, ...], leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The outputs, those in `spent` as results of a node of autograd that raises."""
    with torch.enable_grad():
        known = iter(_spend([outputs[place] for place in spent], *leaves))
    return tuple(next(known) if place in spent else output for place, output in enumerate(outputs))


def _forward(ctx: Any, results: list[Tensor], *leaves: Tensor) -> tuple[Tensor, ...]:
    return tuple(results)


def _backward(ctx: Any, *grads: Tensor) -> Any:
    raise RuntimeError(TWICE)


_spend = function(_forward, _backward)
