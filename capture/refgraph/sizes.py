"""Sizes of tensors that change from call to call: polynomials over numbers that guards can read when a call begins.

A trace uses a size as it is now, and notes what the sizes of results are computed from. If the program, or an operation, decides by
a size, a guard says how it was decided: `size(x, 0) == size(y, 0)`. Nothing else about a size is guarded.
"""
from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from capture import _C
from capture.refgraph.node import Build, Const, Expr, External, Shadow, source_of
from capture.refgraph.source import Computed, Literal, Source

Monomial = tuple[int, ...]      # numbers of atoms, in order, each as often as it is a factor


class Size:
    """A size: the sum of products of atoms, numbers whose paths a `Sizes` knows. real: what it is in this call. Immutable."""

    __slots__ = ("terms", "real")

    def __init__(self, terms: dict[Monomial, int], real: int) -> None:
        self.terms = {monomial: factor for monomial, factor in terms.items() if factor}
        self.real = real

    @property
    def constant(self) -> int | None:
        """The number that it always is, if it is known to be one."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def atom(self) -> int | None:
        """The number of the atom that it is, if it is one."""
        monomial, factor = next(iter(self.terms.items()), ((), 0))
        return monomial[0] if len(self.terms) == 1 and factor == 1 and len(monomial) == 1 else None

    def atoms(self) -> set[int]:
        """The numbers of all atoms in it."""
        return {atom for monomial in self.terms for atom in monomial}

    def __add__(self, other: Size | int) -> Size:
        right = as_size(other)
        terms = dict(self.terms)
        for monomial, factor in right.terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Size(terms, self.real + right.real)

    def __mul__(self, other: Size | int) -> Size:
        right = as_size(other)
        terms: dict[Monomial, int] = {}
        for left_monomial, left in self.terms.items():
            for monomial, factor in right.terms.items():
                product = tuple(sorted((*left_monomial, *monomial)))
                terms[product] = terms.get(product, 0) + left * factor
        return Size(terms, self.real * right.real)

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size | int) -> Size:
        return self + -as_size(other)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same number, whatever the atoms are."""
        return self.terms == as_size(other).terms if isinstance(other, (Size, int)) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def divided(self, divisor: Size) -> Size | None:
        """The quotient by a product of atoms and a number, where all terms have it as a factor; else None."""
        if len(divisor.terms) != 1:
            return None
        (taken, factor), = divisor.terms.items()
        terms: dict[Monomial, int] = {}
        for monomial, number in self.terms.items():
            left = list(monomial)
            for atom in taken:
                if atom not in left:
                    return None
                left.remove(atom)
            if number % factor:
                return None
            terms[tuple(left)] = number // factor
        return Size(terms, self.real // divisor.real) if divisor.real else None

    def __repr__(self) -> str:
        return f"Size({self.terms}, {self.real})"


def as_size(number: Size | int) -> Size:
    """A size, also of a number that is always the same."""
    return number if isinstance(number, Size) else Size({(): number}, number)


def product(sizes: Iterable[Size]) -> Size:
    """How many elements there are."""
    total = as_size(1)
    for size in sizes:
        total *= size
    return total


class Graph(Protocol):
    """What is asked of the graph."""

    requirements: dict[Any, Any]
    context: Any

    def hold(self, source: Source, kind: str, expected: Any) -> None: ...

    def require(self, source: Source, kind: str, expected: Any) -> None: ...


class Sizes:
    """The sizes that one trace knows of. It does not keep `graph`, whose part it is, alive."""

    def __init__(self, graph: Graph) -> None:
        self._graph = weakref.ref(graph)
        self._atoms: dict[Source, int] = {}
        self._sources: list[Source] = []
        self._reals: list[int] = []
        self._equal: dict[int, Size] = {}       # atoms -> what a guard says that they are
        self._given: set[Source] = set()        # atoms that are other numbers than sizes: what is only calculated with
        self.values: dict[Source, Any] = {}     # these numbers, and others that were calculated with

    def _hold(self, source: Source, expected: Any) -> None:
        """Guards the value at a path. Raises Break, see `RefGraph.hold`."""
        graph = self._graph()
        assert graph is not None
        graph.hold(source, "VALUE", expected)

    def _held(self, source: Source) -> bool:
        graph = self._graph()
        return graph is not None and (source, "VALUE") in graph.requirements

    def __bool__(self) -> bool:
        """Whether any size changes in this trace."""
        return bool(self._sources)

    def atom(self, source: Source, real: int) -> Size:
        """The size at a path, of which nothing is known but what it is now."""
        if source not in self._atoms:
            self._atoms[source] = len(self._sources)
            self._sources.append(source)
            self._reals.append(real)
        return self.resolved(Size({(self._atoms[source],): 1}, real))

    def free(self, source: Source, real: int) -> None:
        """Treats an integer from outside as a size that changes."""
        self._given.discard(source)
        self.atom(source, real)

    def number(self, source: Source, real: int) -> Size:
        """An integer from outside that sizes are calculated with."""
        graph = self._graph()
        assert graph is not None
        graph.require(source, "TYPE", int)
        if source not in self._atoms:
            self._given.add(source)
        return self.atom(source, real)

    def is_fixed(self, source: Source) -> bool:
        """Whether the size at a path is the same number on each hit."""
        return source in self._atoms and self.resolved(Size({(self._atoms[source],): 1}, 0)).constant is not None

    def real(self, source: Source) -> int:
        """What the size at a path is now."""
        return self._reals[self._atoms[source]]

    def resolved(self, size: Size) -> Size:
        """The same, written with what the guards so far say about atoms."""
        for atom in size.atoms():
            known = self._equal.get(atom)
            if known is None and self._held(self._sources[atom]):
                known = self._equal[atom] = as_size(self._reals[atom])
            if known is not None:
                return self.resolved(self._replaced(size, atom, known))
        return size

    def _replaced(self, size: Size, atom: int, by: Size) -> Size:
        """The same number, in which one atom is written as what it is known to be."""
        total = as_size(0)
        for monomial, factor in size.terms.items():
            term = Size({tuple(other for other in monomial if other != atom): factor}, 0)
            for _ in range(monomial.count(atom)):
                term *= by
            total += term
        return Size(total.terms, size.real)

    def quotient(self, dividend: Size, divisor: Size) -> Size:
        """A size divided by another, rounded down."""
        dividend, divisor = self.resolved(dividend), self.resolved(divisor)
        exact = dividend.divided(divisor)
        if exact is not None:
            return exact
        real = dividend.real // divisor.real
        if dividend.constant is not None and divisor.constant is not None:
            return as_size(real)
        return self.atom(Computed(operator.floordiv, (self.path(dividend), self.path(divisor))), real)

    # -- paths and shadows --------------------------------------------------------------------------------------------

    def path(self, size: Size) -> Source:
        """The size as a path that a guard and a hit can compute."""
        terms = [self._term(monomial, factor) for monomial, factor in size.terms.items()] or [Literal(0)]
        return chain(operator.add, terms)

    def _term(self, monomial: Monomial, factor: int) -> Source:
        factors: list[Source] = [self._sources[atom] for atom in monomial]
        return chain(operator.mul, [*factors, Literal(factor)] if factor != 1 or not factors else factors)

    def shadow(self, size: Size) -> Shadow:
        """The size as what the program reads."""
        size = self.resolved(size)
        return Const(size.real) if size.constant is not None else External(self.path(size), size.real)

    def is_free(self, shadow: Shadow | None) -> bool:
        """Whether a number follows from sizes that change, and from others that can be read when a call begins."""
        if not self or not isinstance(shadow, (External, Expr)):
            return False
        source = source_of(shadow)
        if source is None or not self.includes(source):
            return False
        self._note_values(shadow)
        return True

    def _note_values(self, shadow: Shadow) -> None:
        if isinstance(shadow, External):
            self.values[shadow.source] = shadow.value
        for part in shadow.parts:
            self._note_values(part)

    def is_free_in(self, shadow: Shadow | None) -> bool:
        """Whether some part of a composite is free."""
        return bool(self) and shadow is not None and (self.is_free(shadow) or isinstance(shadow, Build) and any(
            map(self.is_free_in, shadow.items)))

    def includes(self, source: Source) -> bool:
        """Whether what is at a path follows from sizes that change."""
        if source in self._atoms:
            return source not in self._given and self.resolved(Size({(self._atoms[source],): 1}, 0)).constant is None
        return isinstance(source, Computed) and not self._held(source) and any(map(self.includes, source.args))

    def of(self, shadow: Shadow, real: int) -> Size:
        """The size that a number of the program's is. Raises ValueError for one that no guard can compute."""
        source = source_of(shadow)
        if source is None:
            raise ValueError("a number that only a hit knows")
        self._note_values(shadow)
        return self._of(source, real)

    def _of(self, source: Source, real: int) -> Size:
        if isinstance(source, Literal):
            return as_size(real)
        if isinstance(source, Computed) and source not in self._atoms and source.op in ARITHMETIC and len(source.args) == 2:
            values = [self.value(arg) for arg in source.args]
            if None not in values:
                left, right = (self._of(arg, value) for arg, value in zip(source.args, values, strict=True))  # type: ignore[arg-type]
                made = ARITHMETIC[source.op](left, right)
                if made is not None:
                    return self.resolved(made)
        if self._held(source):
            return as_size(real)
        return self.atom(source, real) if self._changes(source) else self.number(source, real)

    def _changes(self, source: Source) -> bool:
        """Whether a number is a size that changes, or was computed from such."""
        return source in self._atoms and source not in self._given or isinstance(source, Computed) and (
            source.op is _C.size or any(map(self._changes, source.args)))

    def value(self, source: Source) -> int | None:
        """What the number at a path is now; None where it is not known."""
        if isinstance(source, Literal):
            return source.value if type(source.value) is int else None
        if source in self._atoms:
            return self._reals[self._atoms[source]]
        if not isinstance(source, Computed) or source.op not in ARITHMETIC:
            number = self.values.get(source)
            return number if type(number) is int else None
        values = [self.value(arg) for arg in source.args]
        return None if None in values else source.op(*values)

    # -- what the trace goes by ---------------------------------------------------------------------------------------

    def fix(self, size: Size) -> int:
        """The size as a number, which it is on each hit."""
        size = self.resolved(size)
        if size.constant is None:
            self._hold(self.path(size), size.real)
            if size.atom is not None:
                self._equal[size.atom] = as_size(size.real)
        return size.real

    def pin(self, sizes: Iterable[Size]) -> None:
        """Fixes all that these sizes are made of."""
        for size in sizes:
            for atom in sorted(self.resolved(size).atoms()):
                self.fix(Size({(atom,): 1}, self._reals[atom]))

    def pin_strides(self) -> None:
        """Fixes all strides that are known by now."""
        for atom, source in enumerate(self._sources):
            if isinstance(source, Computed) and source.op is _C.stride:
                self.pin([Size({(atom,): 1}, self._reals[atom])])

    def pin_all(self) -> None:
        """Fixes all sizes that are known by now."""
        for atom, real in enumerate(self._reals):
            self.pin([Size({(atom,): 1}, real)])

    def decide(self, relation: Callable[[Any, Any], bool], left: Size | int, right: Size | int) -> bool:
        """Whether a relation of two sizes holds, as it will on each hit."""
        left, right = self.resolved(as_size(left)), self.resolved(as_size(right))
        holds = relation(left.real, right.real)
        if not self._is_known(relation, left - right):
            if relation is operator.eq and holds:
                self._unite(left, right)
            else:
                self._hold(Computed(relation, (self.path(left), self.path(right))), holds)
        return holds

    def may_be_short(self, place: Size) -> bool:
        """Whether a bound of a slice, counted from the back, may lie before the first element: it does now, or did in another
        capture. Tensors grow beyond that."""
        graph = self._graph()
        assert graph is not None
        return not self._is_known(operator.ge, self.resolved(place)) and graph.context.took_fewer()

    def larger(self, left: Size, right: Size) -> Size:
        """The larger one of two sizes, without a guard on which that is."""
        return self._one_of(max, left, right)

    def smaller(self, left: Size, right: Size) -> Size:
        """The smaller one."""
        return self._one_of(min, left, right)

    def _one_of(self, choose: Callable[[int, int], int], left: Size, right: Size) -> Size:
        left, right = self.resolved(left), self.resolved(right)
        real, difference = choose(left.real, right.real), (left - right).constant
        if difference is not None:
            return left if left.real == real else right
        return self.atom(Computed(choose, (self.path(left), self.path(right))), real)

    def _is_known(self, relation: Callable[[Any, Any], bool], difference: Size) -> bool:
        """Whether a relation of a difference to zero follows from sizes being non-negative alone."""
        if difference.constant is not None:
            return True
        signs = {factor > 0 for monomial, factor in difference.terms.items() if monomial}
        if len(signs) > 1 or not all(map(self._is_size, difference.atoms())):
            return False
        bound, grows = difference.terms.get((), 0), signs.pop()         # at least, or at most, this
        if not grows:
            bound, relation = -bound, MIRRORED[relation]
        return bound > 0 or bound == 0 and relation in (operator.ge, operator.lt)

    def _is_size(self, atom: int) -> bool:
        source = self._sources[atom]
        return isinstance(source, Computed) and source.op is _C.size

    def _unite(self, left: Size, right: Size) -> None:
        """Guards that two sizes are equal, and uses it from now on."""
        for size, other in ((left, right), (right, left)):
            if size.atom is not None and other.constant is not None:
                self.fix(size)
                return
        self._hold(Computed(operator.eq, (self.path(left), self.path(right))), True)
        for size, other in ((right, left), (left, right)):
            if size.atom is not None and size.atom not in other.atoms():
                self._equal[size.atom] = other
                return


Cut = tuple[Size, Size]


def cuts_at_entry(sizes: Sequence[Size], strides: Sequence[Size | None], real: Sequence[int]) -> tuple[Cut, ...]:
    """What decides how densely a tensor from outside lies in memory: of each dimension whose stride does not follow from the others
    (None; `real` are all of them), that and where the dimension within it ends."""
    found: list[Cut] = []
    end = as_size(1)
    for place, dim in enumerate(sorted((dim for dim in range(len(real)) if real[dim]), key=lambda dim: (real[dim], -dim))):
        stride = strides[dim] or end
        if stride != end and (stride.constant is None or place and end.constant is None):
            found.append((stride, end))
        end = sizes[dim] * stride
    return tuple(found)


def chain(operation: Callable[..., Any], operands: Sequence[Source]) -> Source:
    """`a + b + c`"""
    total, *rest = operands
    for operand in rest:
        total = Computed(operation, (total, operand))
    return total


MIRRORED: dict[Callable[..., Any], Callable[..., Any]] = {         # the same of `-a` and `-b`
    operator.eq: operator.eq, operator.lt: operator.gt, operator.gt: operator.lt, operator.le: operator.ge,
    operator.ge: operator.le}
# What of the program's arithmetic is done with sizes; None where it is not.
ARITHMETIC: dict[Callable[..., Any], Callable[[Size, Size], Size | None]] = {
    operator.add: operator.add, operator.sub: operator.sub, operator.mul: operator.mul,
    operator.floordiv: lambda left, right: left.divided(right)}


def size_at(tensor: Source, dim: int) -> Computed:
    """The path of a tensor's size in a dimension."""
    return Computed(_C.size, (tensor, Literal(dim)))


def reads_sizes(source: Source) -> bool:
    """Whether what is at a path follows from the sizes or strides of tensors."""
    return isinstance(source, Computed) and (source.op in (_C.size, _C.stride) or any(map(reads_sizes, source.args)))


def stride_at(tensor: Source, dim: int) -> Computed:
    """The path of a tensor's stride in a dimension."""
    return Computed(_C.stride, (tensor, Literal(dim)))
