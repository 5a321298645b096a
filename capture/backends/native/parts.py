"""A compiled graph of which results are computed from other results: a node of autograd for each segment of its backward graph.

So autograd itself passes gradients from one result on to another, as in eager mode: to what hooks and `retain_grad` see of it.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from capture import _C
from capture.backends.native.kept import (
    Backward,
    Kept,
    as_expected,
    is_again,
    keeper,
    keeps_graph,
    picker,
    position,
    release,
    saved_tensor_hooks,
)
from capture.backends.native.replay import Memory, Replay
from capture.backends.native.signature import Part, Result, Signature, Tangent

Make = Callable[..., tuple[Tensor, ...]]


def hung(signature: Signature, forward: Callable[..., tuple[Tensor, ...]], backward: Sequence[Backward], loose: bool,
         tail: fx.GraphModule, core: fx.GraphModule) -> Callable[..., tuple[Tensor, ...]]:
    """A callable that takes inputs and returns the graph's outputs. backward: a callable for each part. tail: has `Call` make the
    nodes. core: the graph in torch's operations, up to the tail, that takes `signature.inner` behind its inputs."""
    whole = Replay(core, _without_saved(signature, signature.inputs))
    again = _without_saved(signature, signature.inputs + len(signature.inner))
    makers = [_node(signature, part, call, loose, Replay(core, _of_part(again, part)))
              for part, call in zip(signature.parts, backward, strict=True)]
    pick = picker([position(signature, output) for output in signature.outputs])

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        memory = whole.remember(inputs)
        tensors = inputs + forward(*inputs)
        return tail.forward(Call(makers, tensors, memory), *pick(tensors))
    return run


class Call:
    """One call, as its tail sees it. tensors: inputs and results. memory: for a replay, without what results are computed from."""

    __slots__ = ("makers", "tensors", "memory")

    def __init__(self, makers: Sequence[Make], tensors: tuple[Tensor, ...], memory: Memory) -> None:
        self.makers, self.tensors, self.memory = makers, tensors, memory

    def node(self, number: int, *edges: Tensor) -> tuple[Tensor, ...]:
        """The results of a part, and tensors without memory of their own that stand for what it joins."""
        return self.makers[number](self, *edges)


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version


def _without_saved(signature: Signature, inputs: int) -> Signature:
    return replace(signature, inputs=inputs, saved=())


def _of_part(signature: Signature, part: Part) -> Signature:
    """How a replay finds the gradients that a part hands to inputs."""
    gradients = tuple((place, Result(0)) for place, other in part.edges if other < 0)
    return replace(signature, gradients=gradients, roots=tuple((result, False) for result in part.results))


def _node(signature: Signature, part: Part, backward: Backward, loose: bool, replay: Replay) -> Make:
    """Makes a part's results of a call, and what they are computed from."""
    own = signature.of(part)
    results = picker([position(signature, Result(result)) for result in part.results])
    count, saves, known = len(part.results), len(part.saved), signature.inputs
    keep = keeper(own)
    save = picker([position(signature, name) for name in part.saved])
    inner = {place - known: edge for edge, (place, other) in enumerate(part.edges) if other < 0 and place >= known}
    direct = [edge for edge, (_, other) in enumerate(part.edges) if other < 0]
    places = [None if place is None else place.index + (0 if isinstance(place, Tangent) else own.differentiable)
              for place in part.gradients]
    handed_on = any(isinstance(place, Tangent) for place in part.gradients)
    nothing = (None,) * len(part.edges)

    def run_forward(ctx: Any, frame: list[Any], *edges: Tensor) -> tuple[Tensor, ...]:
        call = frame[0]
        tensors, versions, random = call.memory
        used = [edges[inner[place]] if place in inner else None for place in range(len(signature.inner))]
        tensors = (*tensors, *used)
        ctx.set_materialize_grads(False)
        if saved_tensor_hooks(True) is not None:        # the hooks shall have all that the node holds on to
            ctx.save_for_backward(*save(call.tensors), *tensors)
            ctx.memory = None, None, random
        else:
            ctx.kept = frame[1] = keep(call.tensors)
            ctx.memory = tensors, None if versions is None else [*versions, *map(_version, used)], random
        return (*results(call.tensors), *(torch.empty_strided(like.sizes, (0,) * len(like.sizes), dtype=like.dtype,
                                                              device=like.device) for like in part.joined))

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        kept: Kept | None = getattr(ctx, "kept", None)
        if kept is not None:
            grads = kept.grads.pop(threading.get_ident(), grads)
        if all(grad is None for grad in grads):
            return None, *nothing
        arguments = list(ctx.saved_tensors) if kept is None else kept.values_for((0,))
        if is_again(grads):
            found = replayed(ctx.memory, arguments, grads[:count])
            let_go(ctx)
            return None, *found
        let_go(ctx)
        del arguments[saves:]
        arguments += [as_expected(grads[tangent.index], tangent, loose) for tangent in part.tangents]
        if not handed_on:
            grads = (None,) * len(grads)        # so that all of these die early
        values = (*grads, *backward(arguments, True))
        return None, *(None if place is None else values[place] for place in places)

    def replayed(memory: Memory, saved: Sequence[Tensor], grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """The gradients by eager mode, from each of the results to all that is not computed from another result."""
        tensors, versions, random = memory
        found: list[Tensor | None] = list(nothing)
        if any(grad is not None for grad in grads):
            given = list(saved[saves:] if tensors is None else tensors)
            for place, like in enumerate(signature.inner, known):
                if given[place] is None:        # nothing of this part is computed from that
                    given[place] = torch.zeros(like.sizes, dtype=like.dtype, device=like.device)
            gradients = replay.gradients((tuple(given), versions, random), (), grads)
            for edge, gradient in zip(direct, gradients, strict=True):
                found[edge] = gradient
        return found

    def let_go(ctx: Any) -> None:
        """Frees what the node holds, as autograd does, if no other pass may follow. Where eager mode holds nothing one may."""
        kept: Kept | None = getattr(ctx, "kept", None)
        if part.checks and not keeps_graph() and (kept is None or kept.spend((0,))):
            ctx.memory = None
            release(ctx)

    methods = {"forward": staticmethod(run_forward), "backward": staticmethod(run_backward)}
    node: Any = type("CompiledGraph", (torch.autograd.Function,), methods)
    apply = super(torch.autograd.Function, node).apply

    def make(call: Call, *edges: Tensor) -> tuple[Tensor, ...]:
        frame: list[Any] = [call, None]
        made = apply(frame, *edges)
        if frame[1] is not None and (grad_fn := made[0].grad_fn) is not None:
            frame[1].take_grads_of(grad_fn)
        frame.clear()
        if part.joined:         # a pass that comes to these alone calls no hooks of results
            _C.give_shared_node(made[:count])
        return made
    return make
