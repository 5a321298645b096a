"""Torch's symbolic sizes as `Index` expressions over symbols. Taken apart by the names of sympy's classes: importing it takes long,
and torch does when it must."""
from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch

from capture.backends.native.extents import Condition
from capture.backends.native.index import Index, Size, Symbol, index, plain
from capture.backends.native.ir import Expr, constant, op, position
from capture.backends.native.signature import Unsupported

RELATIONS = {"Equality": "==", "Unequality": "!=", "LessThan": "<=", "StrictLessThan": "<", "GreaterThan": ">=",
             "StrictGreaterThan": ">"}


def as_size(value: int | torch.SymInt, symbols: Mapping[str, Symbol]) -> Size:
    """A size as an expression over the symbols of these names. Raises Unsupported if it does not follow from these by integer
    arithmetic.

    It becomes a condition of the trace which of two sizes is the greater one; that a quotient or remainder is more than 1 (or less
    than -1, as where one rounds up), or which number between it is, since sizes of 0 and 1 are treated differently; and that a
    power is not too great.
    """
    return value if isinstance(value, int) else plain(_Reader(value.node.shape_env, symbols).size(value.node.expr))


def assume_zero_or_one(size: int | torch.SymInt) -> None:
    """Makes it a condition of the trace that a size is 0 or 1, if it is in the call that is compiled for."""
    if isinstance(size, torch.SymInt) and not size.node.expr.is_Symbol and size.node.hint in (0, 1):
        bool(size == size.node.hint)


def as_number(value: torch.SymFloat, symbols: Mapping[str, Symbol]) -> Expr:
    """What is calculated of sizes, as an expression of float64. Raises Unsupported."""
    return _Reader(value.node.shape_env, symbols).number(value.node.expr)


def conditions(env: Any, expr: Any, symbols: Mapping[str, Symbol]) -> list[Condition]:
    """The conditions that a trace depends on: a relation of sizes, or several that must all hold. If one of several must hold, one
    that holds in the call that is compiled for. Raises Unsupported."""
    kind = expr.func.__name__
    if kind == "And":
        return [condition for arg in expr.args for condition in conditions(env, arg, symbols)]
    if kind == "Or":
        return conditions(env, next(arg for arg in expr.args if env.evaluate_expr(arg)), symbols)
    if kind in RELATIONS:
        left, right = (_Reader(env, symbols, decides=False).size(arg) for arg in expr.args)
        return [Condition(RELATIONS[kind], left, right)]
    raise Unsupported(f"what is computed depends on sizes: {expr}")


class _Reader:
    """Reads sympy's form. env: the trace's. decides: whether it may add conditions to these."""

    def __init__(self, env: Any, symbols: Mapping[str, Symbol], decides: bool = True) -> None:
        self.env, self.symbols, self.decides = env, symbols, decides

    def size(self, expr: Any) -> Index:
        kind = expr.func.__name__
        if expr.is_Integer:
            return index(int(expr))
        if expr.is_Symbol:
            if str(expr) not in self.symbols:
                raise Unsupported(f"the size {expr} is not that of an input")
            return index(self.symbols[str(expr)])
        if kind in ("Pow", "PowByNatural") and expr.args[1].is_Integer and int(expr.args[1]) > 0:
            if self.decides and not self.env.evaluate_expr(expr <= EXACT):
                raise Unsupported(f"a number as great as {expr}")
            return functools.reduce(operator.mul, [self.size(expr.args[0])] * int(expr.args[1]))
        if kind in ("Max", "Min"):
            return self.size(self._chosen(kind, expr.args))
        if self.decides and (kind in ROUNDING or kind in WHOLE_PART) and (near := self._near_zero(expr)) is not None:
            return index(near)
        if kind in WHOLE_PART:
            return self._whole_part(expr)
        operation = OPERATIONS.get(kind)
        if operation is None:
            raise Unsupported(f"the size {expr}")
        return functools.reduce(operation, map(self.size, expr.args))

    def _near_zero(self, expr: Any) -> int | None:
        """Which of -1, 0 and 1 a quotient is, in the call that is compiled for and in all others; None if it is none of them."""
        if self.env.evaluate_expr(expr > 1) or self.env.evaluate_expr(expr < -1):
            return None
        return next(number for number in (1, 0, -1) if self.env.evaluate_expr(expr >= number))

    def _whole_part(self, expr: Any) -> Index:
        """The whole part of a size times a factor, such as a half, which calculations with float64 give exactly."""
        product, = expr.args
        factor, *sizes = product.args if product.func.__name__ == "Mul" else [product]
        ratio = Fraction(float(factor)) if factor.is_Float and factor > 0 else Fraction(0)
        known = len(sizes) == 1 and sizes[0].func.__name__ == "ToFloat" and 0 < max(ratio.as_integer_ratio()) <= MOST_OF_A_RATIO
        if not known or not self.env.evaluate_expr(expr >= 0):
            raise Unsupported(f"the size {expr}")
        return self.size(sizes[0].args[0]) * ratio.numerator // ratio.denominator

    def _chosen(self, kind: str, parts: Sequence[Any]) -> Any:
        """The greatest or the least, as it is in the call that is compiled for."""
        chosen, *rest = parts
        for part in rest:
            if self.env.evaluate_expr(part > chosen if kind == "Max" else part < chosen):
                chosen = part
        return chosen

    def number(self, expr: Any) -> Expr:
        kind = expr.func.__name__
        if expr.is_Float or expr.is_Integer or expr.is_Rational:
            return constant(float(expr), torch.float64)
        if kind in ("ToFloat", "Identity"):
            return self.number(expr.args[0])
        if kind in NUMBERS and (kind not in OPERATIONS or not expr.is_integer):
            parts = map(self.number, expr.args)
            return functools.reduce(lambda left, right: op(NUMBERS[kind], torch.float64, left, right), parts)
        if kind == "OpaqueUnaryFn_sqrt":
            return op("sqrt", torch.float64, self.number(expr.args[0]))
        return op("to", torch.float64, position(self.size(expr)))


ROUNDING: dict[str, Callable[[Index, Index], Index]] = {
    "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv, "Mod": operator.mod, "PythonMod": operator.mod}
WHOLE_PART = ("TruncToInt", "FloorToInt")       # of what is positive, they are one
OPERATIONS: dict[str, Callable[[Index, Index], Index]] = {"Add": operator.add, "Mul": operator.mul, **ROUNDING}
EXACT = 2**53       # up to here, powers of sizes are exact as float64, and no int64 overflows
MOST_OF_A_RATIO = 1024      # numerator or denominator: no product with a size rounds
NUMBERS = {"Add": "add", "Mul": "mul", "IntTrueDiv": "div", "FloatTrueDiv": "div", "FloatPow": "pow"}
