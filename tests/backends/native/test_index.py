"""Index expressions: whatever the rules make of one, it has the values that arithmetic says, over all values of its variables."""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from capture.backends.native.index import (
    Atom,
    Div,
    Index,
    Mod,
    Size,
    Symbol,
    Value,
    Var,
    bounds,
    contiguous_strides,
    index,
    product,
)

S, T = Symbol("s"), Symbol("t", low=1)
SIZES = {S: (2, 3, 7), T: (1, 2, 5)}
VARIABLES = [Var("a", 1), Var("b", 4), Var("c", 6), Var("d", index(S)), Var("e", index(T) * 2)]

Tree = tuple  # ("+", tree, tree), ("//", tree, divisor), …; a leaf is an int or an atom

positive = st.one_of(st.integers(1, 12), st.sampled_from([S, T]),
                     st.tuples(st.just("*"), st.sampled_from([S, T]), st.integers(1, 4)),
                     st.tuples(st.just("*"), st.just(S), st.just(T)),
                     st.tuples(st.just("+"), st.sampled_from([S, T]), st.integers(1, 3)))
leaves = st.one_of(st.integers(-6, 24), st.sampled_from(VARIABLES), st.sampled_from([S, T]))
trees = st.recursive(leaves, lambda inner: st.one_of(
    st.tuples(st.sampled_from("+-*"), inner, inner),
    st.tuples(st.just("+"), st.tuples(st.just("*"), inner, positive), inner),
    st.tuples(st.sampled_from(["//", "%"]), inner, positive)), max_leaves=10)


def built(tree: Tree | int | Atom) -> Index:
    """The tree as an Index."""
    if not isinstance(tree, tuple):
        return index(tree)
    sign, left, right = tree[0], built(tree[1]), built(tree[2])
    return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "//": left.__floordiv__, "%": left.__mod__}[sign](right)


def meant(tree: Tree | int | Atom, values: dict[Atom, int]) -> int:
    """The tree's value by Python's arithmetic."""
    if not isinstance(tree, tuple):
        return tree if isinstance(tree, int) else values[tree]
    left, right = meant(tree[1], values), meant(tree[2], values)
    return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "//": left.__floordiv__, "%": left.__mod__}[tree[0]](right)


def value(expression: Size, values: dict[Atom, int]) -> int:
    """An Index's value, term by term."""
    total = 0
    for monomial, coefficient in index(expression).terms.items():
        for atom in monomial:
            if isinstance(atom, Div):
                coefficient *= value(atom.dividend, values) // value(atom.divisor, values)
            elif isinstance(atom, Mod):
                coefficient *= value(atom.dividend, values) % value(atom.divisor, values)
            else:
                coefficient *= values[atom]
        total += coefficient
    return total


def assignments(*expressions: Index) -> Iterator[dict[Atom, int]]:
    """All values that the variables of the expressions can have, for some values of the symbols."""
    variables = sorted(set().union(*(expression.variables() for expression in expressions)), key=str)
    for sizes in itertools.product(*SIZES.values()):
        symbols = dict(zip(SIZES, sizes, strict=True))
        for numbers in itertools.product(*(range(value(var.extent, symbols)) for var in variables)):
            yield symbols | dict(zip(variables, numbers, strict=True))


@settings(max_examples=400, derandomize=True, deadline=None)
@given(trees)
def test_simplified_values(tree: Tree) -> None:
    expression = built(tree)
    low, high = bounds(expression)
    every = [v for v in VARIABLES if v in names(tree)]
    for values in itertools.islice(assignments(expression, *map(index, every)), 300):
        expected = meant(tree, values)
        assert value(expression, values) == expected
        assert low is None or low <= expected
        assert high is None or expected <= high


def names(tree: Tree | int | Atom) -> set[Atom]:
    """The atoms at the leaves."""
    if isinstance(tree, tuple):
        return names(tree[1]) | names(tree[2])
    return set() if isinstance(tree, int) else {tree}


@settings(max_examples=200, derandomize=True, deadline=None)
@given(trees, trees)
def test_sums_and_products_are_canonical(left: Tree, right: Tree) -> None:
    a, b = built(left), built(right)
    assert a + b == b + a and hash(a + b) == hash(b + a)
    assert a * b == b * a and hash(a * b) == hash(b * a)
    assert (a + b) * (a + b) == a * a + 2 * (a * b) + b * b or has_quotients(a, b)
    assert a - a == 0 and (a + b) - b == a
    assert (a == b) == (a.terms == b.terms)


def has_quotients(*expressions: Index) -> bool:
    """Products of sums with quotients are put together in an order that matters."""
    return any(isinstance(atom, (Div, Mod)) for expression in expressions for atom in expression.atoms())


@settings(max_examples=200, derandomize=True, deadline=None)
@given(trees, st.sampled_from(VARIABLES), trees)
def test_substitution(tree: Tree, var: Var, by: Tree) -> None:
    expression, replacement = built(tree), built(by)
    result = expression.substitute(lambda atom: replacement if atom == var else None)
    used = map(index, names(tree) & set(VARIABLES))
    for values in itertools.islice(assignments(expression, replacement, index(var), *used), 100):
        inside = values | {var: value(replacement, values)}
        if 0 <= inside[var] < value(var.extent, values):        # bounds of the variable may have been used
            assert value(result, values) == value(expression, inside)


def test_substitution_of_nothing_is_the_same_object() -> None:
    expression = built(("%", ("+", VARIABLES[1], S), 3))
    assert expression.substitute(lambda atom: None) is expression


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from([2, 3, 5]), min_size=1, max_size=4), st.data())
def test_reshaped_there_and_back_is_the_same(factors: list[int], data: st.DataObject) -> None:
    shape, other = grouped(factors, data), grouped(data.draw(st.permutations(factors)), data)
    variables = [Var(f"v{axis}", extent) for axis, extent in enumerate(shape)]
    address = linear(variables, shape)
    coordinates = split(address, other)
    again = split(linear(coordinates, other), shape)
    for values in itertools.islice(assignments(address), 200):
        assert [value(a, values) for a in again] == [values[v] for v in variables]
    assert linear(coordinates, other) == address
    assert again == list(map(index, variables))


def grouped(factors: list[int], data: st.DataObject) -> list[int]:
    """A shape of so many elements."""
    shape = [1]
    for factor in factors:
        shape = shape[:-1] + [shape[-1] * factor] if shape[-1] == 1 or data.draw(st.booleans()) else [*shape, factor]
    return shape


def test_reshape_of_symbolic_sizes() -> None:
    d, k = Var("d", index(S)), Var("k", 64)
    e = Var("e", index(T))
    flat = (index(d) * index(T) + e) * 64 + k
    assert flat // (index(T) * 64) == index(d) and flat % 64 == index(k)
    assert flat // 64 % index(T) == index(e)
    assert flat // 64 // index(T) == index(d)
    assert (index(d) * (index(T) + 1) + e) // (index(T) + 1) == index(d)
    assert (index(d) * (index(T) + 1) + e) % (index(T) + 1) == index(e)
    assert bounds(index(S) - 1 - d) == (0, None)
    assert bounds(index(S) - index(S) // 2) == (0, None)
    assert (index(S) * index(T) - 1 - (index(d) * index(T) + e)) // (index(S) * index(T)) == 0


def test_rules() -> None:
    i, j, x = index(Var("i", 12)), index(Var("j", 64)), index(Var("x", 10_000))
    flat = i * 64 + j
    assert flat // 128 == i // 2
    assert flat % 128 == i % 2 * 64 + j
    assert flat // 128 * 128 + flat % 128 == flat
    assert x // 4 // 5 == x // 20
    assert x % 20 // 4 == x // 4 % 5
    assert x % 20 % 4 == x % 4
    assert (x % 20) % 20 == x % 20
    assert (11 - i) // 12 == 0 and (11 - i) % 12 == 11 - i
    assert (i + 12) // 12 == 1 and (i + 24) % 12 == i
    assert (x * 6 + 4) // 2 == x * 3 + 2
    assert x // 20 * 20 + x // 4 % 5 * 4 + x % 4 == x


def test_values_stay_opaque() -> None:
    class Computed:
        def variables(self) -> set[Var]:
            return {VARIABLES[1]}

    chosen = index(Value(Computed(), 5))
    assert bounds(chosen) == (0, 4)
    assert (chosen * 8 + 3) // 8 == chosen
    assert chosen.variables() == {VARIABLES[1]}
    assert chosen % 5 == chosen and chosen % 4 != chosen


def test_shapes() -> None:
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert contiguous_strides((2, index(S), 4)) == (index(S) * 4, 4, 1)
    assert contiguous_strides(()) == ()
    assert product(()) == 1 and product((2, index(S))) == index(S) * 2


def linear(coordinates: list[Var] | list[Index], shape: list[int]) -> Index:
    """The row-major position."""
    return sum((index(c) * stride for c, stride in zip(coordinates, contiguous_strides(shape), strict=True)), index(0))


def split(address: Index, shape: list[int]) -> list[Index]:
    """The coordinates of a row-major position."""
    return [address // stride % extent for stride, extent in zip(contiguous_strides(shape), shape, strict=True)]


def test_the_helpers_count_every_point() -> None:
    assert len(list(assignments(index(VARIABLES[1]) + VARIABLES[2]))) == 4 * 6 * math.prod(map(len, SIZES.values()))
