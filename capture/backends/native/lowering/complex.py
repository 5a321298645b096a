"""Complex tensors: pairs of real ones. What kernels compute with are the parts, which lie in memory in turn.

A formula on complex numbers is one of Scalars for the real and one for the imaginary part, as eager computes it, without the
recovery of infinities that the C++ standard prescribes. What treats both parts alike, as views do, is done to each by its lowering
for real tensors. Functions that would differ from eager's at infinity or near zero (`exp`, `sqrt`, `pow`, `reciprocal`) stay with
ATen.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from capture.backends.native.index import ZERO, index
from capture.backends.native.ir import Expr, Load, intern
from capture.backends.native.lowering.builder import DTYPES, broadcast, converted, elementwise
from capture.backends.native.lowering.elementwise import bound
from capture.backends.native.lowering.lazy import Lazy, Spec, in_memory, viewed
from capture.backends.native.lowering.promotion import Kind, promoted
from capture.backends.native.lowering.registry import TABLE, Call, Handler, overloads
from capture.backends.native.lowering.scalar import Number, Scalar, call, number, weigh, where
from capture.backends.native.lowering.views import concatenated
from capture.backends.native.ops import ACCUMULATE, DEAR

aten = torch.ops.aten
COMPLEX = frozenset((torch.complex64, torch.complex128))
MEANS = frozenset((aten.mean.default, aten.mean.dim))
Parts = tuple[Scalar, Scalar]
COMPLEX_TABLE: dict[OpOverload, Handler] = {}


def lower_complex(call_: Call, dtypes: Collection[torch.dtype], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results of a call with complex tensors, NotImplemented where they must come from ATen."""
    if not (DTYPES | COMPLEX).issuperset(dtypes):
        return NotImplemented
    handler = COMPLEX_TABLE.get(call_.op)
    if handler is not None:
        return handler(call_, *args, **kwargs)
    lowering = TABLE.get(call_.op)
    if lowering is None or not lowering.is_view:
        return NotImplemented
    if args[0].stored is not None:
        return lowering.handler(call_, *args, **kwargs)
    return _by_parts(call_, bound(call_.op, args, kwargs), (0,))


def parts_of(value: Lazy) -> tuple[Lazy, Lazy]:
    """The real and the imaginary part of a complex tensor."""
    if value.pair is not None:
        return value.pair
    assert value.stored is not None
    real, imaginary = (in_memory(value.stored.part(n), value.shape) for n in (0, 1))
    return real, imaginary


def paired(real: Lazy, imaginary: Lazy, dtype: torch.dtype) -> Lazy:
    """The complex tensor of two parts."""
    def none(place: Sequence[Any]) -> Any:
        raise AssertionError("complex elements have no expression")
    return Lazy(real.shape, dtype, None, none, real.weight + imaginary.weight, real.reads | imaginary.reads, pair=(real, imaginary))


def _lowers(*ops: OpOverload | OpOverloadPacket) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        COMPLEX_TABLE.update(dict.fromkeys(overloads(ops), handler))
        return handler
    return register


# What treats both parts alike.

def alike(*ops: OpOverload | OpOverloadPacket, operands: Collection[int] = (0,)) -> None:
    """Lowers operators by doing to each part of the arguments at `operands` what is done to real tensors."""
    @_lowers(*ops)
    def handler(call_: Call, *args: Any, **kwargs: Any) -> Any:
        return _by_parts(call_, bound(call_.op, args, kwargs), operands)


def _by_parts(call_: Call, arguments: Sequence[Any], operands: Collection[int]) -> Any:
    names = [argument.name for argument in call_.op._schema.arguments]
    positional = sum(not argument.kwarg_only for argument in call_.op._schema.arguments)

    def lowered(number_: int, results: tuple[Spec | None, ...]) -> Any:
        own = [_part(value, number_) if n in operands else value for n, value in enumerate(arguments)]
        given = dict(zip(names[positional:], own[positional:], strict=True))
        if "dtype" in given and given["dtype"] is not None and given["dtype"].is_complex:
            given["dtype"] = given["dtype"].to_real()
        return TABLE[call_.op].handler(replace(call_, results=results), *own[:positional],
                                       **{name: value for name, value in given.items() if value is not None})

    if not any(spec is not None and (spec.dtype.is_complex or spec.dtype == torch.bool) for spec in call_.results):
        return lowered(0, call_.results)        # with `dtype=`: what is made real loses the imaginary part before anything else
    if any(spec is None or spec.dtype not in COMPLEX for spec in call_.results):
        return NotImplemented
    if call_.op in MEANS:                   # divided by a complex number: infinity in one part makes NaN of both
        return NotImplemented
    if any(isinstance(value, complex) for n, value in enumerate(arguments) if n not in operands):
        return NotImplemented
    results = tuple(replace(spec, dtype=spec.dtype.to_real()) for spec in call_.results if spec is not None)
    done = []
    for number_ in (0, 1):
        value = lowered(number_, results)
        if value is NotImplemented:
            return value
        done.append(value if isinstance(value, (tuple, list)) else (value,))
    values = [None if real is None else paired(*(converted(part, spec.dtype.to_real()) for part in (real, imaginary)), spec.dtype)
              for real, imaginary, spec in zip(*done, call_.results, strict=True)]
    return values if len(values) > 1 else values[0]


def _part(value: Any, number_: int) -> Any:
    """A part of an operand: of real ones, the imaginary part is zero."""
    if isinstance(value, (list, tuple)):
        return [_part(item, number_) for item in value]
    if isinstance(value, Lazy):
        if value.dtype in COMPLEX:
            return parts_of(value)[number_]
        zero = number(0, value.dtype)
        return value if number_ == 0 else Lazy(value.shape, value.dtype, None, lambda place: zero)
    if isinstance(value, (bool, int, float, complex)):
        return (value.real, value.imag)[number_]
    return value


alike(aten.neg, aten.clone.default, aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.cat.default,
      aten.stack.default, aten.flip.default, aten.roll.default, aten.index.Tensor, aten.gather.default, aten.zeros_like.default,
      aten.zeros.default, aten.new_zeros.default)
alike(aten.select_scatter.default, aten.slice_scatter.default, operands=(0, 1))
alike(aten.constant_pad_nd.default, operands=(0, 2))
alike(aten.where.self, operands=(1, 2))


# Formulas.

def formula(*ops: OpOverload, compute: Callable[..., Parts | Scalar], operands: int = 1) -> None:
    """Lowers operators by a formula on the parts of their arguments, so many of them."""
    @_lowers(*ops)
    def handler(call_: Call, *args: Any, **kwargs: Any) -> Any:
        given = bound(call_.op, args, kwargs)
        assert len(given) == operands
        dtype = promoted(given, Kind.DEFAULT).common.to_real()
        if dtype in ACCUMULATE:             # `complex32`
            return NotImplemented
        shape = call_.result.shape
        values = [broadcast(call_.builder, converted(part, dtype), shape) for value in given for part in _operand(value, dtype)]

        def evaluate(exprs: Sequence[Expr]) -> tuple[Scalar, ...]:
            scalars = list(map(Scalar, exprs))
            found = compute(*zip(scalars[::2], scalars[1::2], strict=True))
            return found if isinstance(found, tuple) else (found,)

        example = evaluate([intern(Load, f"argument {n}", ZERO, dtype, None) for n in range(len(values))])
        parts = [elementwise(values, lambda exprs, n=n: evaluate(exprs)[n].expr, shape, part.dtype, weigh(part.expr))
                 for n, part in enumerate(example)]
        return paired(*parts, call_.result.dtype) if len(parts) == 2 else parts[0]


def _operand(value: Lazy | Number | complex, dtype: torch.dtype) -> tuple[Lazy, Lazy]:
    if isinstance(value, Lazy):
        return _part(value, 0), _part(value, 1)
    real, imaginary = (number(part, dtype) for part in (value.real, value.imag))
    return Lazy((), dtype, (), lambda place: real), Lazy((), dtype, (), lambda place: imaginary)


def _product(x: Parts, y: Parts) -> Parts:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _sum(x: Parts, y: Parts, alpha: Parts) -> Parts:
    """With the product by one, too, which makes infinities NaN."""
    real, imaginary = _product(y, alpha)
    return x[0] + real, x[1] + imaginary


def _difference(x: Parts, y: Parts, alpha: Parts) -> Parts:
    return _sum(x, y, (-alpha[0], -alpha[1]))


def _quotient(x: Parts, y: Parts) -> Parts:
    """By the ratio of the divisor's parts, the smaller to the greater one, so that there are no squares."""
    (a, b), (c, d) = x, y
    first = c.abs() >= d.abs()
    ratio = where(first, d / c, c / d)
    scale = 1 / where(first, c + d * ratio, c * ratio + d)
    by_zero = c.eq(0) & d.eq(0)
    return (where(by_zero, a / c.abs(), where(first, a + b * ratio, a * ratio + b) * scale),
            where(by_zero, b / d.abs(), where(first, b - a * ratio, b * ratio - a) * scale))


def _sign(x: Parts) -> Parts:
    length = x[0].hypot(x[1])
    return where(length.eq(0), 0.0, x[0] / length), where(length.eq(0), 0.0, x[1] / length)


formula(aten.add.Tensor, aten.add.Scalar, compute=_sum, operands=3)
formula(aten.sub.Tensor, aten.sub.Scalar, compute=_difference, operands=3)
formula(aten.rsub.Tensor, aten.rsub.Scalar, compute=lambda x, y, alpha: _difference(y, x, alpha), operands=3)
formula(aten.mul.Tensor, aten.mul.Scalar, compute=_product, operands=2)
formula(aten.div.Tensor, aten.div.Scalar, compute=_quotient, operands=2)
formula(aten.eq.Tensor, aten.eq.Scalar, compute=lambda x, y: x[0].eq(y[0]) & x[1].eq(y[1]), operands=2)
formula(aten.ne.Tensor, aten.ne.Scalar, compute=lambda x, y: x[0].ne(y[0]) | x[1].ne(y[1]), operands=2)
formula(aten.abs.default, compute=lambda x: x[0].hypot(x[1]))
formula(aten.angle.default, compute=lambda x: x[1].atan2(x[0]))
formula(aten.sgn.default, compute=_sign)
formula(aten._conj.default, aten.conj_physical.default, compute=lambda x: (x[0], -x[1]))
formula(aten.resolve_conj.default, compute=lambda x: x)


# From real tensors and to these.

@_lowers(aten.view_as_real.default)
def view_as_real(call_: Call, x: Lazy) -> Lazy:
    """In memory, where both parts are written together; but not for those who only take one part of what is computed."""
    rank, shape = len(x.shape), call_.result.shape
    if x.stored is None and all(user.target is aten.select.int and user.args[1] in (-1, rank) for user in call_.node.users):
        return concatenated([viewed(part, (*x.shape, 1), lambda place: place[:-1]) for part in parts_of(x)], rank, shape)
    first = call_.builder.store(x).part(0)
    return in_memory(replace(first, strides=(*first.strides, 1)), shape)


@_lowers(aten.view_as_complex.default)
def view_as_complex(call_: Call, x: Lazy) -> Lazy:
    real, imaginary = (viewed(x, x.shape[:-1], lambda place, n=n: [*place, index(n)]) for n in (0, 1))
    return paired(real, imaginary, call_.result.dtype)


@_lowers(aten.complex.default)
def complex_(call_: Call, real: Lazy, imaginary: Lazy) -> Lazy:
    return paired(*(broadcast(call_.builder, part, call_.result.shape) for part in (real, imaginary)), call_.result.dtype)


@_lowers(aten.polar.default)
def polar(call_: Call, length: Lazy, angle: Lazy) -> Lazy:
    values = [broadcast(call_.builder, value, call_.result.shape) for value in (length, angle)]

    def part(name: str) -> Lazy:
        return elementwise(values, lambda exprs: (Scalar(exprs[0]) * call(name, Scalar(exprs[1]))).expr, call_.result.shape,
                           length.dtype, DEAR + 1)
    return paired(part("cos"), part("sin"), call_.result.dtype)


@_lowers(aten._to_copy.default)
def to_copy(call_: Call, x: Lazy, **kwargs: Any) -> Any:
    dtype = call_.result.dtype
    if dtype not in COMPLEX or kwargs.get("device") not in (None, call_.result.device) or kwargs.get("non_blocking") or (
            kwargs.get("pin_memory")):
        return NotImplemented
    return paired(*(converted(_part(x, n), dtype.to_real()) for n in (0, 1)), dtype)
