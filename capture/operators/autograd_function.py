"""An autograd function of the program's as an operation of a graph that any process can run: its two passes as graphs, without its
code."""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, slots=True)
class Form:
    """What a tensor is like, but for its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Form:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device, tensor.requires_grad)

    def matches(self, tensor: Tensor) -> bool:
        """Whether a tensor is like this, or needs no gradient where this does; of a dimension of size 1 the stride says nothing.
        Symbols stand for any size."""
        numbers = (*tensor.shape, *tensor.stride())
        if not all(type(number) is int for number in numbers) or tuple(tensor.shape) != self.shape:
            return False
        strides = all(size == 1 or a == b for size, a, b in zip(self.shape, self.stride, tensor.stride(), strict=True))
        return strides and (tensor.dtype, tensor.device) == (self.dtype, self.device) and self.requires_grad >= tensor.requires_grad


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """The two passes of an autograd function. name: of its class. takes: the form of each tensor that it is given. forward: makes
    `results` results of these, then what the backward pass takes. single: the result is a tensor, not a tuple. saved: which of the
    values for the backward pass were saved by `save_for_backward`; this is checked for writes, and freed. constant: which results
    have no gradient. backward: makes the gradients of all that was given of those of the results, and what the forward pass has
    kept; None where nothing requires gradients. once: it cannot be differentiated. raises: the forward pass may raise for some
    values."""

    name: str
    takes: tuple[Form, ...]
    forward: fx.GraphModule
    results: int
    single: bool
    saved: tuple[int, ...]
    constant: tuple[int, ...]
    backward: fx.GraphModule | None
    once: bool
    raises: bool


class Applied(torch.autograd.Function):
    """An autograd function that runs recorded passes."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, *args: Tensor) -> Any:
        values = passes.forward(*args)
        results, kept = values[:passes.results], values[passes.results:]
        if passes.saved:
            ctx.save_for_backward(*[kept[place] for place in passes.saved])
        ctx.kept = [None if place in passes.saved else value for place, value in enumerate(kept)]
        ctx.passes = passes
        ctx.mark_non_differentiable(*[results[place] for place in passes.constant])
        return results[0] if passes.single else tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        passes, kept = ctx.passes, list(ctx.kept)
        if passes.saved:
            for place, tensor in zip(passes.saved, ctx.saved_tensors, strict=True):
                kept[place] = tensor
        return (None, *passes.backward(*grads, *kept))


@functools.lru_cache(maxsize=256)
def class_named(name: str, once: bool) -> type[Applied]:
    """The class whose nodes errors call as those of the program's class."""
    backward = once_differentiable(Applied.backward) if once else Applied.backward
    return type(name, (Applied,), {"backward": staticmethod(backward)})


class Recorded:
    """What stands for the function in graphs."""

    __module__ = "autograd"

    def __init__(self, passes: Passes) -> None:
        self.passes, self.__name__ = passes, passes.name

    def __call__(self, *args: Tensor) -> Any:
        """What the function returns. Raises ValueError for tensors of another form than those that its passes were recorded
        with."""
        passes = self.passes
        if len(args) != len(passes.takes) or not all(form.matches(arg) for form, arg in zip(passes.takes, args)):
            raise ValueError(f"the autograd function {passes.name} is given other tensors than those that it was recorded with")
        return class_named(passes.name, passes.once).apply(passes, *args)
