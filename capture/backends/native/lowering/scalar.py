"""Scalar expressions written as formulas: `x * (1 + (-x).exp())` builds `ir.Expr` nodes.

Operands of an operator have one dtype; Python numbers take that of the other operand.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from capture.backends.native.index import Index, Size, Value, bounds, index
from capture.backends.native.ir import Constant, Expr, Load, Op, Position, constant, intern, op, position
from capture.backends.native.ops import ACCUMULATE, INTEGERS, OPS

Number = bool | int | float
TESTS = frozenset("eq ne lt le gt ge isnan isinf signbit".split())
DIVISIONS = frozenset("floordiv truncdiv remainder fmod".split())
EXACT = 1 << 24         # up to which integers are float32 numbers
LOGICAL = {"add": "or", "mul": "and", "maximum": "or", "minimum": "and"}      # what arithmetic of booleans is


class Scalar:
    """An expression with Python's operators. Comparisons are those of torch, `==` and `!=` are the methods `eq` and `ne`."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    @property
    def dtype(self) -> torch.dtype:
        return self.expr.dtype

    def __add__(self, other: Scalar | Number) -> Scalar:
        return call("add", self, other)

    def __radd__(self, other: Number) -> Scalar:
        return call("add", other, self)

    def __sub__(self, other: Scalar | Number) -> Scalar:
        return call("sub", self, other)

    def __rsub__(self, other: Number) -> Scalar:
        return call("sub", other, self)

    def __mul__(self, other: Scalar | Number) -> Scalar:
        return call("mul", self, other)

    def __rmul__(self, other: Number) -> Scalar:
        return call("mul", other, self)

    def __truediv__(self, other: Scalar | Number) -> Scalar:
        return call("div", self, other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return call("div", other, self)

    def __neg__(self) -> Scalar:
        return call("neg", self)

    def __lt__(self, other: Scalar | Number) -> Scalar:
        return call("lt", self, other)

    def __le__(self, other: Scalar | Number) -> Scalar:
        return call("le", self, other)

    def __gt__(self, other: Scalar | Number) -> Scalar:
        return call("gt", self, other)

    def __ge__(self, other: Scalar | Number) -> Scalar:
        return call("ge", self, other)

    def __and__(self, other: Scalar | Number) -> Scalar:
        return call("and", self, other)

    def __or__(self, other: Scalar | Number) -> Scalar:
        return call("or", self, other)

    def __invert__(self) -> Scalar:
        return call("not", self)

    def eq(self, other: Scalar | Number) -> Scalar:
        return call("eq", self, other)

    def ne(self, other: Scalar | Number) -> Scalar:
        return call("ne", self, other)

    def to(self, dtype: torch.dtype) -> Scalar:
        return Scalar(to(self.expr, dtype))

    def __getattr__(self, name: str) -> Callable[..., Scalar]:
        """Any other operation, by its name in `ops.py`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: call(name, self, *args)


def call(name: str, *args: Scalar | Number) -> Scalar:
    """The operation `name`. At least one argument is a Scalar; its dtype is that of all, and, but for tests, of the result."""
    dtype = next(arg.dtype for arg in args if isinstance(arg, Scalar))
    if dtype == torch.bool:
        name = LOGICAL.get(name, name)
    exprs = tuple(arg.expr if isinstance(arg, Scalar) else constant(arg, dtype) for arg in args)
    if dtype == torch.int64 and len(exprs) == 2 and (known := _positions(name, *exprs)) is not None:
        return Scalar(known)
    return Scalar(op(name, torch.bool if name in TESTS else dtype, *exprs))


def where(condition: Scalar, yes: Scalar | Number, no: Scalar | Number) -> Scalar:
    """`yes` where the condition (bool) is true, else `no`; at least one of these is a Scalar."""
    dtype = next(arg.dtype for arg in (yes, no) if isinstance(arg, Scalar))
    a, b = (arg.expr if isinstance(arg, Scalar) else constant(arg, dtype) for arg in (yes, no))
    return Scalar(choose(condition.expr, a, b))


def choose(condition: Expr | None, yes: Expr, no: Expr) -> Expr:
    """As `where`, on expressions; a condition of None is always true."""
    if condition is None or yes is no:
        return yes
    if isinstance(condition, Constant):
        return yes if condition.value else no
    wide = ACCUMULATE.get(yes.dtype, yes.dtype)
    return to(op("where", wide, condition, to(yes, wide), to(no, wide)), yes.dtype)


def to(expr: Expr, dtype: torch.dtype) -> Expr:
    """`expr` converted as eager does. Numbers are converted now, where that is certain to be exact."""
    if expr.dtype == dtype:
        return expr
    if isinstance(expr, Op) and expr.name == "to" and isinstance(expr.args[0], Constant) and (
            ACCUMULATE.get(expr.dtype) == dtype == expr.args[0].dtype):
        return expr.args[0]         # a narrow constant, which `number` has rounded
    if isinstance(expr, Constant) and dtype in ACCUMULATE and (isinstance(expr.value, float) or abs(expr.value) <= EXACT):
        return number(expr.value, dtype)
    if isinstance(expr, Constant) and not isinstance(expr.value, float) and abs(expr.value) < 128 and dtype.itemsize >= 4 and (
            dtype != torch.bool):
        return constant(expr.value, dtype)
    return op("to", dtype, expr)


def number(value: Number | Index, dtype: torch.dtype) -> Expr:
    """A Python number, or a size, as eager converts it to `dtype`: to a narrow one, by way of the wide constant of that value."""
    if isinstance(value, Index):
        return to(position(value), dtype)
    if dtype in ACCUMULATE:
        wide = ACCUMULATE[dtype]
        return op("to", dtype, constant(nearest(value, dtype), wide))
    if dtype in INTEGERS and isinstance(value, int):
        value = (value - torch.iinfo(dtype).min) % (1 << 8 * dtype.itemsize) + torch.iinfo(dtype).min       # it wraps
    return constant(value, dtype)


def nearest(value: Number, dtype: torch.dtype) -> Number:
    """A Python number rounded to a narrow `dtype`; of others nothing is taken."""
    rounded = torch.tensor(value, dtype=torch.float64).to(dtype).item() if dtype in ACCUMULATE else value
    return value if rounded == value else rounded


def linear(expr: Expr) -> Index | None:
    """The index expression that an int64 expression is, where it is one."""
    if expr.dtype != torch.int64:
        return None
    if isinstance(expr, Position):
        return expr.index
    return index(expr.value) if isinstance(expr, Constant) else None


def _positions(name: str, left: Expr, right: Expr) -> Expr | None:
    """Sums and products of positions are positions."""
    if name not in ("add", "sub", "mul") or (a := linear(left)) is None or (b := linear(right)) is None:
        return None
    return position(a + b if name == "add" else a - b if name == "sub" else a * b)


def both(*conditions: Expr | None) -> Expr | None:
    """The conjunction; None stands for true."""
    given = list(dict.fromkeys(c for c in conditions if c is not None))
    if not given:
        return None
    result = given[0]
    for condition in given[1:]:
        result = op("and", torch.bool, result, condition)
    return next((c for c in given if isinstance(c, Constant) and not c.value), result)


def at_least(value: Index, low: Size) -> Expr | None:
    """The condition `value >= low`, None where it is known to hold."""
    least, most = bounds(value - low)
    if least is not None and least >= 0:
        return None
    return (constant(False, torch.bool) if most is not None and most < 0
            else op("ge", torch.bool, position(value), position(index(low))))


def below(value: Index, high: Size) -> Expr | None:
    """The condition `value < high`, None where it is known to hold."""
    least, most = bounds(value - high)
    if most is not None and most < 0 or _spans(value, high):
        return None
    return (constant(False, torch.bool) if least is not None and least >= 0
            else op("lt", torch.bool, position(value), position(index(high))))


def as_index(expr: Expr, extent: Size, wrap: bool, error: type[Exception] = IndexError) -> Index:
    """The integer `expr` as an index into a dimension of size `extent`; with `wrap`, negative ones count from its end.
    `error`: what eager mode raises for an index out of range."""
    expr = to(expr, torch.int64)
    known = linear(expr)
    positive = known is not None and at_least(known, 0) is None
    if known is not None and positive and below(known, extent) is None:
        return known
    if wrap and not positive:
        negative = op("lt", torch.bool, expr, constant(0, torch.int64))
        wrapped = call("add", Scalar(expr), Scalar(position(index(extent)))).expr
        expr = choose(negative, wrapped, expr)
    return index(Value(expr, extent, error))


def _spans(value: Index, extent: Size) -> bool:
    """Whether `value` is a loop variable of this very extent."""
    (monomial, coefficient), = value.terms.items() if len(value.terms) == 1 else (((), 0),)
    return coefficient == 1 and len(monomial) == 1 and index(getattr(monomial[0], "extent", -1)) == index(extent)


def masked(root: Expr, mask: Expr | None) -> Expr:
    """`root` with nothing read, and nothing computed that can fail, where `mask` is false. A mask says that loop variables are in
    some range: loads that do not depend on these need none."""
    if mask is None:
        return root
    if isinstance(mask, Constant):
        return root if mask.value else number(0, root.dtype)
    restricted = mask.variables()
    done: dict[Expr, Expr] = {}

    def visit(expr: Expr) -> Expr:
        new = done.get(expr)
        if new is None:
            new = done[expr] = rebuilt(expr)
        return new

    def place(old: Index) -> Index:
        if not any(isinstance(atom, Value) for atom in old.atoms()):
            return old
        return old.substitute(lambda atom: index(replace(atom, expr=visit(atom.expr))) if isinstance(atom, Value) else None)

    def rebuilt(expr: Expr) -> Expr:
        if isinstance(expr, Load):
            apart = restricted and restricted.isdisjoint(expr.index.variables())
            where = expr.mask if apart else both(mask, expr.mask)
            return intern(Load, expr.buffer, place(expr.index), expr.dtype, where)
        if isinstance(expr, Position):
            return position(place(expr.index), expr.dtype)
        if isinstance(expr, Op):
            args: list[Any] = list(map(visit, expr.args))
            if expr.name in DIVISIONS and not expr.dtype.is_floating_point:
                args[1] = choose(mask, args[1], constant(1, args[1].dtype))
            return op(expr.name, expr.dtype, *args)
        return expr

    return visit(root)


def weigh(root: Expr) -> int:
    """How much work an expression is, without its loads."""
    seen: set[Expr] = set()
    stack, total = [root], 0
    while stack:
        expr = stack.pop()
        if expr in seen:
            continue
        seen.add(expr)
        stack.extend(expr.children())
        if isinstance(expr, Op):
            total += OPS[expr.name].cost
    return total
