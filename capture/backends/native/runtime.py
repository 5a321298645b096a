"""The callable of a compiled graph: one autograd node around its forward and backward callables.

What does not change from call to call is decided here, once; a call only picks from lists.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import increment_version

from capture import _C
from capture.backends.kept_casts import with_casts
from capture.backends.native.autograd_nodes import NodeSaving, function, tell
from capture.backends.native.eager_gradients import Replay
from capture.backends.native.extents import Values
from capture.backends.native.inlined_backward import unless_hooked, with_gradients
from capture.backends.native.numbers import DTYPES, fits
from capture.backends.native.partial_backward import PartialBackward
from capture.backends.native.recomputation import Recomputation
from capture.backends.native.saved_tensors import Backward, Picker, as_expected, is_again, picker, position
from capture.backends.native.segment_nodes import with_segment_nodes
from capture.backends.native.signature import Input, Result, Signature, Tangent

Forward = Callable[..., tuple[Tensor, ...]]                     # takes tensors


def make_callable(gm: fx.GraphModule, signature: Signature, forward: Forward,
                  backward: Backward | Sequence[Backward] | None, loose: bool = False, tail: fx.GraphModule | None = None,
                  core: fx.GraphModule | None = None) -> Forward:
    """A callable in the place of `gm.forward`: it takes the same positional arguments and returns the same tuple.

    forward, backward: take and return what `signature` says. They run below autograd and autocast: their results are tensors of
    their own, not views in autograd's sense, and writing does not increase versions. loose: the backward callable takes tangents of
    any strides. tail: makes the graph's outputs from `signature.outputs`. With `signature.parts` there is a backward callable for
    each part, and core: see `segment_nodes.with_segment_nodes`.
    """
    again = Recomputation(gm, signature, forward)
    if signature.advanced:
        forward = _counting(signature, forward)
    if isinstance(backward, Sequence):
        assert tail is not None and core is not None
        call = with_segment_nodes(signature, forward, backward, loose, tail, core, again)
    else:
        call = forward if backward is None else _differentiable(gm, signature, forward, backward, loose, again)
        if tail is not None or signature.outputs != tuple(map(Result, range(signature.visible))):
            call = _with_outputs(signature, call, tail)
    if signature.grad_after is not None:
        call = _with_grad_mode(call, signature.grad_after)
    if signature.inlined_backward is not None:
        call = with_gradients(signature.inlined_backward, call)
    if signature.casts:
        call = with_casts(gm.forward, signature.casts, call)
    if signature.numbers:
        call = _with_numbers(gm, signature, call)
    return call if signature.inlined_backward is None else unless_hooked(gm.forward, signature.inlined_backward, call)


# --- numbers of Python among the inputs

def _with_numbers(gm: fx.GraphModule, signature: Signature, call: Forward) -> Forward:
    """`call`, with tensors in place of numbers. If a number does not fit, the graph runs uncompiled."""
    places = tuple(zip(signature.numbers, signature.domains, strict=True))

    def run(*inputs: Any) -> tuple[Tensor, ...]:
        values = list(inputs)
        for place, domain in places:
            value = values[place]
            if not fits(value, domain):
                return gm.forward(*inputs)
            values[place] = torch.scalar_tensor(value, dtype=DTYPES[type(value)], device="cpu")
        return call(*values)
    return run


# --- what remains to be done when the results are there

def _with_outputs(signature: Signature, call: Forward, tail: fx.GraphModule | None) -> Forward:
    """`call`, with the outputs picked among its results and inputs, or made of these by the tail."""
    pick = picker([position(signature, output) for output in signature.outputs])
    if tail is None:
        return lambda *inputs: pick((*inputs, *call(*inputs)))
    make = tail.forward
    return lambda *inputs: make(*pick((*inputs, *call(*inputs))))


def _counting(signature: Signature, forward: Forward) -> Forward:
    """`forward`, and the versions of what it has written to count that."""
    pick, inference = picker([position(signature, name) for name in signature.advanced]), signature.modes.inference
    own = picker([place for place in signature.written if Input(place) in signature.advanced])

    def counted(written: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors of inference mode have no version, and only there can they be written to."""
        return [tensor for tensor in written if not tensor.is_inference()] if inference else written

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        try:
            results = forward(*inputs)
        except Exception:           # some inputs may have been written to by then
            increment_version(counted(own(inputs)))
            raise
        written = pick((*inputs, *results))
        increment_version(counted(written) if inference else written)
        return results
    return run


def _with_grad_mode(call: Forward, enabled: bool) -> Forward:
    """`call`, which leaves this grad mode behind."""
    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = call(*inputs)
        torch._C._set_grad_enabled(enabled)
        return outputs
    return run


# --- the autograd node

def _differentiable(gm: fx.GraphModule, signature: Signature, forward: Forward, backward: Backward, loose: bool,
                    again: Recomputation) -> Forward:
    """A callable from inputs to visible results, of which the differentiable ones come from one autograd node."""
    differentiable, visible = signature.differentiable, signature.visible
    saves = len(signature.saved)
    saving = NodeSaving(signature)
    with_gradient = picker([index for index, _ in signature.gradients])
    gradients = _gradients(signature)
    replay = Replay(gm, signature, again)
    passes = signature.partial_passes
    partial = PartialBackward(passes.graph, saves) if passes is not None and passes.graph is not None else None
    none, nothing = (None,) * differentiable, (None,) * (1 + len(signature.gradients))
    handed_on = any(isinstance(place, Tangent) for _, place in signature.gradients)

    def run_forward(ctx: Any, frame: list[Any], *_: Tensor) -> tuple[Tensor, ...]:
        inputs = frame[0]
        memory = replay.remember(inputs)
        results = forward(*inputs)
        saving.hold(ctx, frame, inputs + results, memory)
        frame[0] = results[differentiable:visible]
        return results[:differentiable]

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grads = saving.take(ctx, grads)
        given = [place for place, grad in enumerate(grads) if grad is not None]
        if not given:
            return nothing
        replayed = is_again(grads)
        arguments = saving.values(ctx, given)
        if replayed:
            found = by_replay(ctx, arguments, grads)
            saving.let_go(ctx, given)
            return None, *found
        if len(given) < differentiable and passes is not None and (passes.separable or not passes.harmless(given)):
            found = compiled(arguments[:saves], grads, ctx.sizes)
            if any(math.isnan(g.sum().item()) for g in found if g is not None):      # perhaps of zeros that there are none of
                found = exact(arguments[:saves], grads, ctx.sizes) if partial else by_replay(ctx, arguments, grads)
            saving.let_go(ctx, given)
            return None, *found
        saving.let_go(ctx, given)
        del arguments[saves:]
        arguments += [as_expected(grads[tangent.index], tangent, loose, ctx.sizes) for tangent in signature.tangents]
        if not handed_on:
            grads = none            # so that all of these die early
        return gradients(grads + backward(arguments, True))

    def by_replay(ctx: Any, arguments: list[Tensor], grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """The gradients by eager mode."""
        return replay.gradients(ctx.memory, arguments, grads, ctx.kept.edges, list(zip(signature.saved, arguments, strict=False)))

    def compiled(arguments: list[Tensor], grads: tuple[Tensor | None, ...], sizes: Values) -> tuple[Tensor | None, ...]:
        """The gradients by the compiled callable, with zeros for gradients that are not there."""
        arguments += [as_expected(grads[tangent.index], tangent, loose, sizes) for tangent in signature.tangents]
        return gradients(grads + backward(arguments, False))[1:]

    def exact(arguments: list[Tensor], grads: tuple[Tensor | None, ...], sizes: Values) -> tuple[Tensor | None, ...]:
        """The same where there are no zeros for gradients that are not there."""
        assert partial is not None
        arguments += [as_expected(grads[tangent.index], tangent, loose, sizes) for tangent in signature.tangents]
        return gradients(grads + partial(arguments, [grads[tangent.index] is not None for tangent in signature.tangents]))[1:]

    apply = function(run_forward, run_backward)
    own_nodes = _own_nodes(passes.order if passes else range(differentiable)) if differentiable > 1 else None

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        frame: list[Any] = [inputs, None]
        results = apply(frame, *with_gradient(inputs))
        tell(frame, results, differentiable, own_nodes)
        return (*results, *frame[0]) if frame[0] else results
    return call


def _own_nodes(order: Sequence[int]) -> Callable[[tuple[Tensor, ...]], None]:
    """Gives each result a node of its own, in this order: a pass from one of them calls no hooks of the others."""
    pick = picker(order)
    return _C.give_own_nodes if list(order) == list(range(len(order))) else lambda results: _C.give_own_nodes(pick(results))


def _gradients(signature: Signature) -> Picker:
    """Picks what the autograd node returns, from the tangents and then the results of the backward callable: nothing for its
    first argument, which is no tensor, and the gradients of the others."""
    places = [place.index + (0 if isinstance(place, Tangent) else signature.differentiable) for _, place in signature.gradients]
    if places == list(range(signature.differentiable, signature.differentiable + len(places))):
        return lambda values: (None, *values[signature.differentiable:])
    pick = picker(places)
    return lambda values: (None, *pick(values))
