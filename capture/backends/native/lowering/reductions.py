"""Lowering of reductions and scans."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from capture.backends.native.index import ZERO, Index, product
from capture.backends.native.ir import Expr, constant, position, reduction_dtype
from capture.backends.native.lowering.builder import Builder, broadcast, elementwise
from capture.backends.native.lowering.lazy import Lazy, computed, viewed
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import ACCUMULATE, Scalar, below, masked, to
from capture.backends.native.lowering.scalar import call as scalar
from capture.backends.native.lowering.views import wrapped

aten = torch.ops.aten

Dims = int | Sequence[int] | None


def _dims(dims: Dims, x: Lazy, empty_is_all: bool = True) -> list[int]:
    """The dimensions meant, counted from the front."""
    if dims is None or (not isinstance(dims, int) and not dims and empty_is_all):
        return list(range(len(x.shape)))
    return sorted({wrapped(d, len(x.shape)) for d in ([dims] if isinstance(dims, int) else dims)} if x.shape else [])


def reduced(builder: Builder, x: Lazy, dims: Sequence[int], reduction: str, formula: Callable[[Expr], Expr] = lambda e: e) -> Lazy:
    """`formula` of the elements of `x`, combined over `dims`, which stay with size 1. A sum of float32 is a float64."""
    dims = [d for d in dims if x.shape[d] != 1]
    dtype = _dtype_of(x, formula)
    if reduction == "sum" and dtype == torch.float32:
        reduction = "total"
    if not dims:
        shape = x.shape
        if reduction.startswith("arg"):
            return Lazy(shape, torch.int64, None, lambda place: constant(0, torch.int64))
        result = reduction_dtype(reduction, dtype)
        return elementwise([x], lambda args: to(formula(args[0]), result), shape, result, 1)
    return builder.reduce(x.shape, dims, reduction, lambda place: formula(x.at(place)), dtype)


def _dtype_of(x: Lazy, formula: Callable[[Expr], Expr]) -> torch.dtype:
    return formula(Lazy((), x.dtype, None, lambda place: constant(0, x.dtype)).at(())).dtype


def _finished(call: Call, value: Lazy, dims: Sequence[int], keepdim: bool, formula: Callable[[Scalar], Scalar] = lambda s: s,
              number: int = 0) -> Lazy:
    """A result with its dimensions and dtype: `formula` of what the reduction gave."""
    spec = call.results[number]
    assert spec is not None
    if not keepdim:
        gone, rank = set(dims), len(value.shape)

        def mapped(place: Sequence[Index]) -> Sequence[Index]:
            left = iter(place)
            return [ZERO if n in gone else next(left) for n in range(rank)]
        value = viewed(value, spec.shape, mapped)

    def compute(args: Sequence[Expr]) -> Expr:
        return to(formula(Scalar(args[0])).expr, spec.dtype)
    example = compute([constant(0, value.dtype)])
    if example is to(constant(0, value.dtype), value.dtype):
        return value
    return elementwise([value], compute, spec.shape, spec.dtype, 2)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What to compute in."""
    return ACCUMULATE.get(dtype, dtype)


def _widest(dtype: torch.dtype) -> torch.dtype:
    """What to accumulate in, where float32 has too few digits or too small a range."""
    return torch.float64 if dtype.is_floating_point else dtype


def _count(x: Lazy, dims: Sequence[int]) -> Index:
    return product(x.shape[d] for d in dims)


def _number(value: Index | float, dtype: torch.dtype) -> Scalar:
    """A count as a floating-point number."""
    if isinstance(value, Index):
        if value.constant is None:
            return Scalar(to(position(value), dtype))
        value = value.constant
    return Scalar(constant(value, dtype))


# Sums and products.

@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_(call: Call, x: Lazy, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Lazy:
    return _combined(call, x, dims, keepdim, "sum", _wide)


@lowers(aten.prod.default, aten.prod.dim_int)
def prod(call: Call, x: Lazy, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Lazy:
    return _combined(call, x, dims, keepdim, "prod", _widest)


def _combined(call: Call, x: Lazy, dims: Dims, keepdim: bool, reduction: str,
              wider: Callable[[torch.dtype], torch.dtype]) -> Lazy:
    over, result = _dims(dims, x), call.result.dtype
    if result == torch.bool:                # `dtype=torch.bool`
        reduction, wider = {"sum": "any", "prod": "all"}[reduction], lambda dtype: dtype

    def formula(expr: Expr) -> Expr:        # converted to the result's dtype first, as in eager
        return to(to(expr, result), wider(result))
    return _finished(call, reduced(call.builder, x, over, reduction, formula), over, keepdim)


@lowers(aten.mean.default, aten.mean.dim)
def mean(call: Call, x: Lazy, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Lazy:
    over, result = _dims(dims, x), call.result.dtype
    total = reduced(call.builder, x, over, "sum", lambda expr: to(to(expr, result), _wide(result)))
    count = _number(_count(x, over), _widest(result))
    return _finished(call, total, over, keepdim, lambda s: s / count)


# Extremes.

def _extreme(call: Call, x: Lazy, over: Sequence[int], keepdim: bool, reduction: str, number: int = 0) -> Lazy:
    names = {"max": "any", "min": "all"} if x.dtype == torch.bool else {}
    value = reduced(call.builder, x, over, names.get(reduction, reduction), lambda expr: to(expr, _wide(x.dtype)))
    return _finished(call, value, over, keepdim, number=number)


@lowers(aten.amax.default, aten.amin.default)
def amax(call: Call, x: Lazy, dims: Dims = (), keepdim: bool = False) -> Lazy:
    return _extreme(call, x, _dims(dims, x), keepdim, "max" if call.op is aten.amax.default else "min")


@lowers(aten.max.default, aten.min.default)
def max_(call: Call, x: Lazy) -> Lazy:
    return _extreme(call, x, _dims(None, x), False, "max" if call.op is aten.max.default else "min")


@lowers(aten.max.dim, aten.min.dim)
def max_dim(call: Call, x: Lazy, dim: int, keepdim: bool = False) -> tuple[Lazy | None, Lazy | None]:
    over = _dims(dim, x)
    name = "max" if call.op is aten.max.dim else "min"
    call.builder.cheap_to_repeat(x)
    values = _extreme(call, x, over, keepdim, name) if 0 in call.used else None
    indices = _finished(call, _position(call.builder, x, over, f"arg{name}"), over, keepdim, number=1) if 1 in call.used else None
    return values, indices


def _position(builder: Builder, x: Lazy, over: Sequence[int], reduction: str) -> Lazy:
    return reduced(builder, x, over, reduction, lambda expr: to(expr, torch.uint8 if x.dtype == torch.bool else _wide(x.dtype)))


@lowers(aten.argmax.default, aten.argmin.default)
def argmax(call: Call, x: Lazy, dim: int | None = None, keepdim: bool = False) -> Any:
    over = _dims(dim, x)
    if any(x.shape[d] == 0 for d in over):
        return NotImplemented
    value = _position(call.builder, x, over, "argmax" if call.op is aten.argmax.default else "argmin")
    return _finished(call, value, over, keepdim)


@lowers(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims)
def any_(call: Call, x: Lazy, dims: Dims = None, keepdim: bool = False) -> Lazy:
    over = _dims(dims, x, empty_is_all=call.op._overloadname != "dims")
    value = reduced(call.builder, x, over, call.op._opname, lambda expr: to(expr, torch.bool))
    return _finished(call, value, over, keepdim)


# Variance, from differences to the first element, which are 0 where all elements are equal.

def _moments(call: Call, x: Lazy, over: Sequence[int], correction: float | None) -> tuple[Lazy, Lazy]:
    """Variance and mean, with the reduced dimensions of size 1, as float64.

    In float64 one pass is enough for narrower elements: of n of them the first is at most sqrt(n) standard deviations from the
    mean, so that the subtraction at the end takes off no more than log2(n) bits.
    """
    builder, dtype = call.builder, _widest(x.dtype)
    if x.stored is None and (x.weight > 1 or len(x.reads) > 1):
        builder.store(x)
    count = _count(x, over)
    first = _first(x, over)
    differences = elementwise([x, broadcast(builder, first, x.shape)], _difference, x.shape, dtype, 1)
    total = reduced(builder, differences, over, "sum")
    mean = elementwise([total, first], lambda args: (Scalar(args[0]) / _number(count, dtype) + Scalar(to(args[1], dtype))).expr,
                       total.shape, dtype, 2)
    if x.dtype == torch.float64:
        builder.store(mean)
        differences = elementwise([x, broadcast(builder, mean, x.shape)], _difference, x.shape, dtype, 1)
    squares = reduced(builder, elementwise([differences], lambda args: (Scalar(args[0]) * Scalar(args[0])).expr, x.shape, dtype, 1),
                      over, "sum")
    if x.dtype != torch.float64:
        squares = elementwise([squares, total], lambda args: _about_mean(*map(Scalar, args), _number(count, dtype)).expr,
                              squares.shape, dtype, 4)
    degrees = scalar("maximum", _number(count, dtype) - float(1 if correction is None else correction), 0.0)
    if count.constant is not None:
        degrees = _number(max(count.constant - (1 if correction is None else correction), 0), dtype)
    return elementwise([squares], lambda args: (Scalar(args[0]) / degrees).expr, squares.shape, dtype, 1), mean


def _first(x: Lazy, over: Sequence[int]) -> Lazy:
    """The first element along the dimensions `over`; 0 where there is none."""
    shape = tuple(1 if n in over else size for n, size in enumerate(x.shape))
    return computed([x], shape, x.dtype, lambda place: masked(x.at(place), below(ZERO, _count(x, over))), 0)


def _difference(args: Sequence[Expr]) -> Expr:
    value, origin = (Scalar(to(arg, torch.float64)) for arg in args)
    return (value - origin).expr


def _about_mean(squares: Scalar, total: Scalar, count: Scalar) -> Scalar:
    """The sum of the squares of differences to the mean, from that of differences to another number, and the sum of these."""
    return scalar("maximum", squares - total * total / count, 0.0)


def _var(call: Call, x: Lazy, dims: Dims, correction: float | None, keepdim: bool) -> Any:
    over = _dims(dims, x)
    variance, mean = _moments(call, x, over, correction)
    root = call.op._opname.startswith("std")
    first = _finished(call, variance, over, keepdim, (lambda s: scalar("sqrt", s)) if root else lambda s: s)
    return (first, _finished(call, mean, over, keepdim, number=1)) if len(call.results) == 2 else first


@lowers(aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)
def var_correction(call: Call, x: Lazy, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    return _var(call, x, dims, correction, keepdim)


@lowers(aten.var.dim, aten.std.dim, aten.var_mean.dim, aten.std_mean.dim)
def var_dim(call: Call, x: Lazy, dims: Dims, unbiased: bool = True, keepdim: bool = False) -> Any:
    return _var(call, x, dims, float(unbiased), keepdim)


@lowers(aten.var.default, aten.std.default, aten.var_mean.default, aten.std_mean.default)
def var_default(call: Call, x: Lazy, unbiased: bool = True) -> Any:
    return _var(call, x, None, float(unbiased), False)


# Norms.

@lowers(aten.linalg_vector_norm.default)
def vector_norm(call: Call, x: Lazy, ord: Any = 2, dims: Dims = None, keepdim: bool = False, *,
                dtype: torch.dtype | None = None) -> Any:
    over, wide = _dims(dims, x), _wide(call.result.dtype)
    if not isinstance(ord, (int, float)) or abs(ord) == math.inf and any(x.shape[d] == 0 for d in over):
        return NotImplemented
    if ord != 0 and all(x.shape[d] == 1 for d in over):
        ord = math.inf          # the norm of one number is its size, of which no power need be taken

    def power(expr: Expr) -> Expr:
        value = Scalar(to(to(expr, call.result.dtype), wide))
        size = scalar("abs", value)
        if abs(ord) == math.inf or ord == 1:
            return size.expr
        return (value * value if ord == 2 else size.ne(0.0).to(wide) if ord == 0 else scalar("pow", size, ord)).expr
    total = reduced(call.builder, x, over, {math.inf: "max", -math.inf: "min"}.get(ord, "sum"), power)
    if abs(ord) == math.inf or ord in (0, 1):
        return _finished(call, total, over, keepdim)
    return _finished(call, total, over, keepdim, lambda s: scalar("sqrt", s) if ord == 2 else scalar("pow", s, 1.0 / ord))


# Scans.

@lowers(aten.cumsum.default, aten.cumprod.default)
def cumsum(call: Call, x: Lazy, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    result = call.result.dtype
    if not x.shape or 0 in x.shape or x.shape[wrapped(dim, len(x.shape))] == 1:
        return elementwise([x], lambda args: to(args[0], result), x.shape, result, 1)
    if not call.in_order:
        return NotImplemented
    wide = _wide(result)
    value = call.builder.scan(x.shape, wrapped(dim, len(x.shape)), "sum" if call.op is aten.cumsum.default else "prod",
                              lambda place: to(to(x.at(place), result), wide), wide)
    return _finished(call, value, (), True)
