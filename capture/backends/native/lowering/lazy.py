"""What a value of the graph is while it is being lowered: a function from indices to an expression.

A `Lazy` has no memory of its own until somebody needs it there; then it is stored, once, and reads from its buffer ever after.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from capture.backends.native.index import ZERO, Div, Index, Mod, Size, Value, Var, index, plain, product
from capture.backends.native.ir import Buffer, Expr, View, load

At = Callable[[Sequence[Index]], Expr]
IndexMap = Callable[[Sequence[Index]], Sequence[Index]]     # from an element of a view to that of what it views


@dataclass(frozen=True, slots=True)
class Spec:
    """What eager's result looks like."""

    shape: tuple[Size, ...]
    dtype: torch.dtype
    strides: tuple[Size, ...]
    device: torch.device


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the elements lie: at `offset` + Σ index * stride of the buffer. `parts`: they are real or imaginary parts of the
    buffer's elements, and are counted as such."""

    buffer: Buffer
    offset: Index
    strides: tuple[Size, ...]
    parts: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return self.buffer.scalar if self.parts else self.buffer.dtype

    def part(self, number: int) -> Stored:
        """The real (0) or imaginary (1) parts of complex elements."""
        return Stored(self.buffer, self.offset * 2 + number, tuple(plain(index(stride) * 2) for stride in self.strides), True)


@dataclass(slots=True, eq=False)
class Lazy:
    """A tensor. `at` gives the expression of the element at an index (one per dimension; 0 for those of size 1).

    `strides`: eager's, which it gets when it is stored. `weight`: the work of computing one element, `reads`: names of the buffers
    that this loads from. `source`, `mapped`: of which tensor it is a view, and how; `parts`: that it is a concatenation of, along a
    dimension, from a position on. `pair`: the real and the imaginary part of a complex tensor that is not in memory, which has no
    expression of its own. `number`: int or float, where this stands for a number of Python, which promotes types as such.
    """

    shape: tuple[Size, ...]
    dtype: torch.dtype
    strides: tuple[Size, ...] | None
    compute: At
    weight: int = 0
    reads: frozenset[str] = frozenset()
    stored: Stored | None = None
    source: Lazy | None = None
    mapped: IndexMap | None = None
    parts: tuple[int, tuple[tuple[Size, Lazy], ...]] | None = None
    pair: tuple[Lazy, Lazy] | None = None
    number: type | None = None
    _last: tuple[tuple[Index, ...], Expr] | None = field(default=None, repr=False)

    def at(self, place: Sequence[Index]) -> Expr:
        """The expression of the element at `place`. The last one is remembered: whoever uses a value twice asks for it twice."""
        key = tuple(place)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        expr = self.compute(key)
        assert expr.dtype == self.dtype, (expr.dtype, self.dtype)
        self._last = key, expr
        return expr

    def keep(self, stored: Stored) -> None:
        """From now on the elements are in memory."""
        self.stored = stored
        self.compute = _loader(stored)
        self.weight, self.reads = 0, frozenset((stored.buffer.name,))
        self.source = self.mapped = self.parts = self.pair = self._last = None

    @property
    def numel(self) -> Index:
        return product(self.shape)

    @property
    def view(self) -> View:
        """As ATen sees it. It must have been stored."""
        assert self.stored is not None
        dtype = self.dtype if self.dtype != self.stored.buffer.dtype else None
        return View(self.stored.buffer.name, self.shape, self.stored.strides, plain(self.stored.offset), dtype)


def in_memory(stored: Stored, shape: tuple[Size, ...], strides: tuple[Size, ...] | None = None) -> Lazy:
    """A tensor whose elements are in memory; `strides` are eager's, where these are others."""
    return Lazy(shape, stored.dtype, strides or stored.strides, _loader(stored), 0, frozenset((stored.buffer.name,)), stored)


def viewed(source: Lazy, shape: tuple[Size, ...], mapped: IndexMap, strides: tuple[Size, ...] | None = None) -> Lazy:
    """A view of `source`: of what is in memory, where the map is affine, it is in memory as well."""
    if source.stored is not None:
        stored = strided(source.stored, shape, mapped, strides)
        if stored is not None:
            return in_memory(stored, shape, strides)
    return Lazy(shape, source.dtype, strides, lambda place: source.at(mapped(place)), source.weight, source.reads,
                source=source, mapped=mapped)


def computed(values: Sequence[Lazy], shape: tuple[Size, ...], dtype: torch.dtype, at: At, weight: int) -> Lazy:
    """A value that `at` computes from elements of others; `weight`: the work that it adds to theirs."""
    distinct = list({id(value): value for value in values}.values())
    return Lazy(shape, dtype, None, at, weight + sum(v.weight for v in distinct), frozenset().union(*(v.reads for v in distinct)))


def strided(stored: Stored, shape: tuple[Size, ...], mapped: IndexMap, strides: tuple[Size, ...] | None) -> Stored | None:
    """Where the elements of a view lie; None where that cannot be said with strides. Those of dimensions of size 1 are eager's."""
    place = variables(shape)
    address = stored.offset
    for inner, stride in zip(mapped(place), stored.strides, strict=True):
        address = address + inner * stride
    ours: list[Size] = []
    for number, (var, size) in enumerate(zip(place, shape, strict=True)):
        if size == 1:
            ours.append(1 if strides is None else strides[number])
            continue
        atom = next(iter(var.atoms()))
        stride = address.coefficient(atom)
        if any(isinstance(other, (Var, Value)) for other in stride.atoms()) or any(c < 0 for c in stride.terms.values()):
            return None
        address = address - var * stride
        ours.append(plain(stride))
    if any(isinstance(atom, (Var, Value, Div, Mod)) and _moves(atom) for atom in address.atoms()):
        return None
    return replace(stored, offset=address, strides=tuple(ours))


def _moves(atom: Any) -> bool:
    """Whether the atom depends on loop variables or on data."""
    if isinstance(atom, (Div, Mod)):
        return any(isinstance(inner, (Var, Value)) for part in (atom.dividend, atom.divisor) for inner in part.atoms())
    return True


def variables(shape: Sequence[Size], prefix: str = "i") -> tuple[Index, ...]:
    """A loop variable for each dimension, 0 for those of size 1."""
    return tuple(ZERO if size == 1 else index(Var(f"{prefix}{number}", size)) for number, size in enumerate(shape))


def loops(place: Sequence[Index]) -> tuple[Var, ...]:
    """The loop variables of `variables`."""
    return tuple(atom for value in place for atom in value.atoms() if isinstance(atom, Var))


def _loader(stored: Stored) -> At:
    buffer, offset, strides = stored.buffer, stored.offset, stored.strides

    def at(place: Sequence[Index]) -> Expr:
        address = offset
        for inner, stride in zip(place, strides, strict=True):
            if inner.terms:
                address = address + (inner if stride == 1 else inner * stride)
        return load(buffer, address)
    return at
