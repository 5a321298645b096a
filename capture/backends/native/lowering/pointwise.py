"""Pointwise operators: arithmetic, comparisons, logic, and mathematical functions. One line per operator."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from capture.backends.native.index import Index, bounds
from capture.backends.native.ir import Constant, Expr, Position
from capture.backends.native.lowering.elementwise import apply, check_number, pointwise, spread
from capture.backends.native.lowering.lazy import Lazy
from capture.backends.native.lowering.promotion import Kind, promoted
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import ACCUMULATE, Number, Scalar, call, choose, number, to, where
from capture.backends.native.ops import INTEGERS
from capture.torch_versions import VERSION

aten, prims = torch.ops.aten, torch.ops.prims

FLOAT = Kind.INT_TO_FLOAT
BOOL = Kind.ALWAYS_BOOL


def _scaled(x: Scalar, alpha: Number | Scalar) -> Scalar:
    """`x * alpha`, the factor 1 left out."""
    return x if isinstance(alpha, (int, float)) and alpha == 1 else x * alpha


def _product_added(x: Scalar, y: Scalar | Number, z: Scalar) -> Scalar:
    """`x * y + z`, rounded as in eager mode."""
    return call("muladd", x, y, z) if x.dtype.is_floating_point else x * y + z


def _added(x: Scalar, y: Scalar, alpha: Number | Scalar) -> Scalar:
    """`x + y * alpha`."""
    return x + y if isinstance(alpha, (int, float)) and alpha == 1 else _product_added(y, alpha, x)


def _subtracted(x: Scalar, y: Scalar, alpha: Number | Scalar) -> Scalar:
    return x - y if isinstance(alpha, (int, float)) and alpha == 1 else _product_added(y, -alpha, x)


def _interpolated(x: Scalar, y: Scalar, weight: Scalar) -> Scalar:
    return where(call("abs", weight) < 0.5, _product_added(weight, y - x, x), _product_added(weight - 1, y - x, y))


def _unless_bool(name: str, x: Scalar) -> Scalar:
    return x if x.dtype == torch.bool else call(name, x)


def _as_bool(x: Scalar) -> Scalar:
    return x.to(torch.bool)


def _divided(name: str, x: Scalar, y: Scalar) -> Any:
    """A division that rounds, or its remainder. Of integers it may raise, so that only known divisors are divided by here."""
    known = isinstance(y.expr, Constant) and y.expr.value != 0 or (
        isinstance(y.expr, Position) and (least := bounds(y.expr.index)[0]) is not None and least > 0)
    return call(name, x, y) if known or x.dtype.is_floating_point else NotImplemented


# Arithmetic.

pointwise(aten.add, formula=lambda x, y, alpha=1: _added(x, y, alpha), operands=(0, 1), rounded=(2,))
pointwise(aten.sub, formula=lambda x, y, alpha=1: _subtracted(x, y, alpha), operands=(0, 1), rounded=(2,))
pointwise(aten.rsub, formula=lambda x, y, alpha=1: _subtracted(y, x, alpha), operands=(0, 1), rounded=(2,))
pointwise(aten.mul, formula=lambda x, y: x * y, exact=(1,))
pointwise(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, formula=lambda x, y: x / y, kind=FLOAT, exact=(1,))
pointwise(aten.remainder, formula=lambda x, y: _divided("remainder", x, y))
pointwise(aten.fmod, formula=lambda x, y: _divided("fmod", x, y))
pointwise(aten.neg, formula=lambda x: -x)
pointwise(aten.abs, formula=lambda x: _unless_bool("abs", x))
pointwise(aten.square, formula=lambda x: x * x)
pointwise(aten.sign, aten.sgn, formula=lambda x: _unless_bool("sign", x))
pointwise(aten.maximum, formula=lambda x, y: call("maximum", x, y))
pointwise(aten.minimum, formula=lambda x, y: call("minimum", x, y))
pointwise(aten.fmax, formula=lambda x, y: call("fmax", x, y))
pointwise(aten.fmin, formula=lambda x, y: call("fmin", x, y))
pointwise(aten.addcmul, formula=lambda x, a, b, value=1: _product_added(_scaled(a, value), b, x))
pointwise(aten.addcdiv, formula=lambda x, a, b, value=1: x + _scaled(a, value) / b)
pointwise(aten.lerp, formula=_interpolated, exact=(2,))


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode, numbers=True)
def divide(call_: Call, x: Any, y: Any, *, rounding_mode: str | None = "floor") -> Any:
    if rounding_mode is None:
        return apply(call_, lambda x, y: x / y, FLOAT, [x, y], (0, 1), exact=(1,))
    if call_.result.dtype in ACCUMULATE and isinstance(y, Lazy) and y.shape:
        return NotImplemented               # eager mode rounds each step to the narrow dtype
    name = {"floor": "floordiv", "trunc": "truncdiv"}[rounding_mode]
    return apply(call_, lambda x, y: _divided(name, x, y), Kind.DEFAULT, [x, y], (0, 1), exact=(1,))


def _power(x: Scalar, exponent: Scalar, value: Number | None, narrow: torch.dtype | None) -> Scalar:
    """eager's special cases of constant exponents. narrow: what it rounds each step to; for float16 it has no cases."""
    square = x * x
    if narrow == torch.bfloat16:
        square = square.to(narrow).to(x.dtype)
    if value == 2:
        return x * x
    if value == 3:
        return square * x
    if x.dtype.is_floating_point and (value in (1, -1, -2) or value in (0.5, -0.5) and narrow != torch.float16):
        return {0.5: lambda: call("sqrt", x), -0.5: lambda: call("rsqrt", x), 1: lambda: x,
                -1: lambda: call("reciprocal", x), -2: lambda: call("reciprocal", square)}[value]()
    return call("pow", x, exponent)


@lowers(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar, numbers=True)
def power(call_: Call, x: Any, exponent: Any) -> Any:
    varies = any(isinstance(value, Lazy) and value.number for value in (x, exponent))
    if call_.result.dtype == torch.bool or varies and not call_.result.dtype.is_floating_point:     # a negative one may raise
        return NotImplemented
    value = None if isinstance(exponent, Lazy) else exponent
    narrow = call_.result.dtype if call_.result.dtype in ACCUMULATE else None
    return apply(call_, lambda a, b: _power(a, b, value, narrow), Kind.DEFAULT, [x, exponent], (0, 1))


# Rounding. The identity on integers.

def _rounded(x: Scalar, decimals: int = 0) -> Any:
    if decimals == 0:
        return call("round", x)
    factor = 10.0 ** abs(decimals)
    return call("round", x * factor) / factor if decimals > 0 else call("round", x / factor) * factor


pointwise(aten.floor, formula=lambda x: call("floor", x))
pointwise(aten.ceil, formula=lambda x: call("ceil", x))
pointwise(aten.trunc, formula=lambda x: call("trunc", x))
pointwise(aten.round, formula=_rounded, operands=(0,))
pointwise(aten.frac, formula=lambda x: x - call("trunc", x))

# Functions of one argument: the operator and the scalar operation have one name.

for _name in ("sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sigmoid sin cos tan asin acos atan sinh cosh tanh "
              "asinh acosh atanh erf erfc erfinv lgamma digamma").split():
    pointwise(getattr(aten, _name), formula=lambda x, name=_name: call(name, x), kind=FLOAT, operands=(0,))

pointwise(aten.deg2rad, formula=lambda x: x * (math.pi / 180), kind=FLOAT)
pointwise(aten.rad2deg, formula=lambda x: x * (180 / math.pi), kind=FLOAT)
pointwise(aten.sinc, formula=lambda x: where(x.eq(0), 1.0, call("sin", x * math.pi) / (x * math.pi)), kind=FLOAT)


def _logit(x: Scalar, eps: float | None) -> Scalar:
    if eps is not None:
        x = where(x < eps, eps, where(x > 1 - eps, 1 - eps, x))
    return call("log", x / (1 - x))


def _nan_to_num(x: Scalar, nan: float | None, high: float | None, low: float | None) -> Scalar:
    if not x.dtype.is_floating_point:
        return x
    limits = torch.finfo(x.dtype)
    high, low = limits.max if high is None else high, limits.min if low is None else low
    return where(call("isnan", x), nan or 0.0, where(x.eq(math.inf), high, where(x.eq(-math.inf), low, x)))


pointwise(aten.logit, formula=_logit, kind=FLOAT, operands=(0,))


@lowers(aten.nan_to_num.default)
def nan_to_num(call_: Call, x: Lazy, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    if x.dtype in ACCUMULATE:          # the greatest number is that of the narrow type
        return NotImplemented
    return apply(call_, _nan_to_num, Kind.DEFAULT, [x, nan, posinf, neginf], (0,))


# Functions of two arguments.

def _times_log(x: Scalar, y: Scalar, log: str) -> Scalar:
    return where(call("isnan", y), math.nan, where(x.eq(0), 0.0, x * call(log, y)))


pointwise(aten.atan2, formula=lambda y, x: call("atan2", y, x), kind=FLOAT)
pointwise(aten.gcd, formula=lambda x, y: call("gcd", x, y))
pointwise(aten.hypot, formula=lambda x, y: call("hypot", x, y))
pointwise(aten.copysign, formula=lambda x, y: call("copysign", x, y), kind=FLOAT)
pointwise(aten.nextafter, kind=Kind.NO_OPMATH,
          formula=lambda x, y: NotImplemented if x.dtype in ACCUMULATE else call("nextafter", x, y))
pointwise(aten.xlogy, formula=lambda x, y: _times_log(x, y, "log"), kind=FLOAT)
pointwise(aten.special_xlog1py, formula=lambda x, y: _times_log(x, y, "log1p"), kind=FLOAT)
pointwise(aten.heaviside, formula=lambda x, y: where(x.eq(0), y, (x > 0).to(x.dtype)))


def _log_add(x: Scalar, y: Scalar, log: str) -> Scalar:
    greater, less = call("maximum", x, y), call("minimum", x, y)
    one = call("log1p", call("exp", less - greater)) if log == "log1p" else call("log2", 1 + call("exp2", less - greater))
    return where(call("isinf", x) & x.eq(y), x, greater + one)


pointwise(aten.logaddexp, formula=lambda x, y: _log_add(x, y, "log1p"))
pointwise(aten.logaddexp2, formula=lambda x, y: _log_add(x, y, "log2"))

# Comparisons and tests.

for _name in "eq ne lt le gt ge".split():
    pointwise(getattr(aten, _name), formula=lambda x, y, name=_name: call(name, x, y), kind=BOOL)
for _name in "isnan isinf signbit".split():
    pointwise(getattr(aten, _name), formula=lambda x, name=_name: call(name, x), kind=BOOL)
pointwise(aten.isfinite, formula=lambda x: ~(call("isnan", x) | call("isinf", x)), kind=BOOL)
pointwise(aten.isposinf, formula=lambda x: call("isinf", x) & (x > 0), kind=BOOL)
pointwise(aten.isneginf, formula=lambda x: call("isinf", x) & (x < 0), kind=BOOL)

# Bits and logic.

for _name in "and or xor".split():
    pointwise(getattr(aten, f"bitwise_{_name}"), formula=lambda x, y, name=_name: call(name, x, y))
    pointwise(getattr(aten, f"logical_{_name}"), formula=lambda x, y, name=_name: call(name, _as_bool(x), _as_bool(y)), kind=BOOL)
pointwise(aten.bitwise_not, formula=lambda x: ~x)
pointwise(aten.logical_not, formula=lambda x: ~_as_bool(x), kind=BOOL)
pointwise(aten.bitwise_left_shift, aten.__lshift__, formula=lambda x, y: call("lshift", x, y))
pointwise(aten.bitwise_right_shift, aten.__rshift__, formula=lambda x, y: call("rshift", x, y))

# Choice.

@lowers(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar, numbers=True)
def where_(call_: Call, condition: Lazy, x: Any, y: Any) -> Any:
    dtype = promoted([x, y], Kind.DEFAULT).result
    for value in (x, y):
        if isinstance(value, Lazy) and value.number:
            check_number(call_, value, dtype, operand=True)
    numbers = {n: number(v, dtype) for n, v in enumerate((x, y)) if not isinstance(v, Lazy)}

    def compute(args: Sequence[Expr]) -> Expr:
        given = iter(args[1:])
        yes, no = (numbers[n] if n in numbers else to(next(given), dtype) for n in range(2))
        return choose(to(args[0], torch.bool), yes, no)
    return spread(call_.builder, [v for v in (condition, x, y) if isinstance(v, Lazy)], call_.result.shape, compute, dtype, 1)


def _clamped(x: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
    x = x if low is None else call("maximum", x, low)
    return x if high is None else call("minimum", x, high)


def _clamped_by_numbers(x: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
    """Comparisons leave NaN as it is."""
    x = x if low is None else where(x < low, low, x)
    return x if high is None else where(x > high, high, x)


pointwise(aten.clamp.Tensor, formula=_clamped)
pointwise(aten.clamp_min.Tensor, formula=lambda x, low: _clamped(x, low, None))
pointwise(aten.clamp_max.Tensor, formula=lambda x, high: _clamped(x, None, high))


@lowers(aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, numbers=True)
def clamp(call_: Call, x: Lazy, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Any:
    low, high = (low if min is None else min), (high if max is None else max)
    if call_.op is aten.clamp_max.default:
        low, high = None, low if high is None else high
    return clamped(call_, x, low, high)


def clamped(call_: Call, x: Lazy, low: Any, high: Any) -> Any:
    """`x` within limits that are numbers, or None."""
    low, high = limits(promoted([limit for limit in (x, low, high) if limit is not None], Kind.DEFAULT).result, low, high)
    by_nan = any(isinstance(limit, float) and math.isnan(limit) for limit in (low, high))
    return apply(call_, _clamped if by_nan else _clamped_by_numbers, Kind.DEFAULT, [x, low, high], (0, 1, 2))


def limits(dtype: torch.dtype, low: Any, high: Any) -> tuple[Any, Any]:
    """Limits as eager mode takes them: since torch 2.15 one that an integer type cannot hold limits nothing; it wrapped before."""
    if VERSION >= (2, 15) and dtype in INTEGERS:
        low = max(low, torch.iinfo(dtype).min) if isinstance(low, (int, float)) else low
        high = min(high, torch.iinfo(dtype).max) if isinstance(high, (int, float)) else high
    return low, high


# Conversions and copies.

@lowers(aten._to_copy.default)
def to_copy(call_: Call, x: Lazy, **kwargs: Any) -> Any:
    if kwargs.get("device") not in (None, call_.result.device) or kwargs.get("non_blocking") or kwargs.get("pin_memory"):
        return NotImplemented
    if call_.node.args[0].meta["val"].device.type != "cpu" == call_.result.device.type:     # also of a single number
        return NotImplemented
    return convert_element_type(call_, x, call_.result.dtype)


@lowers(prims.convert_element_type.default)
def convert_element_type(call_: Call, x: Lazy, dtype: torch.dtype) -> Lazy:
    return spread(call_.builder, [x], x.shape, lambda args: to(args[0], dtype), dtype, int(x.dtype != dtype))


@lowers(aten.clone.default, aten.lift_fresh_copy.default, aten.contiguous.default)
def clone(call_: Call, x: Lazy, **kwargs: Any) -> Lazy:
    return spread(call_.builder, [x], x.shape, lambda args: args[0], x.dtype, 0)


@lowers(aten.copy.default)
def copy(call_: Call, x: Lazy, source: Lazy | Number | Index, non_blocking: bool = False) -> Lazy:
    """Of a number, too, which is converted as the tensor that stands for it would be."""
    if not isinstance(source, Lazy):
        wide = {bool: torch.bool, float: torch.float64}.get(type(source), torch.int64)
        element = number(source, wide)
        source = Lazy((), wide, (), lambda place: element)
    return spread(call_.builder, [source], x.shape, lambda args: to(args[0], x.dtype), x.dtype, 1)


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor, numbers=True)
def masked_fill(call_: Call, x: Lazy, mask: Lazy, value: Any) -> Lazy:
    dtype = x.dtype
    if isinstance(value, Lazy) and value.number:
        check_number(call_, value, dtype, operand=False)
    values = [x, mask] + ([value] if isinstance(value, Lazy) else [])
    return spread(call_.builder, values, call_.result.shape,
                  lambda args: choose(args[1], to(args[2], dtype) if len(args) > 2 else number(value, dtype), args[0]), dtype, 1)
