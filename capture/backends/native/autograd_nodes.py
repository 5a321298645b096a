"""The tensors that an autograd node of a compiled graph saves: how a backward pass takes them, and when the node frees them."""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from capture import _C
from capture.backends.native.eager_gradients import Memory
from capture.backends.native.saved_tensors import (
    OWN_NODE,
    SavedTensors,
    keeps_graph,
    picker,
    position,
    release,
    saved_tensor_hooks,
    saver,
)
from capture.backends.native.signature import Result, Signature, Tangent

Gradients = tuple[Tensor | None, ...]

NONE: Mapping[Result, Tensor] = {}


class Unwatched:
    """In place of `SavedTensors` where hooks for saved tensors have what the node saves, but for numbers. edges: as there."""

    __slots__ = ("numbers", "edges")

    edges: Any

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers


class NodeSaving:
    """What the calls of one node have in common. own: the signature of this node. frees: whether eager mode frees anything there;
    if not, there may be any number of passes. joined: the gradients that other nodes pass on."""

    def __init__(self, own: Signature, frees: bool = True, joined: Sequence[Tangent] = ()) -> None:
        self.differentiable, self.partial_passes, self.frees = own.differentiable, own.partial_passes, frees
        self.keep = saver(own)
        self.save, self.saves = picker([position(own, name) for name in own.saved]), len(own.saved)
        self.sizes_in = own.values_for_passes(joined)

    def hold(self, ctx: Any, frame: list[Any], tensors: tuple[Tensor, ...], memory: Memory,
             inner: Mapping[Result, Tensor] = NONE) -> None:
        """Keeps the tensors that passes will need. tensors: inputs and results of the graph. inner: results as the program has
        them, of which others are computed. frame: its item 1 is for `tell`."""
        ctx.set_materialize_grads(False)
        ctx.sizes = self.sizes_in(tensors)
        if saved_tensor_hooks(True) is None:
            ctx.kept = frame[1] = self.keep(tensors, inner)
            ctx.memory = memory
        else:       # the hooks shall have all that the node holds on to
            others, _, random = memory
            assert others is not None
            values = self.save(tensors)
            ctx.save_for_backward(*(value for value in values if isinstance(value, Tensor)), *others)
            ctx.kept = frame[1] = Unwatched([value for value in values if not isinstance(value, Tensor)])
            ctx.memory = None, None, random

    def take(self, ctx: Any, grads: Gradients) -> Gradients:
        """The gradients that a pass brings; none at all if it ends here. Raises RuntimeError as autograd does."""
        kept = ctx.kept
        if type(kept) is SavedTensors:
            grads = kept.grads.pop(threading.get_ident(), grads)
        if _C.goes_on():
            return grads
        if type(kept) is SavedTensors:
            kept.end()
        return (None,) * len(grads)

    def values(self, ctx: Any, given: Sequence[int]) -> list[Tensor]:
        """What is saved, for a pass from the results in `given`. Raises RuntimeError as autograd does."""
        if type(ctx.kept) is SavedTensors:
            return ctx.kept.values_for(given)
        tensors, numbers = ctx.saved_tensors, ctx.kept.numbers
        count = self.saves - len(numbers)       # they come last
        return [*tensors[:count], *numbers, *tensors[count:]]

    def let_go(self, ctx: Any, given: Sequence[int]) -> None:
        """Frees what the node has saved, as autograd does, if no other pass may follow."""
        if not self.frees or keeps_graph():
            return
        if ctx.kept.spend(given) if type(ctx.kept) is SavedTensors else (
                len(given) == self.differentiable or self.partial_passes is None or not self.partial_passes.separable):
            ctx.memory = None
            release(ctx)


def tell(frame: list[Any], made: tuple[Tensor, ...], count: int, own_nodes: Callable[[tuple[Tensor, ...]], None] | None) -> None:
    """Tells the saved tensors of a call where gradients come from, and where the gradients of the node's results go. own_nodes:
    gives results nodes of their own."""
    kept, results = frame[1], made if count == len(made) else made[:count]
    if type(kept) is SavedTensors and (node := made[0].grad_fn) is not None:
        kept.take_grads_of(node)
    if own_nodes is not None:
        own_nodes(results)
    if kept is not None:
        kept.edges = _C.edges_of(results)


def function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., tuple[Tensor, ...]]:
    """A function of autograd, without what `Function.apply` does for transforms, which guards rule out."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    node: Any = type(OWN_NODE, (torch.autograd.Function,), methods)
    return super(torch.autograd.Function, node).apply
