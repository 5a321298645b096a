"""The callable of a compiled graph: one autograd node around its forward and backward callables.

What does not change from call to call is decided here, once; a call only picks from lists.
"""
from __future__ import annotations

import math
import operator
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import increment_version

from capture import _C
from capture.backends.native.numbers import DTYPES, fits
from capture.backends.native.partial import Partial
from capture.backends.native.signature import Check, Input, Result, Signature, Tangent

Forward = Callable[..., tuple[Tensor, ...]]                     # takes tensors
# Takes a list, which it may empty so that tensors die early. Returns None for what it has added to the `.grad` of a leaf itself,
# which it does unless it is told that its results are not certain yet.
Backward = Callable[[list[Tensor], bool], tuple[Tensor | None, ...]]
Picker = Callable[[Sequence[Any]], tuple[Any, ...]]

_release = torch._C._FunctionBase.maybe_clear_saved_tensors
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_is_batched = torch._C._functorch.is_legacy_batchedtensor        # by `is_grads_batched=True`
_transforms_active = torch._C._are_functorch_transforms_active


def make_callable(gm: fx.GraphModule, signature: Signature, forward: Forward, backward: Backward | None,
                  loose: bool = False, tail: fx.GraphModule | None = None) -> Forward:
    """A callable that stands for `gm.forward`: it takes the same positional arguments and returns the same tuple.

    forward, backward: take and return what `signature` says. They run below autograd and autocast: what they return are tensors
    of their own, and no views in autograd's sense, and the versions of what they write to stay as they are. loose: the backward
    callable takes tangents of any strides. tail: makes the graph's outputs of `signature.outputs`.
    """
    if signature.advanced:
        forward = _counting(signature, forward)
    call = forward if backward is None else _differentiable(gm, signature, forward, backward, loose)
    if tail is not None or signature.outputs != tuple(map(Result, range(signature.visible))):
        call = _with_outputs(signature, call, tail)
    if signature.grad_after is not None:
        call = _with_grad_mode(call, signature.grad_after)
    if signature.casts:
        call = _with_casts(gm, signature, call)
    if signature.blocks:
        call = _outside_of_blocks(gm, call)
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


# --- casts that autocast keeps

def _with_casts(gm: fx.GraphModule, signature: Signature, call: Forward) -> Forward:
    """`call`, with the casts that are torch's in this autocast block. Where one is of another dtype or shape, since the weight was
    that when it was cast, the graph runs as it is."""
    places = signature.casts

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        casts = _C.cached_casts(inputs, places)
        return gm.forward(*inputs) if casts is None else call(*inputs, *casts)
    return run


def _outside_of_blocks(gm: fx.GraphModule, call: Forward) -> Forward:
    """`call`, but the graph as it is inside of an autocast block (one that is off, say), which keeps what is cast in inner ones."""
    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        nested = torch.autocast_increment_nesting() > 1
        torch.autocast_decrement_nesting()
        return gm.forward(*inputs) if nested else call(*inputs)
    return run


# --- what remains to be done when the results are there

def _with_outputs(signature: Signature, call: Forward, tail: fx.GraphModule | None) -> Forward:
    """`call`, with the outputs picked among its results and inputs, or made of these by the tail."""
    pick = picker([_position(signature, output) for output in signature.outputs])
    if tail is None:
        return lambda *inputs: pick((*inputs, *call(*inputs)))
    make = tail.forward
    return lambda *inputs: make(*pick((*inputs, *call(*inputs))))


def _counting(signature: Signature, forward: Forward) -> Forward:
    """`forward`, and the versions of what it has written to count that."""
    pick, inference = picker([_position(signature, name) for name in signature.advanced]), signature.modes.inference

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        results = forward(*inputs)
        written = pick((*inputs, *results))
        # tensors of inference mode have no version, and only there can they be written to
        increment_version([tensor for tensor in written if not tensor.is_inference()] if inference else written)
        return results
    return run


def _with_grad_mode(call: Forward, enabled: bool) -> Forward:
    """`call`, which leaves this grad mode behind."""
    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = call(*inputs)
        torch._C._set_grad_enabled(enabled)
        return outputs
    return run


def _position(signature: Signature, name: Input | Result) -> int:
    """Where something is in the list of inputs and results."""
    return name.index if isinstance(name, Input) else signature.inputs + len(signature.casts) + name.index


# --- the autograd node

def _differentiable(gm: fx.GraphModule, signature: Signature, forward: Forward, backward: Backward, loose: bool) -> Forward:
    """A callable from inputs to visible results, of which the differentiable ones come from one autograd node."""
    differentiable, visible = signature.differentiable, signature.visible
    save = picker([_position(signature, name) for name in signature.saved])
    saves = len(signature.saved)
    keep = keeper(signature)
    with_gradient = picker([index for index, _ in signature.gradients])
    gradients = _gradients(signature)
    replay = Replay(gm, signature)
    portions = signature.portions
    partial = Partial(portions.graph, saves) if portions is not None and portions.graph is not None else None
    none = (None,) * differentiable
    handed_on = any(isinstance(place, Tangent) for _, place in signature.gradients)

    def run_forward(ctx: Any, frame: list[Any], *_: Tensor) -> tuple[Tensor, ...]:
        inputs = frame[0]
        tensors, versions, random = replay.remember(inputs)
        results = forward(*inputs)
        if _saved_tensor_hooks(True) is not None:       # the hooks shall have all that the node holds on to
            ctx.save_for_backward(*save(inputs + results), *tensors)
            ctx.memory = None, None, random
        else:
            ctx.kept = frame[1] = keep(inputs + results)
            ctx.memory = tensors, versions, random
        ctx.set_materialize_grads(False)
        frame[0] = results[differentiable:visible]
        return results[:differentiable]

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        kept: Kept | None = getattr(ctx, "kept", None)
        if kept is not None:
            grads = kept.grads.pop(threading.get_ident(), grads)
        given = [place for place, grad in enumerate(grads) if grad is not None] if differentiable > 1 else (0,)
        again = torch.is_grad_enabled() or _transforms_active() or any(_is_batched(g) for g in grads if g is not None)
        arguments = list(ctx.saved_tensors) if kept is None else kept.values_for(given)
        if again:
            found = replay.gradients(ctx.memory, arguments, grads)
            if kept is not None or len(given) == differentiable:
                let_go(ctx, given)
            return None, *found
        if len(given) < differentiable and portions is not None and (portions.separable or not portions.harmless(given)):
            found = compiled(arguments[:saves], grads, given)
            if any(math.isnan(g.sum().item()) for g in found if g is not None):      # perhaps of zeros that there are none of
                found = exact(arguments[:saves], grads) if partial else replay.gradients(ctx.memory, arguments, grads)
            if kept is not None:
                let_go(ctx, given)
            return None, *found
        let_go(ctx, given)
        del arguments[saves:]
        arguments += [as_expected(grads[tangent.index], tangent, loose) for tangent in signature.tangents]
        if not handed_on:
            grads = none            # so that all of these die early
        return gradients(grads + backward(arguments, True))

    def let_go(ctx: Any, given: Sequence[int]) -> None:
        """Frees what the node holds, as autograd does, if no other pass may follow."""
        kept: Kept | None = getattr(ctx, "kept", None)
        if not _keeps_graph() and (kept is None or kept.spend(given)):
            ctx.memory = None
            _release(ctx)

    def compiled(arguments: list[Tensor], grads: tuple[Tensor | None, ...], given: Sequence[int]) -> tuple[Tensor | None, ...]:
        """The gradients by the compiled callable, none for what these results are not computed from."""
        assert portions is not None
        arguments += [as_expected(grads[tangent.index], tangent, loose) for tangent in signature.tangents]
        found = gradients(grads + backward(arguments, False))[1:]
        return tuple(gradient if reached else None for gradient, reached in zip(found, portions.reach(given), strict=True))

    def exact(arguments: list[Tensor], grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """The same where there are no zeros for gradients that are not there."""
        assert partial is not None
        arguments += [as_expected(grads[tangent.index], tangent, loose) for tangent in signature.tangents]
        return gradients(grads + partial(arguments, [grads[tangent.index] is not None for tangent in signature.tangents]))[1:]

    methods = {"forward": staticmethod(run_forward), "backward": staticmethod(run_backward)}
    node: Any = type("CompiledGraph", (torch.autograd.Function,), methods)
    apply = super(torch.autograd.Function, node).apply      # without what Function.apply does for transforms, which guards rule out

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        frame: list[Any] = [inputs, None]
        results = apply(frame, *with_gradient(inputs))
        if frame[1] is not None and (node := results[0].grad_fn) is not None:
            frame[1].take_grads_of(node)
        if differentiable > 1:      # a pass from one of them calls no hooks of the others
            _C.give_own_nodes(results)
        return (*results, *frame[0]) if frame[0] else results
    return call


class Kept:
    """What a call keeps for its backward passes. As autograd does, it tells whether a pass finds its tensors as they were, and
    whether it is the first to need them.

    values: what is saved. watched, versions: what eager mode has saved of inputs and results, and how often it was written to;
    rest: what of these a pass that fails in the end looks at first. spent: the results from which there were passes. freed: the
    nodes that passes had come past before they failed. grads: the gradients of the results, on their way into a pass, by thread.
    hooks: gives those that are called before one.
    """

    __slots__ = ("signature", "values", "watched", "versions", "spent", "freed", "rest", "grads", "hooks")

    def __init__(self, signature: Signature, values: list[Tensor], watched: list[Tensor]) -> None:
        self.signature, self.values, self.watched = signature, values, watched
        self.versions = list(map(_version, watched))
        self.spent: set[int] = set()
        self.freed: set[int] = set()
        self.rest: dict[Input | Result, tuple[Tensor, int]] = {}
        self.grads: dict[int, tuple[Tensor | None, ...]] = {}
        self.hooks: Callable[[], Any] = dict

    def take_grads_of(self, node: Any) -> None:
        """Has the gradients of the results taken away from autograd, which would hold them until the node's pass has ended."""
        self.hooks = node.register_prehook(self._take).hooks_dict_ref

    def _take(self, grads: tuple[Tensor | None, ...]) -> tuple[None, ...] | None:
        if len(self.hooks()) > 1:       # the program has hooks of its own there, which shall see them
            return None
        self.grads[threading.get_ident()] = grads
        return (None,) * len(grads)

    def values_for(self, given: Sequence[int]) -> list[Tensor]:
        """The saved values, for a pass from the results in `given`. Raises RuntimeError where there can be no such pass any
        more."""
        if self.spent or self.freed or list(map(_version, self.watched)) != self.versions:
            self._check(given)
        return list(self.values)

    def _check(self, given: Sequence[int]) -> None:
        """Looks at what is saved as autograd does, one after the other. A pass that fails has freed what it has come past."""
        watched = self.rest or dict(zip(watched_by(self.signature), zip(self.watched, self.versions, strict=True), strict=False))
        looks = [check for check in self.signature.checks if not set(check.results).isdisjoint(given)]
        for place, check in enumerate(looks):
            if (error := self._error(check, watched)) is not None:
                if not _keeps_graph():
                    self.freed.update(past.node for past in looks[:place] if past.node != check.node)
                raise RuntimeError(error)
        portions = self.signature.portions
        if self.spent and (portions is None or not set(portions.left(self.spent)).issuperset(given)):
            raise RuntimeError(TWICE)

    def _error(self, check: Check, watched: dict[Input | Result, tuple[Tensor, int]]) -> str | None:
        """What autograd says where it looks, if anything is wrong there."""
        if check.node in self.freed or not set(check.results).isdisjoint(self.spent):
            return TWICE
        if check.place is not None and _version(watched[check.place][0]) != watched[check.place][1]:
            return _modified(check, *watched[check.place])
        return None

    def spend(self, given: Sequence[int]) -> bool:
        """Notes that a pass is made. Lets go of all, and returns True, where no other can follow."""
        self.spent.update(given)
        portions = self.signature.portions
        if portions is not None and portions.left(self.spent):
            return False
        if len(self.spent) < self.signature.differentiable:
            later = {check.place for check in self.signature.checks if self.spent.isdisjoint(check.results)}
            self.rest = {name: (tensor, version) for name, tensor, version in zip(
                watched_by(self.signature), self.watched, self.versions, strict=True) if name in later}
        self.values.clear()
        self.watched.clear()
        self.versions.clear()
        return True


def keeper(signature: Signature) -> Callable[[tuple[Tensor, ...]], Kept]:
    """A function that makes a call's `Kept` of its inputs and results."""
    # visible results by another object: they themselves will refer to the node
    places = [(_position(signature, name), isinstance(name, Result) and name.index < signature.visible)
              for name in (*signature.saved, *watched_by(signature))]
    saves = len(signature.saved)

    def keep(tensors: tuple[Tensor, ...]) -> Kept:
        kept = [tensors[place].detach() if visible else tensors[place] for place, visible in places]
        return Kept(signature, kept[:saves], kept[saves:])
    return keep


def watched_by(signature: Signature) -> tuple[Input | Result, ...]:
    """What checks look at."""
    return tuple(dict.fromkeys(check.place for check in signature.checks if check.place is not None))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


# As autograd says it.
TWICE = ("Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
         "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
         "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors after "
         "calling backward.")

def _modified(check: Check, tensor: Tensor, version: int) -> str:
    """What autograd says of a saved tensor that was written to."""
    if not check.text.startswith("["):
        return check.text
    sample = _sample_of_error()
    text, node = check.text, None
    if check.is_input:
        text, node = f"[{tensor.type()} {list(tensor.shape)}]", tensor.grad_fn       # as it is by now
    if node is not None:
        name = node.name() if "Backward" in sample else re.sub(r"Backward\d*$", "", node.name())
        text += f", which is output {tensor.output_nr} of {name},"
    return (f"one of the variables needed for gradient computation has been modified by an inplace operation: {text} is at version "
            f"{tensor._version}; expected version {version} instead. Hint: {sample.partition('Hint: ')[2]}")


def _sample_of_error() -> str:
    """The error in the words of this version of torch."""
    with torch.enable_grad():
        changed = torch.ones((), requires_grad=True).exp()
    increment_version(changed)
    try:
        _ = changed.grad_fn._saved_result
    except RuntimeError as error:
        return str(error)
    raise AssertionError("a write was not noticed")


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
        self.saved = {name.index: place for place, name in enumerate(signature.saved)
                      if isinstance(name, Input) and name.index < signature.inputs and name.index not in signature.written}
        self.others = [index for index in range(signature.inputs) if index not in self.saved]
        self.pick = picker(self.others)
        self.watched = picker([place for place, index in enumerate(self.others) if index not in signature.written])
        self.cuda = sorted({tangent.device.index or 0 for tangent in signature.tangents if tangent.device.type == "cuda"})

    def remember(self, inputs: tuple[Tensor, ...]) -> Memory:
        """What a replay of a call that is about to run will need."""
        tensors = self.pick(inputs)
        if self.signature.snapshots:
            with torch.enable_grad():       # gradients of gradients flow through the copies
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
            chosen = [(outputs[place]._base if base else outputs[place], grad)
                      for (place, base), grad in zip(self.signature.roots, grads, strict=True) if grad is not None]
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

