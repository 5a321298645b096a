"""How pointwise operators are lowered: eager's type promotion around a formula on scalars."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from capture.backends.native.index import ZERO, Index, Size
from capture.backends.native.ir import Expr, Load, intern
from capture.backends.native.lowering.builder import Builder, broadcast, elementwise
from capture.backends.native.lowering.lazy import Lazy
from capture.backends.native.lowering.promotion import Kind, promoted
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import Scalar, number, to, weigh

Formula = Callable[..., Scalar]
Operand = Lazy | Index | bool | int | float | None


def pointwise(*ops: OpOverload | OpOverloadPacket, formula: Formula, kind: Kind = Kind.DEFAULT,
              operands: Sequence[int] = (0, 1, 2)) -> None:
    """Lowers operators by `formula`, which gets their arguments in the schema's order: tensors and numbers at the places `operands`
    as Scalars of the promoted dtype (None stays), the others as they are. It may return NotImplemented, for what ATen shall do."""
    def handler(call: Call, *args: Any, **kwargs: Any) -> Any:
        return apply(call, formula, kind, bound(call.op, args, kwargs), operands)
    lowers(*ops)(handler)


def bound(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Every argument, in the schema's order."""
    return [args[n] if n < len(args) else kwargs.get(a.name, a.default_value if a.has_default_value() else None)
            for n, a in enumerate(op._schema.arguments)]


def apply(call: Call, formula: Formula, kind: Kind, arguments: Sequence[Any], operands: Sequence[int]) -> Any:
    """The lazy result of a formula on arguments of which those at `operands` take part in type promotion."""
    places = [n for n in operands if n < len(arguments)]
    if any(isinstance(a, (Index, Lazy)) for n, a in enumerate(arguments) if n not in places):
        return NotImplemented
    compute, result = promoted([arguments[n] for n in places], kind)
    tensors = [n for n in places if isinstance(arguments[n], Lazy)]
    fixed = {n: Scalar(number(arguments[n], compute)) for n in places if n not in tensors and arguments[n] is not None}

    def evaluate(exprs: Sequence[Expr]) -> Any:
        given = {n: Scalar(to(expr, compute)) for n, expr in zip(tensors, exprs, strict=True)} | fixed
        return formula(*(given.get(n, a) for n, a in enumerate(arguments)))

    example = evaluate([intern(Load, f"argument {n}", ZERO, arguments[n].dtype, None) for n in tensors])
    if example is NotImplemented:
        return NotImplemented
    weight = weigh(to(example.expr, result))
    return spread(call.builder, [arguments[n] for n in tensors], call.result.shape, lambda exprs: to(evaluate(exprs).expr, result),
                  result, weight)


def spread(builder: Builder, values: Sequence[Lazy], shape: tuple[Size, ...], compute: Callable[[Sequence[Expr]], Expr],
           dtype: torch.dtype, weight: int) -> Lazy:
    """A value computed from elements of others, which are broadcast to `shape`."""
    return elementwise([broadcast(builder, value, shape) for value in values], compute, shape, dtype, weight)
