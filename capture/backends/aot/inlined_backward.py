"""Backward passes inside of a graph, as operations that can be traced: gradients become results.

A pass becomes `torch.autograd.grad`, with respect to leaves of the graph's own, which share the memory of its inputs. What a pass
would assign to the `.grad` of an input is returned behind the results, and assigned when the graph has run. Results that autograd
would still know are returned without a history: a pass has freed it, so that another one can only raise.
"""
from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from capture.backends.aot.aten import storage_of
from capture.backends.aot.observed import Eager, below, keepers, saved_names
from capture.backends.aot.symbols import unguarded
from capture.backends.native.job import TensorSpec
from capture.backends.native.saved_tensors import TWICE
from capture.backends.native.signature import InlinedBackward, Unsupported
from capture.operators import backward_pass

FREED = len("Trying to backward through the graph a second time")      # how an error begins that only says so


def written_out(gm: fx.GraphModule) -> tuple[fx.GraphModule, InlinedBackward | None]:
    """A graph without backward passes, which returns gradients behind the results of `gm`; and what `gm` does with them. Without
    passes in it, `gm` and None."""
    found = [node for node in gm.graph.nodes if node.target is backward_pass.backward]
    return _Rewriting(gm, found).result() if found else (gm, None)


class _Rewriting:
    def __init__(self, gm: fx.GraphModule, found: Sequence[fx.Node]) -> None:
        self.gm = gm
        self.graph = fx.Graph()
        self.places = {node: place for place, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
        self.given = dict.fromkeys(leaf for node in found for leaf in (*node.args[2], *node.args[3]))
        self.copies: dict[fx.Node, fx.Node] = {}
        self.grads: dict[fx.Node, fx.Node | None] = {}      # what the graph assigns to the `.grad` of inputs

    def result(self) -> tuple[fx.GraphModule, InlinedBackward]:
        for node in self.places:
            self.copies[node] = self.graph.node_copy(node)
        inputs = dict(self.copies)
        for leaf in self.given:
            if leaf not in self.places:
                raise Unsupported("a backward pass makes gradients of tensors of the graph's own")
            self.copies[leaf] = self.graph.call_function(own_leaf, (inputs[leaf],))
        for node in self.gm.graph.nodes:
            if node.op == "output":
                return self._finished(node, inputs)
            if node not in self.places:
                self._copy(node)
        raise AssertionError("a graph without output")

    def _copy(self, node: fx.Node) -> None:
        if node.target is setattr and node.args[1] == "grad" and node.args[0] in self.places:
            self.grads[node.args[0]] = node.args[2] and self.copies[node.args[2]]
            return
        self.copies[node] = copy = self.graph.node_copy(node, self.copies.__getitem__)
        if node.target is backward_pass.backward:
            if not node.kwargs.keys() <= {"retain_graph"}:
                raise Unsupported(f"a backward pass with {', '.join(node.kwargs)}", node.meta.get("place"))
            copy.target = gradients
            for index, leaf in enumerate(node.args[2]):
                self.grads[leaf] = self.graph.call_function(operator.getitem, (copy, index))

    def _finished(self, end: fx.Node, inputs: dict[fx.Node, fx.Node]) -> tuple[fx.GraphModule, InlinedBackward]:
        results = [inputs.get(node) or self.copies[node] for node in end.args[0]]
        made = {leaf: grad for leaf, grad in self.grads.items() if grad is not None}
        self.graph.output((*results, *made.values()))
        places = self.places
        return _LazyGraphModule(self.gm, self.graph), InlinedBackward(
            outputs=len(results), leaves=tuple(sorted(places[leaf] for leaf in self.given)),
            made=tuple(places[leaf] for leaf in made),
            dropped=tuple(places[leaf] for leaf, grad in self.grads.items() if grad is None))


def spent(eager: Eager) -> list[Tensor]:
    """The results that autograd would know. Raises Unsupported if a further pass from one of these may do anything but raise."""
    given = set(map(id, eager.inputs))
    known = [out for out in eager.outputs if out.requires_grad and id(out) not in given]
    if not all(map(_is_freed, known)):
        raise Unsupported("results have a history that the backward pass inside of the graph does not free")
    return apart(known)


def apart(known: list[Tensor]) -> list[Tensor]:
    """Results of which the history was freed. Raises Unsupported if they share their memory."""
    if len(set(map(storage_of, known))) < len(known):
        raise Unsupported("results of which a backward pass has freed the history share their memory")
    return known


def of_results(outputs: int, specs: Sequence[TensorSpec]) -> InlinedBackward:
    """Of a graph that runs no passes, but computes gradients as results, which frees the history of others."""
    leaves = tuple(place for place, spec in enumerate(specs) if spec.requires_grad)
    return InlinedBackward(outputs, leaves, made=(), dropped=())


def with_spent(found: InlinedBackward, known: Sequence[Tensor], eager: Eager, positions: Sequence[int]) -> InlinedBackward:
    """`found`, with the places of the results that autograd would know among those of the program, which are at `positions`."""
    ids = set(map(id, known))
    return replace(found, spent=tuple(place for place, position in enumerate(positions[:found.outputs])
                                      if id(eager.outputs[position]) in ids))


def _is_freed(tensor: Tensor) -> bool:
    """Whether a pass from a tensor can only raise, since what its nodes have saved was freed: of some, and of no node not."""
    return freed_below(tensor) == {True}


def freed_below(tensor: Tensor) -> set[bool]:
    """Whether what the nodes have saved that a pass from a tensor reaches was freed: of all that have saved any."""
    with unguarded(tensor):
        found = {_freed(keeper, name) for node in below(tensor) for keeper in keepers(node) for name in saved_names(type(keeper))}
    return {freed for freed in found if freed is not None}


def _freed(node: Any, name: str) -> bool | None:
    """Whether what a node of autograd had saved was freed; None if it had not saved this."""
    try:
        return None if getattr(node, name) is None else False
    except RuntimeError as error:           # it was freed, or written to since
        return str(error)[:FREED] == TWICE[:FREED]


# --- operations of the graph: they are traced

_noting: ContextVar[tuple[set[str], Callable[[], fx.Graph | None]] | None] = ContextVar("_noting", default=None)


@contextlib.contextmanager
def noting_seeds(recording: Callable[[], fx.Graph | None]) -> Iterator[set[str]]:
    """While a graph is traced: the names of the nodes with which backward passes begin. recording: gives the graph that operations
    are written to."""
    seeds: set[str] = set()
    token = _noting.set((seeds, recording))
    try:
        yield seeds
    finally:
        _noting.reset(token)


def _note_seed() -> None:
    seeds, recording = _noting.get() or (set(), lambda: None)
    graph = recording()
    if graph is not None:
        seeds.add(next(iter(reversed(graph.nodes))).name)


def own_leaf(tensor: Tensor) -> Tensor:
    """A leaf on the memory of an input."""
    return tensor.detach().requires_grad_()


def gradients(tensors: Any, grad_tensors: Any, new: Sequence[Tensor], old: Sequence[Tensor], grads: Sequence[Tensor],
              retain_graph: bool | None = None) -> tuple[Tensor, ...]:
    """What `backward_pass.backward` does to gradients."""
    if grad_tensors is None and isinstance(tensors, Tensor):
        grad_tensors = torch.ones(tensors.shape, dtype=tensors.dtype, device=tensors.device)
        _note_seed()
    found = torch.autograd.grad(tensors, [*new, *old], grad_tensors, retain_graph=retain_graph)
    with torch.no_grad():
        for grad, more in zip(grads, found[len(new):], strict=True):
            grad.add_(more)
        return tuple(_as_of(leaf, grad, any(grad is other for other in found[:place]))
                     for place, (leaf, grad) in enumerate(zip(new, found, strict=False)))


def _as_of(leaf: Tensor, grad: Tensor, taken: bool) -> Tensor:
    """A gradient as autograd gives it to a leaf: it lies in memory as the leaf does, if that has its elements side by side in some
    order, else contiguous, and is a view of nothing (ATen's accumulate_grad.h). taken: another leaf has this very tensor, so that
    this one gets a copy."""
    dense = torch.ops.aten.is_non_overlapping_and_dense(leaf)
    strides = leaf.stride() if dense else torch.empty(leaf.shape, device="meta").stride()
    steps = zip(leaf.shape, strides, grad.stride(), strict=True)
    if not taken and all(size == 1 or wanted == found for size, wanted, found in steps):
        return grad.detach()
    return torch.empty_strided(leaf.shape, strides, dtype=grad.dtype, device=grad.device).copy_(grad)
