"""Lowering of what makes tensors from nothing: constants and ranges."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from capture.backends.native.index import Index, Size, index
from capture.backends.native.ir import Expr, position
from capture.backends.native.lowering.elementwise import check_number
from capture.backends.native.lowering.lazy import Lazy
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import Number, Scalar, at_least, below, both, choose, number, to

aten, prims = torch.ops.aten, torch.ops.prims


def _made(call: Call, at: Callable[[Sequence[Index]], Expr], weight: int = 0) -> Lazy:
    return Lazy(call.result.shape, call.result.dtype, call.result.strides, at, weight)


def _filled(call: Call, value: Number | Index | Lazy) -> Lazy:
    if isinstance(value, Lazy):
        check_number(call, value, call.result.dtype, operand=False)
        at, dtype = value.at, call.result.dtype
        return Lazy(call.result.shape, dtype, call.result.strides, lambda place: to(at(()), dtype), value.weight, value.reads)
    expr = number(value, call.result.dtype)
    return _made(call, lambda place: expr)


@lowers(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.empty.memory_format, aten.empty_like.default,
        aten.new_empty.default, aten.empty_strided.default, aten.new_empty_strided.default, aten.empty_permuted.default,
        aten.zero.default)
def zeros(call: Call, *args: Any, **kwargs: Any) -> Lazy:
    """Memory that is not initialised may as well be zero."""
    return _filled(call, 0)


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(call: Call, *args: Any, **kwargs: Any) -> Lazy:
    return _filled(call, 1)


@lowers(aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar, numbers=True)
def full(call: Call, *args: Any, **kwargs: Any) -> Any:
    given = {"fill_value": None} | dict(zip((a.name for a in call.op._schema.arguments), args, strict=False)) | kwargs
    value = given.get("value", given["fill_value"])
    return _filled(call, value) if isinstance(value, (bool, int, float, Index, Lazy)) else NotImplemented


@lowers(aten.fill.Tensor)
def fill(call: Call, x: Lazy, value: Lazy) -> Lazy:
    return Lazy(x.shape, x.dtype, call.result.strides, lambda place: to(value.at(()), x.dtype), value.weight, value.reads)


@lowers(aten.scalar_tensor.default, numbers=True)
def scalar_tensor(call: Call, value: Number | Index | Lazy, **kwargs: Any) -> Any:
    return _filled(call, value)


@lowers(aten.arange.start_step, aten.arange.start, aten.arange.default)
def arange(call: Call, *bounds: Any, **kwargs: Any) -> Any:
    start, step = (0 if len(bounds) == 1 else bounds[0]), (bounds[2] if len(bounds) > 2 else 1)
    dtype = call.result.dtype
    if not dtype.is_floating_point:         # eager computes in integers then
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    if any(isinstance(v, float) for v in (start, step)):
        if any(isinstance(v, Index) for v in (start, step)):
            return NotImplemented

        def at(place: Sequence[Index]) -> Expr:        # in double precision, as eager does
            number_ = Scalar(to(position(place[0]), torch.float64))
            return to((number_ * float(step) + float(start)).expr, dtype)
        return _made(call, at, 3)
    return _made(call, lambda place: to(position(place[0] * step + start), dtype), int(dtype != torch.int64))


@lowers(prims.iota.default)
def iota(call: Call, length: Size, *, start: Size, step: Size, **kwargs: Any) -> Lazy:
    dtype = call.result.dtype
    return _made(call, lambda place: to(position(place[0] * index(step) + start), dtype), int(dtype != torch.int64))


@lowers(aten.eye.default, aten.eye.m)
def eye(call: Call, *args: Any, **kwargs: Any) -> Lazy:
    dtype = call.result.dtype

    def at(place: Sequence[Index]) -> Expr:
        difference = place[0] - place[1]
        return choose(both(at_least(difference, 0), below(difference, 1)), number(1, dtype), number(0, dtype))
    return _made(call, at, 2)
