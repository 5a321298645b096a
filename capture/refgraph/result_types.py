"""The types of values that each hit computes anew, where these are always the same; and which functions may raise then."""
from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from capture.operators.properties import Property, has
from capture.refgraph.effects import Replayed, Traceback, function_of
from capture.refgraph.identical import LISTS
from capture.refgraph.node import Build, Const, Display, Expr, External, RefNode, Shadow
from capture.refgraph.shapes import ask
from capture.refgraph.source import Source

# Operators that assign in place, which do no more on scalars than the plain ones.
IN_PLACE = {getattr(operator, f"i{name.strip('_')}"): getattr(operator, name) for name in (
    "add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor").split()}
# Functions whose result has always the same type …
RETURNS: dict[Any, type] = {
    **dict.fromkeys((str, repr, format, ascii, str.join, str.format, str.strip, str.lower, str.upper, str.replace, str.ljust,
                     str.rjust, str.center, str.zfill), str),
    **dict.fromkeys((bool, operator.truth, operator.not_, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
                     operator.ge, math.isnan, math.isinf, math.isfinite), bool),
    **dict.fromkeys((int, len, operator.index, torch.Tensor.__int__, math.floor, math.ceil, math.trunc), int),
    **dict.fromkeys((float, torch.Tensor.__float__, math.exp, math.sqrt, math.log, math.log2, math.log10, math.log1p, math.expm1,
                     math.sin, math.cos, math.tan, math.tanh, math.sinh, math.cosh, math.asin, math.acos, math.atan, math.atan2,
                     math.hypot, math.pow, math.fabs, math.copysign, math.degrees, math.radians), float)}
# … operators which make a string of one and anything, and those which make a number of numbers …
TEXT = frozenset((operator.mod, operator.imod, operator.concat, operator.add, operator.iadd, operator.getitem))
ARITHMETIC = frozenset((operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, operator.pos, abs,
                        operator.iadd, operator.isub, operator.imul, operator.ifloordiv, operator.imod))
DIVISION, POWER = (operator.truediv, operator.itruediv), (operator.pow, operator.ipow)
# … and functions which return one of their arguments.
CHOOSING = frozenset((min, max))
# … and functions of what a list or tuple holds.
AGGREGATING = frozenset((min, max, sum))
INTEGERS = frozenset((int, bool))
NUMBERS = INTEGERS | {float}
# What may raise for some values, though not for those of the capture.
RISKY = frozenset({operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.lshift, operator.rshift,
                   operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow, operator.ilshift, operator.irshift, int,
                   round, chr, ord, divmod, pow, torch.Tensor.__int__,
                   *(function for function in vars(math).values() if callable(function))})
# … and what may have a result of another type, or that raises only for scalars of some types.
VARIOUS = RISKY | {min, max, float, complex, format, operator.getitem}


def may_raise(op: Callable[..., Any]) -> bool:
    """Whether a function may raise for other scalars of the same types."""
    return function_of(op) in RISKY


def may_vary(op: Callable[..., Any]) -> bool:
    """Whether a function may raise, or have a result of another type, for other scalars."""
    return function_of(op) in VARIOUS


def type_of(shadow: Shadow, given: dict[Source, type]) -> type | None:
    """The type of a scalar, or None if it may differ on the next call. `given` collects the paths whose types this rests on."""
    if isinstance(shadow, Const):
        return type(shadow.value)
    if isinstance(shadow, External):
        return given.setdefault(shadow.source, type(shadow.value))
    if isinstance(shadow, Replayed):
        return shadow.returns
    if isinstance(shadow, Traceback):
        return types.TracebackType
    if not isinstance(shadow, Expr):
        return None
    op: Any = function_of(shadow.op)
    if op in RETURNS:
        return RETURNS[op]
    if op is ask:
        return bool if has(shadow.args[1].value, Property.TRUTH) else int  # type: ignore[attr-defined]
    if op is torch.Tensor.item:
        return _type_of_item(shadow.args[0])
    if op is torch.Tensor.tolist:
        return _type_of_item(shadow.args[0]) if _listed(shadow) is not None else list
    if op is operator.getitem and (tensor := _listed(shadow)) is not None:
        return _type_of_item(tensor)
    found: dict[Source, type] = {}
    kinds = [type_of(arg, found) for arg in _operands(op, shadow)]
    if op in TEXT and kinds and kinds[0] is str:
        given.update(found)
        return str
    result = _type_among_numbers(op, kinds, shadow)
    if result is not None:
        given.update(found)
    return result


def _operands(op: Callable[..., Any], shadow: Expr) -> tuple[Shadow, ...]:
    """The values that a function works on: of those which take a list or tuple, what is in there."""
    first = shadow.args[0] if shadow.args else None
    listed = op in AGGREGATING and isinstance(first, (Build, Display)) and first.cls in LISTS
    return (*first.items, *shadow.args[1:]) if listed else shadow.args  # type: ignore[union-attr]


def _listed(shadow: Shadow) -> Shadow | None:
    """The tensor whose `tolist()` has a value as an item; None if there is none."""
    depth = 0
    while isinstance(shadow, Expr) and shadow.op is operator.getitem:
        shadow, depth = shadow.args[0], depth + 1
    tensor = shadow.args[0] if isinstance(shadow, Expr) and shadow.op is torch.Tensor.tolist else None
    return tensor if isinstance(tensor, RefNode) and tensor.real is not None and tensor.real.dim() == depth else None


def _type_of_item(tensor: Shadow) -> type | None:
    real = tensor.real if isinstance(tensor, RefNode) else None
    if real is None:
        return None
    if real.dtype == torch.bool:
        return bool
    return complex if torch.Tensor.is_complex(real) else float if torch.Tensor.is_floating_point(real) else int


def _type_among_numbers(op: Callable[..., Any], kinds: list[type | None], shadow: Expr) -> type | None:
    """The type of what an operator makes of numbers of these types."""
    if not NUMBERS.issuperset(kinds):
        return None
    exact = int if INTEGERS.issuperset(kinds) else float
    if op in ARITHMETIC or op is sum:
        return exact
    if op in DIVISION:
        return float
    if op in CHOOSING:
        return kinds[0] if len(set(kinds)) == 1 else None
    if op is round:
        return int if len(kinds) == 1 else exact if kinds[0] is not bool else int
    if op in POWER:                          # a negative exponent of an integer makes a float, a fraction may make a complex
        exponent = shadow.args[1]
        return exact if isinstance(exponent, Const) and type(exponent.value) is int and exponent.value >= 0 else None
    return None
