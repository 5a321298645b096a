"""Arithmetic of every dtype, beside tensors and numbers of other types, against eager mode: equal to the last bit.

Each operation is a line of text. Those of one case, which all work on the same tensors, make one graph. Values are the ones at
which implementations differ: zeros with signs, NaN, infinities, the ends of the range, numbers that a narrow type cannot hold.
"""
from __future__ import annotations

import itertools
import math
import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.backends.native.stages import Stages, compiled, evaluated, finished, recorded

NARROW = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64, *NARROW)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
NUMBERS = (2, 3.7)                  # beside every dtype, and beside some:
MORE_NUMBERS = {torch.float32: (-0.0, math.nan), torch.bfloat16: (0, True, 0.3333, -math.inf), torch.float16: (-0.1,),
                torch.uint8: (100, -3)}
VECTOR = 64                         # elements: behind a tensor's last whole vector, eager mode rounds some operations otherwise
POSITIVE = (2, 3.7)        # of parameters that must not be zero or less

# Operations on x and y, tensors or one of them a number.
BINARY = ("x + y", "x - y", "x * y", "x / y", "x % y", "x // y", "torch.fmod(x, y)", "torch.div(x, y, rounding_mode='trunc')",
          "torch.div(x, y, rounding_mode='floor')", "torch.where(c, x, y)", "torch.add(x, y, alpha=2)", "torch.sub(x, y, alpha=3)",
          "x == y", "x != y", "x < y", "x <= y", "x > y", "x >= y", "x & y", "x | y", "x ^ y", "torch.logical_and(x, y)",
          "torch.logical_xor(x, y)", "torch.copysign(x, y)", "torch.clamp(x, min=y)", "torch.clamp(x, max=y)")
TENSORS_ALONE = ("torch.maximum(x, y)", "torch.minimum(x, y)", "torch.fmax(x, y) + 0", "torch.fmin(x, y) + 0",
                 "torch.heaviside(x, y)", "torch.clamp(x, y, y)", "torch.addcmul(x, x, y, value=2)", "x << y", "x >> y",
                 "torch.nextafter(x, y)", "torch.gcd(x, y)")
NUMBER_FIRST = ("y + x", "y - x", "y * x", "y / x", "y // x", "y % x", "torch.where(c, y, x)")
NUMBER_SECOND = ("torch.add(x, x, alpha=y)", "torch.sub(x, x, alpha=y)", "torch.rsub(x, y)", "x.masked_fill(c, y)",
                 "x.clone().fill_(y)", "torch.full_like(x, y)", "torch.addcmul(x, x, x, value=y)",
                 "torch.addcdiv(x, x, x, value=y)", "torch.lerp(x, x * 2, y)", "F.threshold(x, y, 2)", "F.threshold(x, 1, y)",
                 "F.leaky_relu(x, y)", "torch.clamp(x, -1, y)", "F.hardtanh(x, -100.5, y)", "x ** 2", "x ** 3", "x ** -1",
                 "F.pad(c.reshape(1, -1) * x, (1, 1), value=y)", "torch.index_fill(x, 0, k, y)", "torch.masked_fill(x, c, y) + y",
                 "x + y * 2", "(x * y + 1) * y", "x[:1] + y - y")
ROUNDED = ("x ** 0.5", "x ** -0.5", "x ** -2", "F.elu(x, y)", "F.softplus(x, y)", "F.celu(x, y)", "x ** y", "y ** x",
           "F.softshrink(x, y)", "F.hardshrink(x, y)", "torch.logit(x, y)", "torch.hypot(x, x * 0 + y)",
           "torch.xlogy(x, y)")       # with numbers, to some digits
UNARY = ("-x", "x.abs()", "x.sign()", "x.sgn()", "torch.relu(x)", "x.floor()", "x.ceil()", "x.round()", "x.trunc()", "x.frac()",
         "~x", "x.square()", "x.isnan()", "x.isinf()", "x.isfinite()", "x.signbit()", "torch.logical_not(x)", "torch.nan_to_num(x)",
         "F.relu6(x)", "F.hardtanh(x)", "torch.clamp(x, -1, 3)", "torch.clamp(x, min=0)", "x.reciprocal()", "x.bool()",
         "x.double()", "x.float()", "x.bfloat16()", "x.half()", "x.float().bfloat16()", "x.round(decimals=1)", "F.hardshrink(x)",
         "F.hardsigmoid(x)", "x.clone()", "torch.where(c, x, -x)", "x.deg2rad()", "x.rad2deg()", "x.positive()", "x + x * x",
         "x - x / 3")
NARROWING = ("x.to(torch.uint8)", "x.to(torch.int8)", "x.to(torch.int16)", "x.to(torch.int32)", "x.to(torch.int64)")
SMOOTH = ("x.sqrt()", "x.rsqrt()", "x.exp()", "x.log()", "x.tanh()", "x.sigmoid()", "x.erf()", "x.expm1()", "x.log1p()",
          "F.silu(x)", "F.hardswish(x)", "F.mish(x)", "F.selu(x)", "x.sin()", "x.atan()", "x.exp2()", "x.log2()")
REDUCTIONS = ("x.amax()", "x.amin()", "x.max()", "x.min()", "x.argmax()", "x.argmin()", "m.amax(0)", "m.amin(1)", "m.max(1)",
              "m.min(0)", "m.argmax(0)", "m.argmin(1, keepdim=True)", "x.any()", "x.all()", "m.any(1)", "m.all(0)",
              "torch.sort(m, 1, stable=True)", "m.sort(0, descending=True, stable=True)", "torch.aminmax(x)",
              "m.logical_not().sum(0)", "x.count_nonzero()", "m.cummax(1)")
SUMS = ("x.sum()", "m.sum(0)", "m.sum(1)", "x.prod()", "m.prod(1)", "m.cumsum(0)", "m.cumprod(1)", "x.sum(dtype=torch.int32)",
        "x.sum(dtype=torch.float64)", "x.double().mean()")      # of integers: those of floats depend on the order


def values_of(dtype: torch.dtype) -> Tensor:
    """What operations differ at."""
    if dtype == torch.bool:
        return torch.tensor([False, True, True])
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        wanted = {0, 1, 2, 3, 5, 7, 8, 100, 127, 128, 200, 255, -1, -2, -7, limits.max, limits.max - 1, limits.max // 2 + 1,
                  limits.min, limits.min + 1}
        return torch.tensor(sorted(v for v in wanted if limits.min <= v <= limits.max), dtype=dtype)
    limits = torch.finfo(dtype)
    return torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 3.7, -7.3, 0.1, 100.25, -255.5, 1e-3, limits.max,
                         limits.min, limits.tiny, math.inf, -math.inf, math.nan], dtype=torch.float64).to(dtype)


def raised(text: str, names: dict[str, Any]) -> bool:
    """Whether eager mode refuses an operation."""
    try:
        eval(text, {"torch": torch, "F": torch.nn.functional}, names)
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError, NotImplementedError, OverflowError):
        return True
    return False


class Case:
    """A graph of operations on tensors. `others`: what the texts name besides: numbers."""

    def __init__(self, texts: Iterable[str], tensors: dict[str, Tensor], **others: Any) -> None:
        self.texts = [text for text in texts if not raised(text, tensors | others)]
        self.others = others
        source = f"lambda {', '.join(tensors)}: [{', '.join(self.texts)}]"
        function: Callable[..., Any] = eval(source, {"torch": torch, "F": torch.nn.functional, **others})
        self.eager = function
        self.gm, self.inputs = recorded(function, list(tensors.values()))

    def programs(self) -> Stages:
        return Stages(self.gm, self.inputs)

    def differences(self, actual: Sequence[Tensor], rounded: bool) -> list[str]:
        """Operations whose results are not eager mode's."""
        results = [result if isinstance(result, (tuple, list)) else [result] for result in self.eager(*self.inputs)]
        labels = [text for text, several in zip(self.texts, results, strict=True) for _ in several]
        found = []
        for label, theirs, ours in zip(labels, itertools.chain(*results), actual, strict=True):
            if (difference := difference_of(theirs, ours, rounded)) is not None:
                found.append(f"{label} {self.others or ''}: {difference}")
        return found


def difference_of(theirs: Tensor, ours: Tensor, rounded: bool) -> str | None:
    """How a result differs from eager mode's, None where it does not."""
    if (theirs.dtype, theirs.shape) != (ours.dtype, ours.shape):
        return f"{ours.dtype} {tuple(ours.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"
    a, b = theirs.flatten(), ours.flatten()
    if rounded:
        same = torch.isclose(a, b, rtol=4e-2 if a.dtype in NARROW else 1e-5, atol=1e-30, equal_nan=True)
    else:
        same = (a == b) & (a.signbit() == b.signbit()) if a.dtype.is_floating_point else a == b
        same |= a.isnan() & b.isnan()
    if bool(same.all()):
        return None
    where = int(same.logical_not().nonzero()[0])
    return f"at {where}: {b[where].item()!r}, not {a[where].item()!r}"


def check(cases: Sequence[Case], kernels: bool, rounded: bool = False) -> None:
    """Lowered graphs by the reference interpreter; with `kernels`, compiled ones as well."""
    found: list[str] = []
    stages = [case.programs() for case in cases]
    for case, one in zip(cases, stages, strict=True):
        found += case.differences(one.callable([evaluated(one.lowered[0])])(*case.inputs), rounded)
    if kernels:
        plans = compiled([one.fused()[0] for one in stages])
        for case, one, plan in zip(cases, stages, plans, strict=True):
            found += [f"compiled: {text}" for text in case.differences(one.callable([plan])(*case.inputs), rounded)]
    finished()
    assert not found, "\n".join(found)


def pairs(left: torch.dtype, right: torch.dtype, zeros: bool = True, extremes: bool = True) -> dict[str, Tensor]:
    """Every value of the one dtype beside every value of the other. `extremes`: also such as eager mode cannot divide."""
    second = values_of(right)
    if not zeros:
        second = second[(second != 0) & ~((second == -1) & torch.tensor(not right.is_floating_point))]
    first = values_of(left)
    if not extremes:
        first, second = (t[~(t.double().abs() > 1e30) | t.isinf()] if t.is_floating_point() else t for t in (first, second))
        second = second[(second.double().abs() > 1e-30) | (second == 0) | second.isnan()]
    x, y = first.repeat_interleave(len(second)).repeat(VECTOR), second.repeat(len(first) * VECTOR)
    return {"x": x, "y": y, "c": torch.arange(len(x)) % 3 == 0}


def beside_numbers(dtype: torch.dtype) -> dict[str, Tensor]:
    x = values_of(dtype).repeat(VECTOR)
    return {"x": x, "c": torch.arange(len(x)) % 3 == 0, "k": torch.tensor([0, 2])}


# -- tests -----------------------------------------------------------------------------------------------------------------

COMPILED = (torch.float32, torch.bfloat16, torch.int8)


def dividing(text: str) -> bool:
    return any(sign in text for sign in ("//", "%", "fmod", "rounding_mode"))


@pytest.mark.parametrize("left", DTYPES, ids=str)
def test_tensors_of_two_dtypes(left: torch.dtype) -> None:
    number = DTYPES.index(left)
    for right in (left, *(DTYPES[(number + step) % len(DTYPES)] for step in (1, 4, 7))):
        texts = [text for text in BINARY + TENSORS_ALONE if left != torch.bool != right or "<<" not in text and ">>" not in text]
        cases = [Case([text for text in texts if not dividing(text)], pairs(left, right)),
                 Case([text for text in texts if dividing(text)],
                      pairs(left, right, zeros=left.is_floating_point or right.is_floating_point, extremes=False))]
        check(cases, kernels=left == right and left in COMPILED)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers(dtype: torch.dtype) -> None:
    cases = []
    for number in NUMBERS + MORE_NUMBERS.get(dtype, ()):
        texts = BINARY + NUMBER_FIRST + NUMBER_SECOND
        if not dtype.is_floating_point and number == 0:
            texts = tuple(text for text in texts if not dividing(text))
        tensors = beside_numbers(dtype)
        x = tensors["x"]
        extreme = ~(x.double().abs() <= 1e30) if dtype.is_floating_point else torch.zeros(len(x), dtype=torch.bool)
        ordinary = tensors | {"x": tensors["x"].where(~extreme, 5)}
        cases += [Case([text for text in texts if not dividing(text)], tensors, y=number),
                  Case([text for text in texts if dividing(text)], ordinary, y=number)]
    check(cases[:4], kernels=dtype in COMPILED)
    check(cases[4:], kernels=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_in_smooth_functions(dtype: torch.dtype) -> None:
    check([Case(ROUNDED, beside_numbers(dtype), y=number) for number in POSITIVE], kernels=False, rounded=True)


@pytest.mark.parametrize("scalar", [torch.tensor(3.7), torch.tensor(3.7, dtype=torch.float64), torch.tensor(3), torch.tensor(True),
                                    torch.tensor(3.7, dtype=torch.bfloat16), torch.tensor([[3001]])], ids=str)
def test_tensors_of_one_element(scalar: Tensor) -> None:
    texts = [text for text in BINARY + NUMBER_FIRST + TENSORS_ALONE if not any(part in text for part in ("clamp", "<<", ">>"))]
    check([Case(texts, {**beside_numbers(dtype), "y": scalar}) for dtype in DTYPES], kernels=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constants_that_are_converted(dtype: torch.dtype) -> None:
    """Tensors that the graph makes of a number: each conversion rounds, also from a wide type to a narrow one and back."""
    made = f"torch.full((), y, dtype={dtype})"
    texts = [f"{made}.to({one}).to({other})" for one, other in itertools.product((*NARROW, torch.float32), FLOATS) if one != dtype]
    texts += [f"{made} + x", f"x * {made}.to(torch.float16)", f"torch.where(c, x, {made})"]
    numbers = [1, 1.234567, -257, 1e6, 2**24 + 1, 1e38]
    if not dtype.is_floating_point:
        numbers = [n for n in numbers if n == 1 or isinstance(n, int) and dtype.itemsize > 2]
    check([Case(texts, beside_numbers(torch.bfloat16), y=number) for number in numbers], kernels=dtype == torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operations_on_one_tensor(dtype: torch.dtype) -> None:
    check([Case(UNARY, beside_numbers(dtype))], kernels=dtype in COMPILED)
    check([Case(SMOOTH, beside_numbers(dtype))], kernels=False, rounded=True)
    check([Case(NARROWING, {"x": values_of(dtype)})], kernels=dtype in COMPILED)


TOO_LARGE = (2.0**31, -2.0**31 - 77, 3e9, 2.0**40 + 123457, 2.0**63, -1e20, math.inf, -math.inf, math.nan)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="what does not fit is up to the processor")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_that_no_integer_holds(dtype: torch.dtype) -> None:
    """The processor's answer is eager mode's. A C++ compiler that knows such a float, from anywhere, has another."""
    given = torch.tensor([1.5, -2.5, 300.7, *TOO_LARGE], dtype=torch.float64).to(dtype)
    makes = ["x", "x * 1", "torch.full((3,), y, dtype=torch.float64).to(x.dtype)", "torch.where(x > 2, y, x)",
             "torch.zeros((), dtype=x.dtype) + torch.full((), y, dtype=torch.float64).to(x.dtype)", "x.masked_fill(x != x, y)",
             "x.clamp(min=2e4) * 3", "x / 0", "x + math.inf", "x.square().floor()", "x.to(torch.bfloat16)"]
    texts = [f"({made}).to({integer})" for made in makes for integer in INTEGERS]
    cases = [Case(texts if number == TOO_LARGE[0] else [text for text in texts if "y" in text], {"x": given.repeat(VECTOR)},
                  y=number, math=math) for number in TOO_LARGE]
    check(cases, kernels=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions(dtype: torch.dtype) -> None:
    values = values_of(dtype)
    texts = REDUCTIONS + (() if dtype.is_floating_point else SUMS)
    cases = []
    for order in (values, values.flip(0), values[~values.isnan()] if dtype.is_floating_point else values[1:]):
        rows = torch.stack([order.roll(step) for step in range(4)])
        cases.append(Case(texts, {"x": order, "m": rows}))
    check(cases, kernels=dtype in COMPILED)


SEQUENCES = [f"torch.{text}, dtype=x.dtype)" for text in (
    "arange(0.9, 4.9, 1.5", "arange(4.9, 0.2, -1.3", "arange(2.5", "linspace(0.5, 7.7, 7", "linspace(2.6, 0.2, 5",
    "linspace(torch.tensor(0.2), 2.6, 7", "linspace(0.5, 7.7, 1", "logspace(0.5, 1.7, 5", "logspace(1.6, 0.2, 1")]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_sequences(dtype: torch.dtype) -> None:
    """Bounds of another type are truncated, or rounded, first."""
    check([Case(SEQUENCES, {"x": values_of(dtype)})], kernels=dtype in COMPILED, rounded=dtype.is_floating_point)
