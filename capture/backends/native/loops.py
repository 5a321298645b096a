"""Loops of nests and kernels: cut at divisors, matched with other nests' loops, put in order, and merged where memory is
contiguous.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from capture.backends.native.index import Div, Index, Mod, Size, Value, Var, bounds, index
from capture.backends.native.ir import Kernel, Nest, Stage, Store
from capture.backends.native.rewrite import Rewriter, indices_of, stores_of

_numbers = itertools.count()


def fresh(extent: Size, prefix: str = "i") -> Var:
    """A loop variable of its own."""
    return Var(f"{prefix}{next(_numbers)}", extent)


def size_of(extent: Size) -> int | None:
    """An extent as an int, None when it is symbolic."""
    return extent if isinstance(extent, int) else extent.constant


def cut_at_divisors(nest: Nest) -> Nest:
    """A variable that occurs as `v // c` and `v % c` becomes two, so that indices are affine."""
    while True:
        cut = next(_cuts(nest), None)
        if cut is None:
            return nest
        nest, _ = split(nest, *cut)


def _cuts(nest: Nest) -> Iterable[tuple[Var, int]]:
    loops = {*nest.space, *nest.reduced}
    for expression in set(indices_of(nest.stores)):
        for atom in expression.atoms():
            if isinstance(atom, (Div, Mod)):
                divisor = atom.divisor.constant
                variable = _lone_variable(atom.dividend)
                if divisor and variable in loops:
                    extent = size_of(variable.extent)
                    if extent is not None and extent % divisor == 0 and 1 < divisor < extent:
                        yield variable, divisor


def _lone_variable(dividend: Index) -> Var | None:
    """The variable v of a dividend `v`."""
    if len(dividend.terms) == 1:
        (monomial, coefficient), = dividend.terms.items()
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Var):
            return monomial[0]
    return None


def split(nest: Nest, variable: Var, inner: int, parts: tuple[Var, Var] | None = None) -> tuple[Nest, tuple[Var, Var]]:
    """`variable` as two loops, the inner one of extent `inner`, which divides its own; `parts` are made where not given."""
    extent = size_of(variable.extent)
    assert extent is not None and extent % inner == 0
    major, minor = parts or (fresh(extent // inner), fresh(inner))
    rewriter = Rewriter({variable: index(major) * inner + index(minor)})

    def loops(old: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(v for u in old for v in ((major, minor) if u == variable else (u,)))
    return Nest(nest.name, loops(nest.space), loops(nest.reduced), rewriter.stores(nest.stores)), (major, minor)


def renamed(nest: Nest, names: dict[Var, Var]) -> Nest:
    """With variables replaced by others of the same extent."""
    rewriter = Rewriter({old: index(new) for old, new in names.items()})
    return Nest(nest.name, tuple(names.get(v, v) for v in nest.space), tuple(names.get(v, v) for v in nest.reduced),
                rewriter.stores(nest.stores))


def with_fresh_loops(nest: Nest) -> Nest:
    """With variables that no other nest has: what is equal from now on is so because it was matched."""
    return renamed(nest, {v: fresh(v.extent) for v in (*nest.space, *nest.reduced)})


def linear_terms(expression: Index) -> dict[Var, Index] | None:
    """Coefficients of the loop variables in an index that is affine in them; None when it is not. The rest is left out."""
    variables = {atom for monomial in expression.terms for atom in monomial if isinstance(atom, Var)}
    if hidden(expression, expression.variables()) or depends_by_value(expression, expression.variables()):
        return None
    return {variable: expression.coefficient(variable) for variable in variables}


def refinement(left: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]] | None:
    """How to cut two mixed-radix systems, given as (stride, extent) by growing stride, so that they become the same.

    Returns for each digit of each side the extents of its parts, smallest stride first; None when they do not fit together.
    """
    cuts: tuple[list[list[int]], list[list[int]]] = [], []
    todo = list(reversed(left)), list(reversed(right))
    open_: list[list[int]] = [[], []]
    while todo[0] and todo[1]:
        (stride, a), (other, b) = todo[0].pop(), todo[1].pop()
        if stride != other:
            return None
        part = min(a, b)
        if part == 0 or a % part or b % part:
            return None
        for side, extent in ((0, a), (1, b)):
            open_[side].append(part)
            if extent == part:
                cuts[side].append(open_[side])
                open_[side] = []
            else:
                todo[side].append((stride * part, extent // part))
    if todo[0] or todo[1] or open_[0] or open_[1]:
        return None
    return cuts


def ordered(variables: Iterable[Var], stores: Sequence[Store], last: Var | None = None) -> tuple[Var, ...]:
    """By falling stride in the first store's index, then by the strides of loads; `last` is innermost whatever its stride."""
    expressions = [stores[0].index, *indices_of(stores)]

    def key(variable: Var) -> tuple[int, ...]:
        strides = []
        for expression in expressions[:8]:
            stride = expression.coefficient(variable)
            strides.append(stride.constant if stride.constant is not None else bounds(stride)[0] or 1)
        return (variable == last, *(-abs(s) for s in strides))
    return tuple(sorted(variables, key=key))


def merged(kernel: Kernel) -> Kernel:
    """With neighbouring loops made one where every index advances through both as through one."""
    changed = True
    while changed:
        changed = False
        expressions = set(indices_of(stores_of(kernel)))
        for position, (major, minor) in enumerate(zip(kernel.outer, kernel.outer[1:])):
            new = _merge(expressions, major, minor)
            if new is not None:
                outer = (*kernel.outer[:position], new, *kernel.outer[position + 2:])
                parallel = kernel.parallel - (position + 1 < kernel.parallel)
                rewriter = Rewriter({major: 0, minor: index(new)})
                stages = tuple(replace(s, stores=rewriter.stores(s.stores)) for s in kernel.stages)
                kernel, changed = replace(kernel, outer=outer, parallel=max(parallel, 1), stages=stages), True
                break
        if not changed:
            stages = tuple(map(_merged_stage, kernel.stages))
            kernel = replace(kernel, stages=stages)
    return kernel


def _merged_stage(stage: Stage) -> Stage:
    positional = any(s.reduction in ("argmax", "argmin") for s in stage.stores)
    for position, (major, minor) in enumerate(zip(stage.inner, stage.inner[1:])):
        if (major in stage.reduced) == (minor in stage.reduced):
            new = _merge(set(indices_of(stage.stores)), major, minor)
            if new is not None and not (positional and major not in stage.reduced):
                rewriter = Rewriter({major: 0, minor: index(new)})
                inner = (*stage.inner[:position], new, *stage.inner[position + 2:])
                reduced = stage.reduced - {major, minor} | ({new} if major in stage.reduced else set())
                return _merged_stage(Stage(inner, frozenset(reduced), rewriter.stores(stage.stores)))
    return stage


def _merge(expressions: set[Index], major: Var, minor: Var) -> Var | None:
    """One loop for two neighbouring ones, which every index advances through as through both; None where some does not."""
    for expression in expressions:
        if expression.coefficient(major) != expression.coefficient(minor) * minor.extent:
            return None
        if hidden(expression, (major, minor)):
            return None
    return fresh(index(major.extent) * minor.extent if size_of(major.extent) is None or size_of(minor.extent) is None
                 else size_of(major.extent) * size_of(minor.extent))


def hidden(expression: Index, variables: Iterable[Var]) -> bool:
    """Whether a variable occurs other than as a plain factor: inside of a quotient or remainder, or squared."""
    wanted = set(variables)
    for monomial in expression.terms:
        for atom in monomial:
            if isinstance(atom, (Div, Mod)) and not wanted.isdisjoint(
                    a for a in (*atom.dividend.atoms(), *atom.divisor.atoms()) if isinstance(a, Var)):
                return True
        if sum(atom in wanted for atom in monomial) > 1:
            return True
    return False


def depends_by_value(expression: Index, variables: Iterable[Var]) -> bool:
    """Whether a computed integer within the index depends on one of the variables."""
    wanted = set(variables)
    return any(isinstance(atom, Value) and not wanted.isdisjoint(atom.expr.variables()) for atom in expression.atoms())
