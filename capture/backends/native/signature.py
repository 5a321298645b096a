"""How a compiled graph is called: what its forward and backward callables take and return, in terms of the graph's own
inputs and outputs. Plain data, that is compiled in one process and used in others.

The forward callable takes the graph's inputs and returns *results*, numbered: first those that are differentiable, then
those that are just returned, then those that are only saved for the backward callable. That one takes saved values and
*tangents*, the gradients of the differentiable results, and returns gradients.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from capture.backends.native.extents import Condition, Values
from capture.backends.native.index import Index, Size, Symbol
from capture.backends.native.job import Modes
from capture.backends.native.numbers import Domain
from capture.errors import BackendError


class Unsupported(BackendError):
    """The graph does something that a compiled graph could not reproduce exactly; the message says what. place: of the one node
    that does it, among those of the graph that was to be compiled."""

    def __init__(self, message: str, place: int | None = None) -> None:
        super().__init__(message)
        self.place = place


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the graph."""

    index: int


@dataclass(frozen=True, slots=True)
class Result:
    """A result of the forward callable; as a gradient: of the backward callable."""

    index: int


@dataclass(frozen=True, slots=True)
class Tangent:
    """The gradient of the differentiable result `index`, as the backward callable takes it. Strides in elements."""

    index: int
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Check:
    """One check of eager mode's backward pass: whether a tensor that a node of autograd has saved was freed or written to."""

    place: Input | Result | None    # whose version is compared; None for a tensor that the program cannot reach
    text: str                       # what autograd calls the tensor
    is_input: bool                  # it is the input itself, which may have a history
    has_history: bool               # it is the input or result itself, which has one: a pass fails once `detach_` has taken that
    results: tuple[int, ...]        # the passes that start at these make the check
    node: int                       # the number of the node
    makes_result: bool              # the node makes a result: a pass may end there


@dataclass(frozen=True, slots=True)
class PartialPasses:
    """How backward passes behave that start at some of the differentiable results. All of them reach the same inputs."""

    order: tuple[int, ...]          # of the results, as eager mode makes them; a pass comes to the last one first
    # For each result, those whose passes free something that its own pass needs; itself among them if it needs anything.
    freed: tuple[tuple[int, ...], ...]
    # For each result, wherever its gradient is added to those of other results, these others. Zeros must still be zeros there: None
    # if something else is done with the gradient first.
    joined: tuple[tuple[tuple[int, ...], ...] | None, ...]
    graph: bytes | None = None      # the backward graph for `PartialBackward`, if other processes can have it

    @property
    def separable(self) -> bool:
        """Whether a pass may leave something for another one to do."""
        return any(len(others) < len(self.freed) for others in self.freed)

    def left(self, spent: Collection[int]) -> list[int]:
        """The results that a pass may still start at, after others have started at those in `spent`."""
        return [place for place, others in enumerate(self.freed) if not any(other in spent for other in others)]

    def harmless(self, given: Collection[int]) -> bool:
        """Whether zeros for the gradients of the other results change nothing: they are only added."""
        return all(places is not None and all(any(other in given for other in others) for others in places)
                   for result, places in enumerate(self.joined) if result not in given)


@dataclass(frozen=True, slots=True)
class Part:
    """One of several nodes of autograd of a graph in which results are computed from other results."""

    results: tuple[int, ...]        # the differentiable ones that it makes
    joined: tuple[Tangent, ...]     # gradients that other parts pass to it, numbered behind the results
    # What it passes gradients to. (place, -1): an input; those behind the graph's own are tensors that results are computed from.
    # (part, number): a gradient that this part joins.
    edges: tuple[tuple[int, int], ...]
    gradients: tuple[Result | Tangent | None, ...]      # for each edge; None where it gets there through other parts
    saved: tuple[Input | Result, ...]                   # arguments of its backward callable …
    tangents: tuple[Tangent, ...]                       # … and those behind them
    checks: tuple[Check, ...]                           # as if it had one result


@dataclass(frozen=True, slots=True)
class InlinedBackward:
    """What a graph does that runs backward passes itself, or computes gradients as results, besides returning `outputs` results."""

    outputs: int
    leaves: tuple[int, ...]         # the inputs that passes lead to
    made: tuple[int, ...]           # what the graph returns behind its results are the gradients of these inputs
    dropped: tuple[int, ...]        # inputs that are left without a gradient
    spent: tuple[int, ...] = ()     # results from which another pass raises, since the graph has freed what it needs


@dataclass(frozen=True, slots=True)
class Signature:
    """The calling convention of one compiled graph."""

    inputs: int                             # how many
    outputs: tuple[Input | Result, ...]     # what the graph returns, or what its tail takes to make that (`aot.tail`)
    roots: tuple[tuple[int, bool], ...]     # for each differentiable result an output, and whether the result is its base
    differentiable: int                     # how many results take part in autograd
    visible: int                            # how many results are returned
    saved: tuple[Input | Result, ...]       # arguments of the backward callable …
    tangents: tuple[Tangent, ...]           # … and those behind them
    # For each input that has a gradient, in order: its index, and where the gradient is.
    gradients: tuple[tuple[int, Result | Tangent | None], ...]
    written: tuple[int, ...]                # inputs that the forward callable writes to
    # Inputs and results whose versions autograd increases, once for each time (never those of running statistics).
    advanced: tuple[Input | Result, ...]
    checks: tuple[Check, ...]               # in the order in which a backward pass makes them
    snapshots: tuple[int, ...]              # written inputs on whose value before the call the gradients depend
    random: bool                            # random numbers are drawn
    numbers: tuple[int, ...]                # inputs that are Python numbers; the callables take tensors in their place …
    domains: tuple[Domain, ...]             # … and accept these numbers only
    modes: Modes                            # torch's, at the beginning
    grad_after: bool | None = None          # the gradient mode that the graph leaves behind, if it changes it
    casts: tuple[int, ...] = ()             # inputs whose casts the callables take too, behind all inputs
    parts: tuple[Part, ...] = ()            # if there are several nodes of autograd, which the tail makes
    # Tensors like those that results are computed from, each with the number of the result on whose memory it lies (-1: an input).
    inner: tuple[Tangent, ...] = ()
    inlined_backward: InlinedBackward | None = None     # backward passes that the graph runs itself
    partial_passes: PartialPasses | None = None     # None if it is not known how passes from some of the results behave
    symbols: tuple[tuple[Symbol, int, int], ...] = ()       # sizes that change from call to call: (symbol, input, dimension)
    conditions: tuple[Condition, ...] = ()                  # of these sizes, for which the callables are valid
    # Sizes and strides of each input: -1 is a size that changes, -1 - d the product of size and stride of dimension d.
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()

    def values_for_passes(self, joined: Sequence[Tangent] = ()) -> Callable[[Sequence[torch.Tensor]], Values]:
        """A function from a call's inputs, and other tensors behind these, to the values of the symbols that are in sizes of
        gradients. joined: gradients that other nodes pass on."""
        sizes = [size for like in (*self.tangents, *self.inner, *joined) for size in (*like.sizes, *like.strides)]
        asked = {atom for size in sizes if isinstance(size, Index) for atom in size.atoms()}
        needed = [(symbol, place, dim) for symbol, place, dim in self.symbols if symbol in asked]
        return lambda tensors: {symbol: tensors[place].shape[dim] for symbol, place, dim in needed}

    def size_check(self) -> Callable[[Sequence[torch.Tensor]], bool]:
        """A function that tells whether the callables cover inputs: whether their sizes meet all conditions."""
        names = {symbol: f"x{place}[{dim}]" for symbol, place, dim in self.symbols}
        shapes = [f"(x{place} := inputs[{place}].shape)" for place in dict.fromkeys(place for _, place, _ in self.symbols)]
        tests = [*(f"{name} >= {symbol.low}" for symbol, name in names.items()),
                 *(condition.text(names.__getitem__) for condition in self.conditions)]
        return eval(f"lambda inputs: bool({' and '.join([*shapes, *tests]) or 'True'})")

    def arguments(self) -> list[tuple[Input | Result, ...]]:
        """What each backward callable takes of what is saved."""
        if not self.parts:
            return [self.saved] if self.differentiable else []
        return [part.saved for part in self.parts]

    def with_arguments(self, lists: Sequence[tuple[Input | Result, ...]]) -> Signature:
        """The signature of which `arguments` are these."""
        if self.parts:
            return replace(self, parts=tuple(replace(part, saved=names) for part, names in zip(self.parts, lists, strict=True)))
        return replace(self, saved=lists[0]) if lists else self

    def dying(self) -> list[tuple[int, ...]]:
        """Positions of the saved tensors that only the backward pass holds. It takes them from a list and clears that, so that each
        is freed after its last use."""
        lists = self.arguments()
        counts = Counter(name for names in lists for name in names)
        return [tuple(place for place, name in enumerate(names)
                      if isinstance(name, Result) and name.index >= self.visible and counts[name] == 1) for names in lists]

    def of(self, part: Part) -> Signature:
        """The signature of one part's node of autograd, its results those that it makes and then what it joins."""
        return replace(self, differentiable=len(part.results) + len(part.joined), saved=part.saved, tangents=part.tangents,
                       gradients=tuple(enumerate(part.gradients)), checks=part.checks, parts=(), partial_passes=None)

    def edges(self) -> tuple[int, ...]:
        """For each result of the backward callable which of the `gradients` it is, -1 where it is several."""
        places: dict[int, list[int]] = {}
        for edge, (_, gradient) in enumerate(self.gradients):
            if isinstance(gradient, Result):
                places.setdefault(gradient.index, []).append(edge)
        return tuple(edges[0] if len(edges) == 1 else -1 for _, edges in sorted(places.items()))
