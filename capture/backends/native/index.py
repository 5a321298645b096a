"""Integer index expressions: what loops count, and where in a buffer an element lies.

An `Index` is a polynomial with integer coefficients over atoms: loop variables, size symbols, quotients, remainders and
integers that the program computes. Sums and products are kept in a canonical form, so that two expressions that simplify
alike compare equal. Division rounds down; divisors are positive.
"""
from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_SIZE = 2      # that a symbol stands for, unless more is known: torch takes sizes of 0 and 1 for sizes of another kind
MOST_SIZE = 2**31   # of a number that is a size


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size which is known when the plan runs: at least `low`."""

    name: str
    low: int = LEAST_SIZE

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


ERRORS: tuple[type[Exception], ...] = (IndexError, RuntimeError)       # what eager mode's operators raise for a bad index


@dataclass(frozen=True, slots=True)
class Value:
    """An integer that the program computes (`ir.Expr` of dtype int64): 0 … extent-1, else an `error`, of ERRORS, at run time;
    None where it is certain to be in range."""

    expr: Any
    extent: Size
    error: type[Exception] | None = IndexError

    def __str__(self) -> str:
        return f"[{self.expr}]"


SizeAtom = Symbol | Div | Mod       # what sizes consist of that are known when the plan runs
Atom = SizeAtom | Var | Value
Monomial = tuple[Atom, ...]         # sorted by `_order`, with repetition; () is the constant


class Index:
    """A polynomial: `terms` maps monomials to coefficients that are not zero. Not to be changed."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms
        self._hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Index, (self.terms,)         # without the hash, which is another one in each process

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.constant == other
        return isinstance(other, Index) and self.terms == other.terms

    def __add__(self, other: Size) -> Index:
        return _sum(self.terms, index(other).terms)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Size) -> Index:
        return self + index(other) * -1

    def __rsub__(self, other: Size) -> Index:
        return index(other) + self * -1

    def __mul__(self, other: Size) -> Index:
        if isinstance(other, int):
            return Index({monomial: coefficient * other for monomial, coefficient in self.terms.items()}) if other else ZERO
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in index(other).terms.items():
                monomial = tuple(sorted(left + right, key=_order)) if left and right else left or right
                _count(terms, monomial, a * b)
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
        terms: dict[Monomial, int] = {}
        changed = False
        for monomial, coefficient in self.terms.items():
            factors = [_replaced(atom, replace) for atom in monomial]
            if all(factor is atom for factor, atom in zip(factors, monomial, strict=True)):
                _count(terms, monomial, coefficient)
                continue
            changed = True
            for part, by in functools.reduce(operator.mul, map(index, factors)).terms.items():
                _count(terms, part, by * coefficient)
        return _recombined(terms) if changed else self

    def text(self, of: Callable[[Atom], str]) -> str:
        """The polynomial written out, with `of` giving the texts of the atoms."""
        texts = []
        for monomial, coefficient in self.terms.items():
            factors = [of(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(str(coefficient))
            texts.append("*".join(factors))
        return " + ".join(sorted(texts)) or "0"

    def __repr__(self) -> str:
        return self.text(str)


Size = int | Index
ZERO = Index({})


def index(value: Size | Atom) -> Index:
    """An int or an atom as an Index."""
    if isinstance(value, Index):
        return value
    if isinstance(value, int):
        return Index({(): int(value)}) if value else ZERO
    return Index({(value,): 1})


def plain(value: Size) -> Size:
    """As an int, where it is one."""
    if isinstance(value, int):
        return value
    constant = value.constant
    return value if constant is None else constant


def bounds(value: Size) -> tuple[int | None, int | None]:
    """The least and the greatest value, where they are known without knowing symbols: no less, and no greater."""
    value = index(value)
    low, high = _interval(value)
    if low is None and (least := _without_variables(value, largest=False)) is not None:
        low = _interval(_from_zero(least))[0]
    if high is None and (most := _without_variables(value, largest=True)) is not None:
        high = _interval(_from_zero(most))[1]
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


def known_span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first one of a tensor to the last one, both included."""
    return 0 if 0 in sizes else 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _count(terms: dict[Monomial, int], monomial: Monomial, coefficient: int) -> None:
    """Adds a term to those of a polynomial that is being made."""
    total = terms.pop(monomial, 0) + coefficient
    if total:
        terms[monomial] = total


def _sum(left: dict[Monomial, int], right: dict[Monomial, int]) -> Index:
    terms = dict(left)
    for monomial, coefficient in right.items():
        _count(terms, monomial, coefficient)
    return _recombined(terms)


@functools.lru_cache(maxsize=1 << 14)
def _order(atom: Atom) -> tuple[int, str, int, tuple[Any, ...]]:
    """What the factors of a product are sorted by; the same in every process, but for products of several `Value`s."""
    if isinstance(atom, (Symbol, Var)):
        return 0, f"{atom.name} {type(atom).__name__}", 0, ()
    if isinstance(atom, Value):
        return 1, "", id(atom.expr), ()
    parts = tuple(tuple(sorted((tuple(map(_order, monomial)), coefficient) for monomial, coefficient in part.terms.items()))
                  for part in (atom.dividend, atom.divisor))
    return 2, type(atom).__name__, 0, parts


def _recombined(terms: dict[Monomial, int]) -> Index:
    """With `c*(x//c) + x%c` put together to `x` again."""
    for monomial, coefficient in terms.items():
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Mod):
                continue
            others = Index({monomial[:position] + monomial[position + 1:]: coefficient})
            whole = (atom.dividend // atom.divisor) * atom.divisor * others
            if whole.terms.keys() <= terms.keys() and all(terms[m] == c for m, c in whole.terms.items()):
                rest = {m: c for m, c in terms.items() if m != monomial and m not in whole.terms}
                return Index(rest) + atom.dividend * others
    return Index(terms)


# Bounds.

def _interval(value: Index) -> tuple[int | None, int | None]:
    """Bounds by interval arithmetic."""
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in value.terms.items():
        small, large = functools.reduce(_times, map(_atom_bounds, monomial), (1, 1))
        if coefficient < 0:
            small, large = large, small
        low = None if low is None or small is None else low + coefficient * small
        high = None if high is None or large is None else high + coefficient * large
    return low, high


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
        high = atom.extent if isinstance(atom.extent, int) else bounds(atom.extent)[1]
        return 0, None if high is None else max(high - 1, 0)
    least, most = bounds(atom.divisor)
    low, high = bounds(atom.dividend)
    if isinstance(atom, Mod):
        ends = [] if most is None else [most - 1]
        return 0, min(ends + [high] if high is not None and low is not None and low >= 0 else ends, default=None)
    if least is None or least < 1:
        return (0 if low is not None and low >= 0 else None), None
    by = least if high is None or high >= 0 else most
    over = None if high is None else -1 if by is None else high // by
    by = most if low is None or low >= 0 else least
    return (None if low is None else 0 if by is None else low // by), over


def _without_variables(value: Index, largest: bool) -> Index | None:
    """A polynomial of symbols which `value` never exceeds, or never falls below: each product at an end of its range."""
    terms: dict[Monomial, int] = {}
    for monomial, coefficient in value.terms.items():
        if all(isinstance(atom, Symbol) for atom in monomial):
            _count(terms, monomial, coefficient)
            continue
        ranges = [_atom_bounds(atom) for atom in monomial]
        if any(low is None or low < 0 for low, _ in ranges):
            return None
        if (coefficient > 0) == largest:
            ends = [_largest(atom, high) for atom, (_, high) in zip(monomial, ranges, strict=True)]
            if None in ends:
                return None
            for part, by in product(ends).terms.items():
                _count(terms, part, by * coefficient)
    return Index(terms)


def _largest(atom: Atom, high: int | None) -> Size | None:
    if isinstance(atom, Symbol):
        return index(atom)
    if high is not None:
        return high
    if isinstance(atom, (Var, Value)):
        return atom.extent - 1
    if isinstance(atom, Mod):
        return atom.divisor - 1
    least = bounds(atom.divisor)[0]
    return None if least is None or least < 1 else _without_variables(atom.dividend, largest=True)      # of what is not negative


def _from_zero(value: Index) -> Index:
    """With each symbol counted from its least value on, so that the sign of a term is that of its coefficient."""
    return value.substitute(lambda atom: index(Symbol(atom.name, 0)) + atom.low if isinstance(atom, Symbol) and atom.low else None)


def _in_range(value: Index, divisor: Index) -> bool:
    """Whether 0 <= value < divisor for certain."""
    low, high = bounds(value)
    if low is None or low < 0:
        return False
    least = bounds(divisor)[0]
    if high is not None and least is not None and high < least:
        return True
    most = _without_variables(value, largest=True)
    gap = None if most is None else bounds(divisor - most)[0]
    return gap is not None and gap > 0


# Division.

@functools.lru_cache(maxsize=1 << 14)
def _divided(dividend: Index, divisor: Index) -> tuple[Index, Index]:
    """Quotient and remainder. Rules in order: multiples of the divisor; what certainly lies within one period; a common factor."""
    if divisor == 1:
        return dividend, ZERO
    if not dividend.terms or _in_range(dividend, divisor):
        return ZERO, dividend
    if len(divisor.terms) > 1:
        whole, part = _long_division(dividend, divisor)
        return (whole, part) if _in_range(part, divisor) else (_quotient(part, divisor), _remainder(part, divisor))
    for whole, part in (_multiples(dividend, divisor, _towards_zero), _multiples(dividend, divisor, int.__floordiv__)):
        if _in_range(part, divisor):
            return whole, part
        if (by := divisor.constant) is not None:
            low, high = bounds(part)
            if low is not None and high is not None and low // by == high // by:
                return whole + low // by, part - low // by * by
    exact, rest = _multiples(dividend, divisor, _exactly)      # terms kept whole let quotient and remainder find together again
    if (least := bounds(rest)[0]) is not None and least >= 0:
        whole, part = exact, rest                               # else `part` of the rounding down, which is not negative
    for factor in _common_factors(part, divisor):
        large, small = _split(part, factor)
        if _in_range(small, factor):
            quotient, remainder = _divided(large, _split(divisor, factor)[0])
            return whole + quotient, remainder * factor + small
    return whole + _quotient(part, divisor), _remainder(part, divisor)


def _multiples(dividend: Index, divisor: Index, quotient_of: Callable[[int, int], int]) -> tuple[Index, Index]:
    """`dividend` as a multiple of `divisor`, which has one term, and a rest; `quotient_of` rounds the coefficients' quotients."""
    (inner, by), = divisor.terms.items()
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in dividend.terms.items():
        remaining = _without(monomial, inner)
        times = 0 if remaining is None else quotient_of(coefficient, by) if monomial else coefficient // by
        if times:
            whole[remaining] = times
        if coefficient != times * by:
            rest[monomial] = coefficient - times * by
    return _recombined(whole), _recombined(rest)


def _towards_zero(a: int, b: int) -> int:
    return a // b if a >= 0 else -(-a // b)


def _exactly(a: int, b: int) -> int:
    return 0 if a % b else a // b


def _long_division(dividend: Index, divisor: Index) -> tuple[Index, Index]:
    """Division of polynomials by the divisor's leading term, where the rest is known to be less than the divisor."""
    lead = max(divisor.terms, key=lambda monomial: (len(monomial), [_order(atom) for atom in monomial]))
    whole, rest = ZERO, dividend
    for _ in range(len(dividend.terms)):
        by = divisor.terms[lead]
        found = next(((remaining, coefficient // by) for monomial, coefficient in rest.terms.items()
                      if coefficient % by == 0 and (remaining := _without(monomial, lead)) is not None), None)
        if found is None:
            break
        times = Index({found[0]: found[1]})
        whole, rest = whole + times, rest - times * divisor
    return (whole, rest) if _in_range(rest, divisor) else (ZERO, dividend)


def _common_factors(part: Index, divisor: Index) -> list[Index]:
    """Products that divide the divisor and some term of `part`, largest first; the divisor itself and 1 left out."""
    if len(divisor.terms) > 1:
        return []
    (inner, by), = divisor.terms.items()
    factors: dict[Index, None] = {}
    for monomial, coefficient in part.terms.items():
        rest, shared = list(monomial), []
        for atom in inner:
            if atom in rest:
                rest.remove(atom)
                shared.append(atom)
        factors[Index({tuple(shared): math.gcd(coefficient, by)})] = None
    proper = [factor for factor in factors if factor not in (1, divisor)]
    return sorted(proper, key=lambda factor: next((len(monomial), by) for monomial, by in factor.terms.items()), reverse=True)


def _split(value: Index, factor: Index) -> tuple[Index, Index]:
    """The terms that `factor` (one term) divides, divided by it, and the others."""
    (inner, by), = factor.terms.items()
    large: dict[Monomial, int] = {}
    small: dict[Monomial, int] = {}
    for monomial, coefficient in value.terms.items():
        remaining = _without(monomial, inner)
        if remaining is not None and coefficient % by == 0:
            large[remaining] = coefficient // by
        else:
            small[monomial] = coefficient
    return Index(large), Index(small)


def _quotient(part: Index, divisor: Index) -> Index:
    inner = _single_atom(part)
    if isinstance(inner, Mod) and (times := _exact(inner.divisor, divisor)) is not None:     # x%(a*b)//a = x//a%b
        return inner.dividend // divisor % times
    quotients = [monomial[0] for monomial, coefficient in part.terms.items()
                 if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Div)]
    if len(quotients) == 1:                                                                 # (x//a + y)//b = (x + a*y)//(a*b)
        inner, = quotients
        return (inner.dividend + (part - index(inner)) * inner.divisor) // (inner.divisor * divisor)
    return index(Div(part, divisor))


def _remainder(part: Index, divisor: Index) -> Index:
    inner = _single_atom(part)
    if isinstance(inner, Mod) and _exact(inner.divisor, divisor) is not None:               # x%(a*b)%a = x%a
        return inner.dividend % divisor
    return index(Mod(part, divisor))


def _single_atom(value: Index) -> Atom | None:
    if len(value.terms) == 1:
        (monomial, coefficient), = value.terms.items()
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return None


def _exact(value: Index, divisor: Index) -> Index | None:
    """`value / divisor`, if that is a polynomial."""
    if len(divisor.terms) == 1:
        large, small = _split(value, divisor)
        return None if small.terms else large
    return index(1) if value == divisor else None


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    if not factor:
        return monomial
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _replaced(atom: Atom, replace: Callable[[Atom], Size | None]) -> Size | Atom:
    """What stands for `atom`; the atom itself where nothing changes."""
    new = replace(atom)
    if new is not None:
        return new
    if isinstance(atom, (Div, Mod)):
        dividend, divisor = atom.dividend.substitute(replace), atom.divisor.substitute(replace)
        if dividend is not atom.dividend or divisor is not atom.divisor:
            return dividend // divisor if isinstance(atom, Div) else dividend % divisor
    return atom
