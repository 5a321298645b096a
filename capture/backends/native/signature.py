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
    """A look of eager mode's backward pass at what a node of autograd has saved: whether that has been freed or written to.

    place: whose version counts, None for what the program cannot reach. text: what autograd calls the tensor. is_input: it is the
    input itself, which may come from somewhere. results: from which passes come to look at it. node: the number of the node.
    makes_result: that node makes a result, to which a pass may come and end there.
    """

    place: Input | Result | None
    text: str
    is_input: bool
    results: tuple[int, ...]
    node: int
    makes_result: bool


@dataclass(frozen=True, slots=True)
class PartialPasses:
    """What holds of backward passes that start at some of the differentiable results.

    All come to the same inputs. order: in which eager mode makes the results; passes come to the last one first. freed: for each
    result, those whose passes free something that its own pass needs, itself among them if it needs anything. joined: for each
    result, to which others' gradients its gradient is added, for each place where it is, before more could become of zeros than
    zeros; None where something else is done with it first. graph: the backward graph as bytes, for `PartialBackward`, if it can be
    had in other processes.
    """

    order: tuple[int, ...]
    freed: tuple[tuple[int, ...], ...]
    joined: tuple[tuple[tuple[int, ...], ...] | None, ...]
    graph: bytes | None = None

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
    """One of several nodes of autograd of a graph, of which results are computed from other results.

    results: the differentiable ones that it makes. joined: what other parts hand it of gradients that it goes on with, Tangents
    numbered behind the results. edges: what it hands gradients to: (place, -1) is an input, those behind the graph's own being
    tensors that results are computed from; (part, number) what that part joins. gradients: for each edge; None for what it comes to
    through other parts. saved, tangents: arguments of its backward callable, in this order. checks: as if it had one result.
    """

    results: tuple[int, ...]
    joined: tuple[Tangent, ...]
    edges: tuple[tuple[int, int], ...]
    gradients: tuple[Result | Tangent | None, ...]
    saved: tuple[Input | Result, ...]
    tangents: tuple[Tangent, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """The calling convention of one compiled graph.

    inputs: their number. casts: of which of them the callables take casts as well, behind all inputs. blocks: casts are kept in
    autocast blocks that it enters itself; it is not for calls from within another one. outputs: what the graph returns, or its tail
    takes, which returns that (`aot.tail`). roots: for each differentiable result an output, and whether it is the base of that.
    differentiable: how many results take part in autograd, visible: how many are returned. saved, tangents: the arguments of the
    backward callable, in this order. gradients: for each input that has one, (its index, where the gradient is), in the order of
    the inputs. written: inputs that the forward callable writes to. advanced: inputs and results whose versions autograd counts on,
    once for each time (which it does not for the running statistics of a batch normalisation). checks: in the order in which a
    backward pass looks. snapshots: those of the written inputs whose value before the call the gradients depend on. random: random
    numbers are drawn. numbers: inputs that are numbers of Python, and tensors for the callables, which take those in `domains`.
    modes: torch's, at the beginning. grad_after: the grad mode that the graph leaves behind, if it changes it. parts: if there is
    more than one node of autograd, which the tail makes. inner: what tensors are like that results are computed from, with the
    number of the result on whose memory each lies, -1 on an input's. partial_passes: None if it is not known what passes from some
    of the results come to. symbols: sizes of inputs that change from call to call: (symbol, input, dimension). conditions: for
    which of these the callables are. layouts: sizes and strides of each input, -1 for a size that changes, -1 - d for a stride that
    is the product of size and stride of dimension d.
    """

    inputs: int
    outputs: tuple[Input | Result, ...]
    roots: tuple[tuple[int, bool], ...]
    differentiable: int
    visible: int
    saved: tuple[Input | Result, ...]
    tangents: tuple[Tangent, ...]
    gradients: tuple[tuple[int, Result | Tangent | None], ...]
    written: tuple[int, ...]
    advanced: tuple[Input | Result, ...]
    checks: tuple[Check, ...]
    snapshots: tuple[int, ...]
    random: bool
    numbers: tuple[int, ...]
    domains: tuple[Domain, ...]
    modes: Modes
    grad_after: bool | None
    casts: tuple[int, ...] = ()
    blocks: bool = False
    parts: tuple[Part, ...] = ()
    inner: tuple[Tangent, ...] = ()
    partial_passes: PartialPasses | None = None
    symbols: tuple[tuple[Symbol, int, int], ...] = ()
    conditions: tuple[Condition, ...] = ()
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()

    def values_for_passes(self, joined: Sequence[Tangent] = ()) -> Callable[[Sequence[torch.Tensor]], Values]:
        """A function that tells of a call's inputs, and of other tensors behind these, what those symbols are that a backward pass
        asks for: they are in sizes of gradients. joined: what other nodes hand over."""
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
