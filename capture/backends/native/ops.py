"""The table of scalar operations: the names that an `ir.Op` may have, with argument types, result type and meaning.

The meaning is a function of torch tensors and so, by definition, what eager mode computes. Kernels call `op_<name>` of
`include/capture_kernel.h`, which says where and by how much a result may differ in its last digits.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

FLOATS = frozenset({torch.float32, torch.float64})
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
BITS = INTEGERS | {torch.bool}
NUMBERS = INTEGERS | FLOATS
COMPUTED = NUMBERS | {torch.bool}                               # the dtypes that operations compute in
STORED = COMPUTED | {torch.bfloat16, torch.float16}             # and those that `to` converts from and to
ACCUMULATE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}      # what to compute in, of dtypes that are only stored
CHEAP = 1               # the cost of an operation that takes an instruction or a few, as does moving a byte
DEAR = 8                # of a division, a root or a polynomial, in vectors


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One operation. The arguments have one dtype, of `accepts`; only the first argument of "where" is bool in any case.

    `result`: "argument" (the dtype of the last argument), "bool", or "given" (by the Op: that of "to", whose meaning takes it
    as a second argument). `meaning` broadcasts as torch does and raises what torch raises (a RuntimeError for an integer
    division by zero, where a kernel's result is unspecified). `cost`: CHEAP or DEAR.
    """

    name: str
    arity: int
    accepts: frozenset[torch.dtype]
    result: str
    meaning: Callable[..., torch.Tensor]
    cost: int


def result_dtype(name: str, *arguments: torch.dtype) -> torch.dtype | None:
    """The dtype of the result; None where any of `STORED` may be chosen ("to"). TypeError if the operation does not take these."""
    op = OPS[name]
    conditions, values = (arguments[:1], arguments[1:]) if name == "where" else ((), arguments)
    fits = len(arguments) == op.arity and len(set(values)) == 1 and values[0] in op.accepts and set(conditions) <= {torch.bool}
    if not fits:
        raise TypeError(f"{name} does not take ({', '.join(map(str, arguments))})")
    return {"argument": arguments[-1], "bool": torch.bool, "given": None}[op.result]


def evaluate(name: str, dtype: torch.dtype, *arguments: torch.Tensor) -> torch.Tensor:
    """The value of an operation whose result is of `dtype`, as eager computes it."""
    op = OPS[name]
    return op.meaning(*arguments, dtype) if op.result == "given" else op.meaning(*arguments)


def _table() -> dict[str, ScalarOp]:
    table: dict[str, ScalarOp] = {}

    def add(arity: int, accepts: frozenset[torch.dtype], cost: int, result: str = "argument",
            **meanings: Callable[..., torch.Tensor]) -> None:
        for name, meaning in meanings.items():
            name = name.rstrip("_")             # `and_`: a keyword of Python's
            table[name] = ScalarOp(name, arity, accepts, result, meaning, cost)

    # arithmetic
    add(2, COMPUTED, CHEAP, add=torch.add, mul=torch.mul, maximum=torch.maximum, minimum=torch.minimum, fmax=torch.fmax,
        fmin=torch.fmin)
    add(2, NUMBERS, CHEAP, sub=torch.sub)
    add(2, NUMBERS, DEAR, floordiv=torch.floor_divide, truncdiv=functools.partial(torch.div, rounding_mode="trunc"),
        remainder=torch.remainder, fmod=torch.fmod, pow=torch.pow)
    add(2, FLOATS, DEAR, div=torch.div)
    add(3, FLOATS, CHEAP, muladd=lambda x, y, z: torch.addcmul(z, x, y))      # rounded once, where the machine can
    add(1, COMPUTED, CHEAP, sign=torch.sign)
    add(1, NUMBERS, CHEAP, neg=torch.neg, abs=torch.abs)
    # powers, exponentials, logarithms
    add(1, FLOATS, DEAR, sqrt=torch.sqrt, rsqrt=torch.rsqrt, reciprocal=torch.reciprocal, exp=torch.exp, exp2=torch.exp2,
        expm1=torch.expm1, log=torch.log, log2=torch.log2, log10=torch.log10, log1p=torch.log1p, sigmoid=torch.sigmoid)
    add(1, FLOATS, DEAR, exp_nonpositive=torch.exp)       # of an argument that is at most 0, or NaN
    # circular and hyperbolic
    add(1, FLOATS, DEAR, sin=torch.sin, cos=torch.cos, tan=torch.tan, asin=torch.asin, acos=torch.acos, atan=torch.atan,
        sinh=torch.sinh, cosh=torch.cosh, tanh=torch.tanh, asinh=torch.asinh, acosh=torch.acosh, atanh=torch.atanh)
    add(2, FLOATS, DEAR, atan2=torch.atan2)
    # special functions
    add(1, FLOATS, DEAR, erf=torch.erf, erfc=torch.erfc, erfinv=torch.erfinv, lgamma=torch.lgamma, digamma=torch.digamma)
    add(2, FLOATS, DEAR, hypot=torch.hypot, nextafter=torch.nextafter)
    add(2, FLOATS, CHEAP, copysign=torch.copysign)
    # rounding; the identity on integers
    add(1, NUMBERS, CHEAP, floor=torch.floor, ceil=torch.ceil, round=torch.round, trunc=torch.trunc)
    # tests
    add(2, COMPUTED, CHEAP, "bool", eq=torch.eq, ne=torch.ne, lt=torch.lt, le=torch.le, gt=torch.gt, ge=torch.ge)
    add(1, COMPUTED, CHEAP, "bool", isnan=torch.isnan, isinf=torch.isinf, signbit=torch.signbit)
    # bits; logic on bool
    add(2, BITS, CHEAP, and_=torch.bitwise_and, or_=torch.bitwise_or, xor=torch.bitwise_xor)
    add(1, BITS, CHEAP, not_=torch.bitwise_not)
    add(2, INTEGERS, DEAR, gcd=torch.gcd)
    add(2, INTEGERS, CHEAP, lshift=torch.bitwise_left_shift, rshift=torch.bitwise_right_shift)
    # choice and conversion
    add(3, COMPUTED, CHEAP, where=torch.where)
    add(1, STORED, CHEAP, "given", to=torch.Tensor.to)
    return table


OPS: dict[str, ScalarOp] = _table()
