"""The saved tensors of one call of a compiled graph, with the checks that autograd makes before a backward pass uses them."""
from __future__ import annotations

import operator
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from capture.backends.native.extents import Values, values_of
from capture.backends.native.own_hooks import hook_alone_before
from capture.backends.native.signature import Check, Input, Result, Signature, Tangent

# Takes a list, which it may empty so that tensors die early. Returns None for what it has added to the `.grad` of a leaf itself,
# which it does unless it is told that its results are not certain yet.
Backward = Callable[[list[Tensor], bool], tuple[Tensor | None, ...]]
Picker = Callable[[Sequence[Any]], tuple[Any, ...]]

OWN_NODE = "CompiledGraph"      # the class of our nodes of autograd
OWN_NAMES = f"{OWN_NODE}Backward", "OneResult"      # what these are called, and those of `own_nodes.cpp`

release = torch._C._FunctionBase.maybe_clear_saved_tensors
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_is_batched = torch._C._functorch.is_legacy_batchedtensor        # by `is_grads_batched=True`
_transforms_active = torch._C._are_functorch_transforms_active


def is_again(grads: Sequence[Tensor | None]) -> bool:
    """Whether the gradients need gradients (`create_graph`), belong to a transform of torch.func, or are sparse. Compiled code
    supports none of these."""
    return torch.is_grad_enabled() or _transforms_active() or any(
        _is_batched(grad) or grad.layout is not torch.strided for grad in grads if grad is not None)


def picker(indices: Sequence[int]) -> Picker:
    """A function that takes the items at `indices` out of a sequence, as a tuple."""
    if not indices:
        return lambda items: ()
    if len(indices) == 1:
        index = indices[0]
        return lambda items: (items[index],)
    return operator.itemgetter(*indices)


def position(signature: Signature, name: Input | Result) -> int:
    """Where something is in the list of inputs and results."""
    return name.index if isinstance(name, Input) else signature.inputs + len(signature.casts) + name.index


class SavedTensors:
    """What a call keeps for its backward passes. Like autograd, it checks that a pass finds its tensors unchanged, and that it is
    the first pass to need them.

    values: what is saved. watched, versions: what eager mode has saved of inputs and results, and how often it was written to;
    rest: those that a failing pass looks at first. fixed, addresses: inputs of which eager mode saves views beside themselves, and
    where they lie: a pass fails if they lie elsewhere by then. owned: the program's own tensors with a history that eager mode has
    saved: a pass fails if `detach_` has taken that. spent: the results from which there were passes. freed: the nodes that passes
    had freed before they failed. grads: the gradients of the results, on their way into a pass, by thread. hooks: gives those that
    are called before a pass. edges: of the results, as `_C.edges_of` has them.
    """

    __slots__ = ("signature", "values", "watched", "versions", "fixed", "addresses", "owned", "spent", "freed", "rest", "grads",
                 "hooks", "edges")

    edges: Any

    def __init__(self, signature: Signature, values: list[Tensor], watched: list[Tensor], fixed: tuple[Tensor, ...],
                 owned: dict[Input | Result, Tensor]) -> None:
        self.signature, self.values, self.watched, self.fixed = signature, values, watched, fixed
        self.versions, self.addresses = list(map(version, watched)), list(map(Tensor.data_ptr, fixed))
        self.owned = owned
        self.spent: set[int] = set()
        self.freed: set[int] = set()
        self.rest: dict[Input | Result, tuple[Tensor, int]] = {}
        self.grads: dict[int, tuple[Tensor | None, ...]] = {}
        self.hooks: Callable[[], Any] = dict

    def take_grads_of(self, node: Any) -> None:
        """Has the gradients of the results taken away from autograd, which would hold them until the node's pass has ended."""
        self.hooks = hook_alone_before(node, self._take)

    def _take(self, grads: tuple[Tensor | None, ...]) -> tuple[None, ...] | None:
        if len(self.hooks()) > 1:       # the program has hooks of its own there, which shall see them
            return None
        self.grads[threading.get_ident()] = grads
        return (None,) * len(grads)

    def values_for(self, given: Sequence[int]) -> list[Tensor]:
        """The saved values, for a pass from the results in `given`. Raises RuntimeError where there can be no such pass any
        more."""
        if self.spent or self.freed or list(map(version, self.watched)) != self.versions or any(
                tensor.is_leaf for tensor in self.owned.values()):
            self._check([check for check in self.signature.checks if not set(check.results).isdisjoint(given)])
            partial_passes = self.signature.partial_passes
            if self.spent and (partial_passes is None or not set(partial_passes.left(self.spent)).issuperset(given)):
                raise RuntimeError(TWICE)
        if self.fixed and list(map(Tensor.data_ptr, self.fixed)) != self.addresses:
            raise RuntimeError(EXCHANGED)
        return list(self.values)

    def end(self) -> None:
        """Notes a pass that ends at the results: it calls what makes these. Raises RuntimeError as above."""
        looks = [check for check in self.signature.checks if check.makes_result]
        self._check(looks)
        if not keeps_graph():
            self.freed.update(check.node for check in looks)

    def _check(self, looks: Sequence[Check]) -> None:
        """Checks the saved tensors in autograd's order. A pass that fails has freed those before."""
        watched = self.rest or dict(zip(watched_by(self.signature), zip(self.watched, self.versions, strict=True), strict=False))
        for place, check in enumerate(looks):
            if (error := self._error(check, watched)) is not None:
                if not keeps_graph():
                    self.freed.update(past.node for past in looks[:place] if past.node != check.node)
                raise RuntimeError(error)

    def _error(self, check: Check, watched: dict[Input | Result, tuple[Tensor, int]]) -> str | None:
        """What autograd says where it looks, if anything is wrong there."""
        if check.node in self.freed or not set(check.results).isdisjoint(self.spent):
            return TWICE
        if check.place is None:
            return None
        if check.has_history and check.place in self.owned and self.owned[check.place].is_leaf:
            return _error_of_detached()
        if version(watched[check.place][0]) != watched[check.place][1]:
            return _modified(check, *watched[check.place], self.owned.get(check.place) if check.has_history else None)
        return None

    def spend(self, given: Sequence[int]) -> bool:
        """Notes that a pass is made. Frees everything and returns True if no other pass can follow."""
        self.spent.update(given)
        partial_passes = self.signature.partial_passes
        if partial_passes is not None and partial_passes.left(self.spent):
            return False
        if len(self.spent) < self.signature.differentiable:
            later = {check.place for check in self.signature.checks if self.spent.isdisjoint(check.results)}
            self.rest = {name: (tensor, version) for name, tensor, version in zip(
                watched_by(self.signature), self.watched, self.versions, strict=True) if name in later}
        self.values.clear()
        self.watched.clear()
        self.versions.clear()
        self.fixed = ()
        self.owned = {name: tensor for name, tensor in self.owned.items() if name in self.rest}
        return True


def saver(signature: Signature) -> Callable[[tuple[Tensor, ...], Mapping[Result, Tensor]], SavedTensors]:
    """A function that makes a call's `SavedTensors` of its inputs and results, and of those results of which others are computed as
    the program has them."""
    itself, in_views = {check.place for check in signature.checks if check.is_input}, saved_in_views(signature)

    def by_another(name: Input | Result) -> bool:
        """Whether a tensor is kept by another object: visible results, too, which will refer to the node themselves."""
        return name.index < signature.visible if isinstance(name, Result) else name in in_views
    watched = watched_by(signature)
    places = [*((position(signature, name), by_another(name)) for name in signature.saved),
              *((position(signature, name), isinstance(name, Result) and by_another(name)) for name in watched)]
    fixed = picker([position(signature, name) for name in signature.saved if name in itself and any(
        check.place == name and not check.is_input for check in signature.checks)])
    saves, owned = len(signature.saved), with_history(signature)

    def keep(tensors: tuple[Tensor, ...], inner: Mapping[Result, Tensor]) -> SavedTensors:
        kept = [tensors[place].detach() if visible else tensors[place] for place, visible in places]     # numbers among them
        here = ((name, tensors[name.index] if isinstance(name, Input) else inner.get(name)) for name in owned)
        itself = {name: tensor for name, tensor in here if tensor is not None and not tensor.is_leaf}
        return SavedTensors(signature, kept[:saves], kept[saves:], fixed(tensors), itself)
    return keep


def saved_in_views(signature: Signature) -> set[Input | Result | None]:
    """The inputs of which eager mode saves nothing but views. These stay where they are if the program assigns to the `.data` of
    the input, and so another object is kept than the input."""
    return {check.place for check in signature.checks} - {check.place for check in signature.checks if check.is_input}


def with_history(signature: Signature) -> tuple[Input | Result, ...]:
    """The inputs and results that a pass must find with the history they had."""
    return tuple(dict.fromkeys(check.place for check in signature.checks if check.place is not None and check.has_history))


def watched_by(signature: Signature) -> tuple[Input | Result, ...]:
    """The tensors that the checks look at."""
    return tuple(dict.fromkeys(check.place for check in signature.checks if check.place is not None))


def version(tensor: Tensor) -> int:
    """How often a tensor was written to; tensors of inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


EXCHANGED = ("the `.data` of an input or result of a compiled function was assigned to before a backward pass that needs it; "
             "assign to a copy (`tensor.detach().clone()`), or exclude the function by capture.disable")

# As autograd says it.
TWICE = ("Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
         "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
         "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors after "
         "calling backward.")

def _modified(check: Check, tensor: Tensor, version: int, owned: Tensor | None) -> str:
    """What autograd says of a saved tensor that was written to. owned: the program's own, if its history is meant."""
    if not check.text.startswith("["):
        return check.text
    text, origin, number = check.text, None, None
    if check.is_input:
        text, origin, number = f"[{tensor.type()} {list(tensor.shape)}]", tensor.grad_fn, tensor.output_nr      # as it is by now
    elif owned is not None and owned.grad_fn.name() not in OWN_NAMES:       # a write has given it another
        text, _, rest = check.text.partition(", which is output ")
        origin, number = owned.grad_fn, rest.partition(" ")[0]
    sample = sample_of_error()
    if origin is not None:
        text += f", which is output {number} of {as_told(origin.name(), sample)},"
    return (f"one of the variables needed for gradient computation has been modified by an inplace operation: {text} is at version "
            f"{tensor._version}; expected version {version} instead. Hint: {sample.partition('Hint: ')[2]}")


def as_told(node: str, message: str) -> str:
    """The name of a node as in such a message of autograd: some versions of torch leave out its ending, but for a number from 1."""
    return node if "Backward" in message else re.sub(r"Backward0?(\d*)$", r"\1", node)


def sample_of_error() -> str:
    """The error in the words of this version of torch."""
    with torch.enable_grad():
        changed = torch.ones((), requires_grad=True).exp()
    increment_version(changed)
    return _error_of(lambda: changed.grad_fn._saved_result)


def _error_of_detached() -> str:
    """What autograd says of a saved tensor whose history `detach_` has taken."""
    with torch.enable_grad():
        saved = torch.ones((), requires_grad=True).exp()
        result = saved.sin()
    saved.detach_()
    return _error_of(result.backward)


def _error_of(look: Callable[[], Any]) -> str:
    try:
        look()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("autograd goes on with a tensor that it cannot use")


def as_expected(grad: Tensor | None, tangent: Tangent, loose: bool, sizes: Values) -> Tensor:
    """A gradient as the backward callable takes it, zeros where there is none; unless `loose`, in memory, with the strides that it
    was compiled for. The gradient of a sum has memory for one element. sizes: in this call."""
    if grad is None:
        grad = torch.zeros((), dtype=tangent.dtype, device=tangent.device).expand(values_of(tangent.sizes, sizes))
    if loose or grad.stride() == tangent.strides and not (grad.is_conj() or grad.is_neg() or grad._is_zerotensor()):
        return grad
    shape, strides = values_of(tangent.sizes, sizes), values_of(tangent.strides, sizes)
    return torch.empty_strided(shape, strides, dtype=tangent.dtype, device=tangent.device).copy_(grad)
