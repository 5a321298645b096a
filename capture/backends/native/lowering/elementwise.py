"""How pointwise operators are lowered: eager's type promotion around a formula on scalars."""
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from capture.backends.native.index import ZERO, Index, Size
from capture.backends.native.ir import Expr, Load, intern
from capture.backends.native.lowering.builder import Builder, broadcast, elementwise
from capture.backends.native.lowering.lazy import Lazy
from capture.backends.native.lowering.promotion import Kind, promoted
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import Number, Scalar, nearest, number, to, weigh
from capture.backends.native.signature import Unsupported

aten = torch.ops.aten
Formula = Callable[..., Scalar]


def pointwise(*ops: OpOverload | OpOverloadPacket, formula: Formula, kind: Kind = Kind.DEFAULT, operands: Sequence[int] = (0, 1, 2),
              exact: Collection[int] = (), rounded: Collection[int] = ()) -> None:
    """Lowers operators by `formula`, which gets their arguments in the schema's order. Tensors and numbers at the places `operands`
    are Scalars of the promoted dtype (None stays None), all others are passed as they are. It may return NotImplemented, for calls
    that are left to ATen.

    Narrow dtypes are computed in a wider one. Operands are rounded to the narrow one before, except numbers, and tensors of one
    element, at the places `exact`. Numbers that are not operands are rounded at the places `rounded`.
    """
    def handler(call: Call, *args: Any, **kwargs: Any) -> Any:
        return apply(call, formula, kind, bound(call.op, args, kwargs), operands, exact, rounded)
    lowers(*ops, numbers=True)(handler)


def bound(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Every argument, in the schema's order."""
    return [args[n] if n < len(args) else kwargs.get(a.name, a.default_value if a.has_default_value() else None)
            for n, a in enumerate(op._schema.arguments)]


def apply(call: Call, formula: Formula, kind: Kind, arguments: Sequence[Any], operands: Sequence[int], exact: Collection[int] = (),
          rounded: Collection[int] = ()) -> Any:
    """The lazy result of a formula on arguments of which those at `operands` take part in type promotion; see `pointwise`."""
    places = [n for n in operands if n < len(arguments)]
    tensors = [n for n, a in enumerate(arguments) if isinstance(a, Lazy)]
    others = [a for n, a in enumerate(arguments) if n not in places]
    if any(isinstance(a, Index) or isinstance(a, Lazy) and a.number is None for a in others):
        return NotImplemented
    types = promoted([arguments[n] for n in places], kind)
    on_cpu = call.builder.program.device.type == "cpu"

    def scalar(n: int, value: Expr | Number | Index) -> Scalar:
        alone = not isinstance(arguments[n], Lazy) or not arguments[n].shape or on_cpu and all(d == 1 for d in arguments[n].shape)
        wide = alone and n in exact if n in places else n not in rounded
        dtype = types.compute if wide else types.common
        if isinstance(arguments[n], Lazy) and arguments[n].number:
            check_number(call, arguments[n], dtype, n in places)
        return Scalar(to(to(value, dtype) if isinstance(value, Expr) else number(value, dtype), types.compute))

    fixed: dict[int, Any] = {n: scalar(n, arguments[n]) for n in places if n not in tensors and arguments[n] is not None}
    fixed |= {n: nearest(arguments[n], types.common) for n in rounded if n not in tensors}

    def evaluate(exprs: Sequence[Expr]) -> Any:
        given = {n: scalar(n, expr) for n, expr in zip(tensors, exprs, strict=True)} | fixed
        return formula(*(given.get(n, a) for n, a in enumerate(arguments)))

    example = evaluate([intern(Load, f"argument {n}", ZERO, arguments[n].dtype, None) for n in tensors])
    if example is NotImplemented:
        return NotImplemented
    weight = weigh(to(example.expr, types.result))
    return spread(call.builder, [arguments[n] for n in tensors], call.result.shape,
                  lambda exprs: to(evaluate(exprs).expr, types.result), types.result, weight)


# Where a number that is too great for an integer type is no error.
WRAPPED = frozenset((aten.add, aten.sub, aten.rsub, aten.mul))


def check_number(call: Call, value: Lazy, dtype: torch.dtype, operand: bool) -> None:
    """Raises Unsupported where eager mode might refuse to convert a number, which depends on its value, to `dtype`."""
    holds = dtype.is_floating_point or dtype == torch.int64 and value.number is int
    if not holds and not (operand and call.op.overloadpacket in WRAPPED):
        raise Unsupported(f"{call.op} makes a {dtype} of a number that changes from call to call")


def spread(builder: Builder, values: Sequence[Lazy], shape: tuple[Size, ...], compute: Callable[[Sequence[Expr]], Expr],
           dtype: torch.dtype, weight: int) -> Lazy:
    """A value computed from elements of others, which are broadcast to `shape`."""
    return elementwise([broadcast(builder, value, shape) for value in values], compute, shape, dtype, weight)
