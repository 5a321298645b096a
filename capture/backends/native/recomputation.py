"""Whether inputs still hold the values from which the results of an earlier call were computed."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from capture import _C
from capture.backends.native.signature import Input, Result, Signature

Kept = Sequence[tuple[Input | Result, Any]]     # what a node of autograd has kept, and numbers

LAST_BITS = 16          # how many a computation may differ from itself in (with another number of threads) …
AT_MOST = 2.0 ** -6     # … and by which part of a number, where it has few bits


class Recomputation:
    """Calls the compiled forward callable of a graph on inputs as they are now."""

    def __init__(self, gm: fx.GraphModule, signature: Signature, forward: Callable[..., tuple[Tensor, ...]]) -> None:
        placeholders = gm.graph.find_nodes(op="placeholder")
        self.properties = [node.meta.get("properties") for node in placeholders]
        self.signature, self.forward = signature, forward

    def agrees(self, inputs: Sequence[Tensor], kept: Kept) -> bool:
        """Whether the graph's inputs, the first of these tensors, give what has been kept of casts, of results, and of what it
        writes to. They are as they were before the call."""
        signature = self.signature
        wanted = [(name, value) for name, value in kept if isinstance(value, Tensor) and (
            isinstance(name, Result) or name.index >= signature.inputs or name.index in signature.written)]
        if not wanted:
            return True
        if not all(properties is None or _is_as(properties, layout, tensor) for properties, layout, tensor in zip(
                self.properties, signature.layouts, inputs[:len(self.properties)], strict=True)):
            return False
        with torch.no_grad():
            given = [tensor.clone() if place in signature.written else tensor.detach()
                     for place, tensor in enumerate(inputs[:signature.inputs])]
            if signature.symbols and not signature.size_check()(given):
                return False
            dtypes = dict(signature.modes.autocast)
            given += [given[place].to(dtypes[given[place].device.type]) for place in signature.casts]
            try:
                results = self.forward(*given)
            except (RuntimeError, IndexError, ValueError):      # as it did not for the inputs of the call
                return False
            return all(_agree(results[name.index] if isinstance(name, Result) else given[name.index], value)
                       for name, value in wanted)


def _is_as(properties: _C.TensorProperties, layout: tuple[Sequence[int], Sequence[int]], tensor: Tensor) -> bool:
    """Whether a tensor has this dtype and device, and sizes and strides as of `Signature.layouts`."""
    (sizes, strides), shape, steps = layout, tensor.shape, tensor.stride()
    if (tensor.dtype, tensor.device, len(shape)) != (properties.dtype, properties.device, len(sizes)):
        return False
    return all(size in (-1, found) for size, found in zip(sizes, shape, strict=True)) and all(
        found == (stride if stride >= 0 else shape[-1 - stride] * steps[-1 - stride])
        for stride, found in zip(strides, steps, strict=True))


def _agree(result: Tensor, kept: Tensor) -> bool:
    """Whether a result, or a view of it that lies there as `kept` does, is equal to `kept`."""
    view = torch.empty(0, dtype=kept.dtype, device=kept.device).set_(
        result.untyped_storage(), kept.storage_offset(), kept.shape, kept.stride())
    if torch.equal(view, kept):
        return True
    if not (kept.is_floating_point() or kept.is_complex()):
        return False
    tolerance = min(LAST_BITS * torch.finfo(kept.dtype).eps, AT_MOST)
    largest = kept.abs().nan_to_num(0.0, 0.0, 0.0).max().item()
    return torch.allclose(view, kept, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
