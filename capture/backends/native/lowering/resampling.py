"""Resampling: each element is one of the input, or a mean of its neighbours by weights that follow from its position.

Positions are computed in floating point exactly as ATen does; so are the weights. Linear interpolation stays a call: a kernel's
gathers took half as long again as ATen's loop.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capture.backends.native.index import Index, Size, Value, index
from capture.backends.native.ir import Expr, position
from capture.backends.native.lowering.builder import converted
from capture.backends.native.lowering.lazy import Lazy, computed
from capture.backends.native.lowering.pooling import Axis, windows
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import ACCUMULATE, Scalar, call, to, where

aten = torch.ops.aten

CUBIC = -0.75           # the free coefficient of the cubic weights


@dataclass(frozen=True, slots=True)
class Resize:
    """One dimension: from `size` to `result` elements. `scale`: what the program gave, if it did."""

    size: int
    result: int
    scale: float | None

    @property
    def times(self) -> int | None:
        """How often each element is repeated, where that is a whole number."""
        times, rest = divmod(self.result, self.size)
        return times if not rest and (self.scale is None or self.scale == times) else None

    def step(self, corners: bool) -> float:
        """How far neighbours are apart in the input. `corners`: with the first and the last element at its ends."""
        if corners:
            return (self.size - 1) / (self.result - 1) if self.result > 1 else 0.0
        return 1.0 / self.scale if self.scale else self.size / self.result

    def source(self, place: Index, corners: bool, dtype: torch.dtype) -> Scalar:
        """The position of an element in the input."""
        number = Scalar(to(to(position(place), torch.int32), dtype))
        step = torch.tensor(self.step(corners), dtype=dtype).item()
        return number * step if corners else (number + 0.5) * step - 0.5

    def clamped(self, place: Scalar) -> Index:
        """A position, an int32 that is not negative, moved into the input."""
        return index(Value(to(call("minimum", place, self.size - 1).expr, torch.int64), self.size, None))


def _resizes(x: Lazy, shape: Sequence[Size], scales: Sequence[float | None]) -> list[Resize] | None:
    """The last dimensions. None where sizes are symbolic, or 0."""
    sizes, results = x.shape[-len(scales):], shape[-len(scales):]
    if not all(isinstance(size, int) and size for size in (*x.shape, *results)):
        return None
    return [Resize(*setting) for setting in zip(sizes, results, scales, strict=True)]


# The nearest element.

@lowers(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default,
        aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact2d.default, aten._upsample_nearest_exact3d.default)
def upsample_nearest(call_: Call, x: Lazy, size: Sequence[Size], *scales: float | None) -> Any:
    resizes = _resizes(x, call_.result.shape, scales or [None] * len(size))
    if resizes is None:
        return NotImplemented
    exact = "exact" in call_.op._opname
    rank = len(x.shape) - len(size)
    call_.builder.cheap_to_repeat(x)

    def at(place: Sequence[Index]) -> Expr:
        return x.at([*place[:rank], *(_nearest(resize, p, exact) for resize, p in zip(resizes, place[rank:], strict=True))])
    return computed([x], call_.result.shape, x.dtype, at, 1)


def _nearest(resize: Resize, place: Index, exact: bool) -> Index:
    if resize.times is not None:
        return place // index(resize.times)
    source = resize.source(place, False, torch.float32)
    if exact:
        source = _not_negative(source) + 0.5
    else:
        step = torch.tensor(resize.step(False), dtype=torch.float32).item()
        source = Scalar(to(to(position(place), torch.int32), torch.float32)) * step
    return resize.clamped(source.to(torch.int32))


@lowers(aten.upsample_nearest1d_backward.default, aten.upsample_nearest2d_backward.default,
        aten.upsample_nearest3d_backward.default)
def upsample_nearest_backward(call_: Call, gradient: Lazy, size: Sequence[Size], shape: Sequence[Size],
                              *scales: float | None) -> Any:
    """Where each element was repeated a whole number of times: the sum over these."""
    count = len(size)
    result = call_.result.shape
    given = Lazy(tuple(result), gradient.dtype, None, gradient.at)
    resizes = _resizes(given, gradient.shape, scales or [None] * count)
    if resizes is None or any(resize.times is None for resize in resizes):
        return NotImplemented
    wide = ACCUMULATE.get(gradient.dtype, gradient.dtype)
    axes = [Axis(resize.times, lambda p, number, times=resize.times: (p * times + number, None)) for resize in resizes]
    return converted(windows(call_, gradient, result, axes, "sum", lambda place: to(gradient.at(place), wide), wide),
                     gradient.dtype)


# Means by weights.

@lowers(aten.upsample_bicubic2d.default)
def upsample_bicubic2d(call_: Call, x: Lazy, size: Sequence[Size], corners: bool, *scales: float | None) -> Any:
    resizes = _resizes(x, call_.result.shape, scales or [None, None])
    if resizes is None or not x.dtype.is_floating_point:
        return NotImplemented
    wide = ACCUMULATE.get(x.dtype, x.dtype)
    call_.builder.cheap_to_repeat(x)

    def at(place: Sequence[Index]) -> Expr:
        rows, columns = (_cubic(resize, p, corners, wide) for resize, p in zip(resizes, place[-2:], strict=True))
        means = [_sum(Scalar(to(x.at([*place[:-2], row, column]), wide)) * weight for column, weight in columns) for row, _ in rows]
        return to(_sum(mean * weight for mean, (_, weight) in zip(means, rows, strict=True)).expr, x.dtype)
    return computed([x], call_.result.shape, x.dtype, at, 100)


def _sum(values: Iterable[Scalar]) -> Scalar:
    first, *rest = values
    return sum(rest, first)


def _cubic(resize: Resize, place: Index, corners: bool, dtype: torch.dtype) -> list[tuple[Index, Scalar]]:
    """Four positions in the input, and their weights."""
    source = resize.source(place, corners, dtype)
    low = call("minimum", call("floor", source).to(torch.int32), resize.size - 1)
    t = _part(source - low.to(dtype))

    def near(x: Scalar) -> Scalar:
        return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1.0

    def far(x: Scalar) -> Scalar:
        return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC
    weights = [far(t + 1.0), near(t), near(1.0 - t), far(1.0 - t + 1.0)]
    return [(resize.clamped(call("maximum", low + (n - 1), 0)), weight) for n, weight in enumerate(weights)]


def _not_negative(x: Scalar) -> Scalar:
    return where(x < 0.0, 0.0, x)


def _part(x: Scalar) -> Scalar:
    """Between 0 and 1."""
    x = _not_negative(x)
    return where(x > 1.0, 1.0, x)
