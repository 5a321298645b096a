"""Operators that TorchDynamo puts into its graphs (`torch.compile(…, backend="capture")`), as what they stand for in a program."""
from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._functorch.autograd_function import AutogradFunctionApply
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch.utils.checkpoint import checkpoint

from capture.interp.core.registry import polyfill


def has_no_context_fn(op: Any, body: fx.GraphModule, *args: Any, **kwargs: Any) -> bool:
    """Whether a checkpoint does not choose what is recomputed (`context_fn`, which Dynamo hides in the graph)."""
    return isinstance(body, fx.GraphModule) and "_checkpoint_context_fn" not in body.meta


@polyfill(TagActivationCheckpoint.__call__, applies=has_no_context_fn)
def checkpointed(op: Any, body: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """`torch.utils.checkpoint.checkpoint`; the operator itself leaves random numbers to Inductor."""
    return checkpoint(body, *args, **{**kwargs, "use_reentrant": False})


class Applied(torch.autograd.Function):
    """An autograd function of the program's whose two passes Dynamo has captured as graphs."""

    @staticmethod
    def forward(ctx: Any, forward: fx.GraphModule, backward: fx.GraphModule, checked: list[int], constant: list[int],
                *args: Any) -> Any:
        """`checked`: which of the values for the backward pass were saved by `save_for_backward`, and not as attributes.
        `constant`: which results are not differentiable."""
        outputs, kept = forward(*args)
        ctx.save_for_backward(*[value for place, value in enumerate(kept) if place in checked])
        ctx.unchecked = [None if place in checked else value for place, value in enumerate(kept)]
        ctx.pass_, ctx.checked = backward, checked
        results = outputs if isinstance(outputs, tuple | list) else (outputs,)
        ctx.mark_non_differentiable(*[result for place, result in enumerate(results) if place in constant])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        kept = list(ctx.unchecked)
        for place, tensor in zip(ctx.checked, ctx.saved_tensors):
            kept[place] = tensor
        found = ctx.pass_(*grads, *kept)
        return (None, None, None, None, *(found if isinstance(found, tuple | list) else (found,)))


def writes_nothing(op: Any, forward: fx.GraphModule, backward: fx.GraphModule, *args: Any, non_differentiable_idx: list[int],
                   saved_for_backward_idx: list[int], dirty_idx: Any = ()) -> bool:
    return isinstance(forward, fx.GraphModule) and isinstance(backward, fx.GraphModule) and not dirty_idx


@polyfill(AutogradFunctionApply.__call__, applies=writes_nothing)
def applied(op: Any, forward: fx.GraphModule, backward: fx.GraphModule, *args: Any, non_differentiable_idx: list[int],
            saved_for_backward_idx: list[int], dirty_idx: Any = ()) -> Any:
    """The call of the autograd function."""
    return Applied.apply(forward, backward, sorted(saved_for_backward_idx), non_differentiable_idx, *args)
