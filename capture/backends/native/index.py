"""Integer index expressions: what loops count, and where in a buffer an element lies.

An `Index` is a polynomial with integer coefficients over atoms: loop variables, size symbols, quotients, remainders and
integers that the program computes. Sums and products are kept in a canonical form, so that two expressions that simplify
alike compare equal. Division rounds down; divisors are positive.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size which is known when the plan runs: at least `low`."""

    name: str
    low: int = 2

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable: 0 … extent-1."""

    name: str
    extent: Size

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Div:
    """`dividend // divisor`, where it does not simplify."""

    dividend: Index
    divisor: Index

    def __str__(self) -> str:
        return f"({self.dividend})//({self.divisor})"


@dataclass(frozen=True, slots=True)
class Mod:
    """`dividend % divisor`, where it does not simplify."""

    dividend: Index
    divisor: Index

    def __str__(self) -> str:
        return f"({self.dividend})%({self.divisor})"


@dataclass(frozen=True, slots=True)
class Value:
    """An integer that the program computes (`ir.Expr` of dtype int64): 0 … extent-1, else an IndexError at run time."""

    expr: Any
    extent: Size

    def __str__(self) -> str:
        return f"[{self.expr}]"


Atom = Symbol | Var | Div | Mod | Value
Monomial = tuple[Atom, ...]         # sorted by text, with repetition; () is the constant


class Index:
    """A polynomial: `terms` maps monomials to coefficients that are not zero."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms: dict[Monomial, int] = dict(terms)
        self._hash = hash(frozenset(self.terms.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            other = index(other)
        return isinstance(other, Index) and self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: Size) -> Index:
        terms = dict(self.terms)
        for monomial, coefficient in index(other).terms.items():
            total = terms.pop(monomial, 0) + coefficient
            if total:
                terms[monomial] = total
        return _recombined(terms)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Size) -> Index:
        return self + index(other) * -1

    def __rsub__(self, other: Size) -> Index:
        return index(other) + self * -1

    def __mul__(self, other: Size) -> Index:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in index(other).terms.items():
                monomial = tuple(sorted(left + right, key=str)) if left and right else left or right
                total = terms.pop(monomial, 0) + a * b
                if total:
                    terms[monomial] = total
        return _recombined(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Index:
        return _divided(self, index(other))[0]

    def __mod__(self, other: Size) -> Index:
        return _divided(self, index(other))[1]

    @property
    def constant(self) -> int | None:
        """The value, when there is no atom in it."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def atoms(self) -> Iterator[Atom]:
        """Every atom, also those within quotients and remainders; not those within a Value's expression."""
        for monomial in self.terms:
            for atom in monomial:
                yield atom
                if isinstance(atom, (Div, Mod)):
                    yield from atom.dividend.atoms()
                    yield from atom.divisor.atoms()

    def variables(self) -> set[Var]:
        """The loop variables that it depends on; of a Value's expression too, if that says so by `variables()`."""
        found: set[Var] = set()
        for atom in self.atoms():
            if isinstance(atom, Var):
                found.add(atom)
            elif isinstance(atom, Value):
                found |= atom.expr.variables()
        return found

    def coefficient(self, atom: Atom) -> Index:
        """The factor of `atom`, where it stands by itself in a product (not inside of a quotient)."""
        terms: dict[Monomial, int] = {}
        for monomial, coefficient in self.terms.items():
            if monomial.count(atom) == 1:
                rest = list(monomial)
                rest.remove(atom)
                terms[tuple(rest)] = terms.get(tuple(rest), 0) + coefficient
        return Index(terms)

    def substitute(self, replace: Callable[[Atom], Size | None]) -> Index:
        """With every atom for which `replace` returns something replaced, and the whole simplified anew."""
        result = ZERO
        for monomial, coefficient in self.terms.items():
            product = index(coefficient)
            for atom in monomial:
                product = product * _replaced(atom, replace)
            result = result + product
        return result

    def __repr__(self) -> str:
        texts = []
        for monomial, coefficient in sorted(self.terms.items(), key=lambda term: "*".join(map(str, term[0]))):
            factors = [str(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(str(coefficient))
            texts.append("*".join(factors))
        return " + ".join(texts) or "0"


Size = int | Index
ZERO = Index({})


def index(value: Size | Atom) -> Index:
    """An int or an atom as an Index."""
    if isinstance(value, Index):
        return value
    if isinstance(value, int):
        return Index({(): int(value)}) if value else ZERO
    return Index({(value,): 1})


def bounds(value: Size) -> tuple[int | None, int | None]:
    """The least and the greatest value, where they are known without knowing symbols."""
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in index(value).terms.items():
        small, large = functools.reduce(_times, map(_atom_bounds, monomial), (1, 1))
        if coefficient < 0:
            small, large = large, small
        low = None if low is None or small is None else low + coefficient * small
        high = None if high is None or large is None else high + coefficient * large
    return low, high


def product(sizes: Any) -> Index:
    """The number of elements of a shape."""
    return functools.reduce(lambda total, size: total * size, sizes, index(1))


def contiguous_strides(sizes: Any) -> tuple[Index, ...]:
    """Row-major strides."""
    strides: list[Index] = []
    total = index(1)
    for size in reversed(list(sizes)):
        strides.append(total)
        total = total * size
    return tuple(reversed(strides))


def _times(left: tuple[int | None, int | None], right: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """Bounds of a product. With an unknown end only factors that are not negative keep a known one."""
    (a, b), (c, d) = left, right
    if a is None or c is None:
        return None, None
    if b is None or d is None:
        return (a * c, None) if a >= 0 and c >= 0 else (None, None)
    ends = a * c, a * d, b * c, b * d
    return min(ends), max(ends)


def _atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    if isinstance(atom, Symbol):
        return atom.low, None
    if isinstance(atom, (Var, Value)):
        high = bounds(atom.extent)[1]
        return 0, None if high is None else max(high - 1, 0)
    divisor = bounds(atom.divisor)
    if isinstance(atom, Mod):
        return 0, None if divisor[1] is None else divisor[1] - 1
    low, high = bounds(atom.dividend)
    least, most = divisor
    if low is None or least is None or low < 0:
        known = atom.divisor.constant
        return (None, None) if known is None else (None if low is None else low // known, None if high is None else high // known)
    return (0 if most is None else low // most), (None if high is None else high // least)


def _divided(dividend: Index, divisor: Index) -> tuple[Index, Index]:
    """Quotient and remainder."""
    if divisor == 1:
        return dividend, ZERO
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    factor = divisor.terms
    for monomial, coefficient in dividend.terms.items():
        if len(factor) == 1:
            (inner, by), = factor.items()
            remaining = _without(monomial, inner)
            if remaining is not None:
                whole, part = divmod(coefficient, by)
                if whole:
                    quotient[remaining] = quotient.get(remaining, 0) + whole
                if part:
                    rest[monomial] = part
                continue
        rest[monomial] = coefficient
    whole, part = Index(quotient), Index(rest)
    low, high = bounds(part)
    top = bounds(divisor)[0]
    if low is not None and low >= 0 and (high is not None and top is not None and high < top or _less(part, divisor)):
        return whole, part
    if divisor.constant is not None:
        if part.constant is not None:
            return whole + part.constant // divisor.constant, index(part.constant % divisor.constant)
        if len(part.terms) == 1:
            ((*_, atom), coefficient), = ((list(m) or [None], c) for m, c in part.terms.items())
            if isinstance(atom, Div) and coefficient == 1 and len(next(iter(part.terms))) == 1:
                return whole + index(Div(atom.dividend, atom.divisor * divisor)), _mod(part, divisor)
    return whole + index(Div(part, divisor)), _mod(part, divisor)


def _mod(part: Index, divisor: Index) -> Index:
    if len(part.terms) == 1:
        (monomial, coefficient), = part.terms.items()
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Mod):
            inner = monomial[0]
            if _divided_exactly(inner.divisor, divisor):
                return inner.dividend % divisor
    return index(Mod(part, divisor))


def _divided_exactly(value: Index, divisor: Index) -> bool:
    if value.constant is not None and divisor.constant is not None:
        return value.constant % divisor.constant == 0
    return value == divisor


def _less(part: Index, divisor: Index) -> bool:
    """Whether a variable's own extent says that `part` is less than a symbolic divisor."""
    if len(part.terms) != 1:
        return False
    (monomial, coefficient), = part.terms.items()
    return coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], (Var, Value)) and index(monomial[0].extent) == divisor


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _recombined(terms: dict[Monomial, int]) -> Index:
    """With `c*(x//c) + x%c` put together to `x` again."""
    for monomial, coefficient in terms.items():
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Mod):
                continue
            others = monomial[:position] + monomial[position + 1:]
            whole = index(Div(atom.dividend, atom.divisor)) * atom.divisor * Index({others: coefficient})
            if whole.terms.keys() <= terms.keys() and all(terms[m] == c for m, c in whole.terms.items()):
                rest = {m: c for m, c in terms.items() if m != monomial and m not in whole.terms}
                return Index(rest) + atom.dividend * Index({others: coefficient})
    return Index(terms)


def _replaced(atom: Atom, replace: Callable[[Atom], Size | None]) -> Index:
    new = replace(atom)
    if new is not None:
        return index(new)
    if isinstance(atom, Div):
        return atom.dividend.substitute(replace) // atom.divisor.substitute(replace)
    if isinstance(atom, Mod):
        return atom.dividend.substitute(replace) % atom.divisor.substitute(replace)
    return index(atom)
