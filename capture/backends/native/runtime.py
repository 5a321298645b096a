"""The callable of a compiled graph: one autograd node around its forward and backward callables.

What does not change from call to call is decided here, once; a call only picks from lists.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import increment_version

from capture import _C
from capture.backends.native.numbers import DTYPES, fits
from capture.backends.native.signature import Input, Result, Signature, Tangent, View

Forward = Callable[..., tuple[Tensor, ...]]                     # takes tensors
# Takes a list, which it may empty so that tensors die early. Returns None for what it has added to the `.grad` of a leaf itself,
# which it does unless it is told that its results are not certain yet.
Backward = Callable[[list[Tensor], bool], tuple[Tensor | None, ...]]
Picker = Callable[[Sequence[Any]], tuple[Any, ...]]

_release = getattr(torch._C._FunctionBase, "maybe_clear_saved_tensors", lambda node: None)      # not in all versions of torch
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_is_batched = torch._C._functorch.is_legacy_batchedtensor        # by `is_grads_batched=True`
_transforms_active = torch._C._are_functorch_transforms_active


def make_callable(gm: fx.GraphModule, signature: Signature, forward: Forward, backward: Backward | None,
                  loose: bool = False) -> Forward:
    """A callable that stands for `gm.forward`: it takes the same positional arguments and returns the same tuple.

    forward, backward: take and return what `signature` says. They run below autograd and autocast: what they return are tensors
    of their own, and no views in autograd's sense, and the versions of what they write to stay as they are. loose: the backward
    callable takes tangents of any strides.
    """
    call = forward if backward is None else _differentiable(gm, signature, forward, backward, loose)
    if signature.outputs != tuple(map(Result, range(signature.visible))):
        call = _with_outputs(signature, call)
    if signature.advanced or signature.grad_after is not None:
        call = _with_effects(signature, call)
    if signature.numbers:
        call = _with_numbers(gm, signature, call)
    return call


def picker(indices: Sequence[int]) -> Picker:
    """A function that takes the items at `indices` out of a sequence, as a tuple."""
    if not indices:
        return lambda items: ()
    if len(indices) == 1:
        index = indices[0]
        return lambda items: (items[index],)
    return operator.itemgetter(*indices)


# --- numbers of Python among the inputs

def _with_numbers(gm: fx.GraphModule, signature: Signature, call: Forward) -> Forward:
    """`call`, with tensors in place of numbers. Where one does not fit, the graph runs as it is."""
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

def _with_outputs(signature: Signature, call: Forward) -> Forward:
    """`call`, with its results, its inputs and views of them picked as the outputs."""
    makers: list[tuple[int, Callable[[Tensor], Tensor]]] = []
    positions = []
    for output in signature.outputs:
        if isinstance(output, View):
            positions.append(signature.inputs + signature.visible + len(makers))
            makers.append((_position(signature, output.base), _maker(output)))
        else:
            positions.append(_position(signature, output))
    pick = picker(positions)

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        values = [*inputs, *call(*inputs)]
        for position, make in makers:
            values.append(make(values[position]))
        return pick(values)
    return run


def _with_effects(signature: Signature, call: Forward) -> Forward:
    """`call`, and what autograd and the program shall know of it: inputs were written to, the grad mode was changed."""
    written = picker(signature.advanced)
    inference, grad_after = signature.modes.inference, signature.grad_after

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = call(*inputs)
        # tensors of inference mode have no version, and only there can they be written to
        increment_version([tensor for tensor in written(inputs) if not tensor.is_inference()] if inference else written(inputs))
        if grad_after is not None:
            torch._C._set_grad_enabled(grad_after)
        return outputs
    return run


def _position(signature: Signature, name: Input | Result) -> int:
    """Where something is in the list of inputs and results."""
    return name.index if isinstance(name, Input) else signature.inputs + name.index


def _maker(view: View) -> Callable[[Tensor], Tensor]:
    """A function that makes a view of its base."""
    sizes, strides, offset = view.sizes, view.strides, view.offset

    def make(base: Tensor) -> Tensor:
        if offset == 0 and base.shape == sizes and base.stride() == strides:
            return base.view_as(base)
        return base.as_strided(sizes, strides, base.storage_offset() + offset)

    if view.detached:
        return (lambda base: make(base).detach()) if view.detached == "view" else lambda base: make(base.detach())
    return make if view.grad else torch.no_grad()(make)


# --- the autograd node

def _differentiable(gm: fx.GraphModule, signature: Signature, forward: Forward, backward: Backward, loose: bool) -> Forward:
    """A callable from inputs to visible results, of which the differentiable ones come from one autograd node."""
    differentiable, visible = signature.differentiable, signature.visible
    save = picker([_position(signature, name) for name in signature.saved])
    saves = len(signature.saved)
    with_gradient = picker([index for index, _ in signature.gradients])
    gradients = _gradients(signature)
    replay = Replay(gm, signature)
    portions = signature.portions
    separable = portions is not None and portions.separable

    def run_forward(ctx: Any, frame: list[Any], *_: Tensor) -> tuple[Tensor, ...]:
        inputs = frame[0]
        tensors, versions, random = replay.remember(inputs)
        results = forward(*inputs)
        if _saved_tensor_hooks(True) is not None:       # the hooks shall have all that the node holds on to
            ctx.save_for_backward(*save(inputs + results), *tensors)
            ctx.memory = None, None, random
        elif separable:
            ctx.kept = Kept(signature, save(inputs + results))
            ctx.memory = tensors, versions, random
        else:
            ctx.save_for_backward(*save(inputs + results))
            ctx.memory = tensors, versions, random
        ctx.set_materialize_grads(False)
        frame[0] = results[differentiable:visible]
        return results[:differentiable]

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        kept: Kept | None = getattr(ctx, "kept", None) if separable else None
        given = range(differentiable) if portions is None else [place for place, grad in enumerate(grads) if grad is not None]
        again = torch.is_grad_enabled() or _transforms_active() or any(_is_batched(g) for g in grads if g is not None)
        arguments = list(ctx.saved_tensors) if kept is None else kept.values_for(given, again)
        if again:
            return None, *replay.gradients(ctx.memory, arguments, grads)
        if portions is not None and len(given) < differentiable and (kept is not None or not portions.harmless(given)):
            found = compiled(arguments[:saves], grads, given)
            if any(math.isnan(g.sum().item()) for g in found if g is not None):      # perhaps of zeros that there are none of
                found = replay.gradients(ctx.memory, arguments if kept is None else kept.values_for(given, True), grads)
            if kept is not None and not _keeps_graph() and kept.spend(given):
                ctx.memory = None
            return None, *found
        if not _keeps_graph():
            if kept is None or kept.spend(given):
                ctx.memory = None
            _release(ctx)
        del arguments[saves:]
        arguments += [as_expected(grads[tangent.index], tangent, loose) for tangent in signature.tangents]  # and held nowhere else
        return gradients(grads + backward(arguments, True))

    def compiled(arguments: list[Tensor], grads: tuple[Tensor | None, ...], given: Sequence[int]) -> tuple[Tensor | None, ...]:
        """The gradients by the compiled callable, none for what these results are not computed from."""
        assert portions is not None
        arguments += [as_expected(grads[tangent.index], tangent, loose) for tangent in signature.tangents]
        found = gradients(grads + backward(arguments, False))[1:]
        return tuple(gradient if reached else None for gradient, reached in zip(found, portions.reach(given), strict=True))

    methods = {"forward": staticmethod(run_forward), "backward": staticmethod(run_backward)}
    node: Any = type("CompiledGraph", (torch.autograd.Function,), methods)
    apply = super(torch.autograd.Function, node).apply      # without what Function.apply does for transforms, which guards rule out

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        frame: list[Any] = [inputs]
        results = apply(frame, *with_gradient(inputs))
        return (*results, *frame[0]) if frame[0] else results
    return call


class Kept:
    """What a call keeps for its backward passes, where there may be several of them, since some results have nothing to free in
    common. As autograd does, it tells whether a pass finds its tensors as they were, and whether it is the first to need them."""

    def __init__(self, signature: Signature, values: Sequence[Tensor]) -> None:
        assert signature.portions is not None
        self.portions = signature.portions
        # aliases of results: the results themselves refer to the node
        self.values = [value if isinstance(name, Input) else value.detach()
                       for name, value in zip(signature.saved, values, strict=True)]
        self.versions = [None if value.is_inference() else value._version for value in self.values]
        self.spent: set[int] = set()

    def values_for(self, given: Sequence[int], whole: bool) -> list[Tensor]:
        """The saved values, for a pass from the results in `given`. whole: which takes all of them.

        Raises RuntimeError where there can be no such pass any more.
        """
        left = self.portions.left(self.spent)
        if not all(place in left for place in given):
            raise RuntimeError(TWICE)
        for i, (value, version) in enumerate(zip(self.values, self.versions, strict=True)):
            if version is not None and value._version != version and (whole or self.portions.uses(i, given)):
                raise RuntimeError(MODIFIED)
        return list(self.values)

    def spend(self, given: Sequence[int]) -> bool:
        """Notes that a pass is made. Lets go of all, and returns True, where no other can follow."""
        self.spent.update(given)
        if self.portions.left(self.spent):
            return False
        self.values.clear()
        self.versions.clear()
        return True


# As autograd says it.
TWICE = ("Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
         "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
         "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors after "
         "calling backward.")
MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation"


def _gradients(signature: Signature) -> Picker:
    """Picks what the autograd node returns, from the tangents and then the results of the backward callable: nothing for its
    first argument, which is no tensor, and the gradients of the others."""
    places = [place.index + (0 if isinstance(place, Tangent) else signature.differentiable) for _, place in signature.gradients]
    if places == list(range(signature.differentiable, signature.differentiable + len(places))):
        return lambda values: (None, *values[signature.differentiable:])
    pick = picker(places)
    return lambda values: (None, *pick(values))


def as_expected(grad: Tensor | None, tangent: Tangent, loose: bool) -> Tensor:
    """A gradient as the backward callable takes it, zeros where there is none; unless `loose`, with the strides that it was
    compiled for. The gradient of a sum has memory for one element."""
    if grad is None:
        grad = torch.zeros((), dtype=tangent.dtype, device=tangent.device).expand(tangent.sizes)
    elif grad.layout is not torch.strided:
        grad = grad.to_dense()
    grad = grad.resolve_neg()
    if loose or grad.stride() == tangent.strides:
        return grad
    return torch.empty_strided(tangent.sizes, tangent.strides, dtype=tangent.dtype, device=tangent.device).copy_(grad)


# --- gradients of gradients

# What one call leaves for a replay: inputs besides the saved ones, their versions, and the states of the generators. Where hooks
# for saved tensors were in force, the inputs are among the saved ones and nothing watches their versions.
Memory = tuple[tuple[Tensor, ...] | None, list[int] | None, list[Tensor]]


class Replay:
    """The graph itself, run by eager mode during the backward pass, where the compiled backward callable does not do: when its
    gradients shall have gradients themselves, and under transforms such as vmap."""

    def __init__(self, gm: fx.GraphModule, signature: Signature) -> None:
        self.gm, self.signature = gm, signature
        self.saved = {name.index: place for place, name in enumerate(signature.saved) if isinstance(name, Input)}
        self.others = [index for index in range(signature.inputs) if index not in self.saved]
        self.pick = picker(self.others)
        self.watched = picker([place for place, index in enumerate(self.others) if index not in signature.written])
        self.cuda = sorted({tangent.device.index or 0 for tangent in signature.tangents if tangent.device.type == "cuda"})
        self.results = {}
        for place, name in enumerate(signature.outputs):
            if isinstance(name, Result):
                self.results[name.index] = operator.itemgetter(place)
        for place, name in enumerate(signature.outputs):
            if isinstance(name, View) and isinstance(name.base, Result):
                self.results.setdefault(name.base.index, lambda outputs, place=place: outputs[place]._base)

    def remember(self, inputs: tuple[Tensor, ...]) -> Memory:
        """What a replay of a call that is about to run will need."""
        tensors = self.pick(inputs)
        if self.signature.snapshots:
            tensors = tuple(inputs[i].clone() if i in self.signature.snapshots else inputs[i] for i in self.others)
        try:
            versions = [tensor._version for tensor in self.watched(tensors)]
        except RuntimeError:        # a tensor of inference mode has no version
            versions = None
        return tensors, versions, self._random_states() if self.signature.random else []

    def gradients(self, memory: Memory, saved: Sequence[Tensor], grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs that have one, given those of the differentiable results.

        Raises RuntimeError when an input has been changed since.
        """
        tensors, versions, random = memory
        others = saved[len(self.signature.saved):] if tensors is None else tensors
        if versions is not None and versions != [tensor._version for tensor in self.watched(others)]:
            raise RuntimeError("one of the inputs of a compiled graph, needed to compute gradients of gradients, has been modified "
                               "by an inplace operation since")
        create_graph = torch.is_grad_enabled()
        by_index = dict(zip(self.others, others, strict=True)) | {index: saved[place] for index, place in self.saved.items()}
        with torch.enable_grad():
            # gradients shall be those through the graph alone, also where one input was computed from another
            inputs = [t.clone() if i in self.signature.written else t.view_as(t) for i, t in sorted(by_index.items())]
            outputs = self._run(random, inputs)
            chosen = [(make(outputs), grads[index]) for index, make in self.results.items()
                      if index < self.signature.differentiable and grads[index] is not None]
        return torch.autograd.grad([output for output, _ in chosen], [inputs[index] for index, _ in self.signature.gradients],
                                   [grad for _, grad in chosen], create_graph=create_graph, allow_unused=True)

    def _run(self, random: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The graph's outputs, under the modes and with the random numbers of the call."""
        inputs = [tensor.item() if i in self.signature.numbers else tensor for i, tensor in enumerate(inputs)]
        with self.signature.modes.active():
            if not random:
                return self.gm.forward(*inputs)
            before = self._random_states()
            self._set_random_states(random)
            try:
                return self.gm.forward(*inputs)
            finally:
                self._set_random_states(before)

    def _random_states(self) -> list[Tensor]:
        return [_C.get_random_state(), *(torch.cuda.get_rng_state(index) for index in self.cuda)]

    def _set_random_states(self, states: Sequence[Tensor]) -> None:
        _C.set_random_state(states[0])
        for index, state in zip(self.cuda, states[1:], strict=True):
            torch.cuda.set_rng_state(state, index)

