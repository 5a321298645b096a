"""Pooling and resampling where what an element depends on is known: a window of the input, combined."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from capture.backends.native.index import Index, Size, index
from capture.backends.native.ir import Expr, constant
from capture.backends.native.lowering.builder import converted, elementwise, is_cheap
from capture.backends.native.lowering.lazy import Lazy, computed, viewed
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import ACCUMULATE, Scalar, at_least, below, both, choose, masked, to

aten = torch.ops.aten


def _per_dim(value: Any, default: Sequence[int], count: int) -> list[int]:
    """A setting for each spatial dimension; one number stands for all."""
    given = [value] if isinstance(value, int) else list(value) or list(default)
    return given * count if len(given) == 1 else given


def _windows(call: Call, x: Lazy, shape: Sequence[Size], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
             dilation: Sequence[int], reduction: str, fill: float) -> Lazy:
    """Combines the windows of the last dimensions; `fill` is the value outside of the input. The result is as wide as the sum."""
    count, rank = len(kernel), len(shape)
    wide = ACCUMULATE.get(x.dtype, x.dtype)
    if not is_cheap(x) and any(s < k for s, k in zip(stride, kernel, strict=True)):     # windows overlap
        call.builder.store(x)
    outside = constant(fill if wide.is_floating_point else torch.iinfo(wide).min, wide)

    def at(place: Sequence[Index]) -> Expr:
        own = list(place[:rank])
        for n in range(count):
            own[rank - count + n] = place[rank - count + n] * stride[n] + place[rank + n] * dilation[n] - padding[n]
        inside = both(*(c for p, size in zip(own, x.shape, strict=True) for c in (at_least(p, 0), below(p, size))))
        return choose(inside, to(masked(x.at(own), inside), wide), outside)
    value = call.builder.reduce((*shape, *kernel), range(rank, rank + count), reduction, at, wide)
    return viewed(value, tuple(shape), lambda place: [*place, *[index(0)] * count])


@lowers(aten.max_pool2d_with_indices.default)
def max_pool2d(call: Call, x: Lazy, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
               ceil_mode: bool = False) -> Any:
    if 1 in call.used or not _has_extents(x):       # positions are ATen's: it decides which of equal ones
        return NotImplemented
    kernel = _per_dim(kernel, (), 2)
    stride, padding, dilation = _per_dim(stride, kernel, 2), _per_dim(padding, (), 2), _per_dim(dilation, (), 2)
    value = _windows(call, x, call.result.shape, kernel, stride, padding, dilation, "max", -math.inf)
    return converted(value, x.dtype), None


@lowers(aten.avg_pool2d.default)
def avg_pool2d(call: Call, x: Lazy, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Any:
    padding = _per_dim(padding, (), 2)
    varies = ceil_mode or any(padding) and not count_include_pad and divisor_override is None
    if varies or not x.dtype.is_floating_point or not _has_extents(x):
        return NotImplemented
    kernel = _per_dim(kernel, (), 2)
    return _averaged(call, x, kernel, _per_dim(stride, kernel, 2), padding, divisor_override or math.prod(kernel))


@lowers(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(call: Call, x: Lazy, size: Sequence[Size]) -> Any:
    """Where windows are of one size and do not overlap."""
    kernel = _ratios(x.shape[-2:], size)
    if kernel is None or not _has_extents(x):
        return NotImplemented
    return _averaged(call, x, kernel, kernel, [0, 0], math.prod(kernel))


def _averaged(call: Call, x: Lazy, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], divisor: int) -> Lazy:
    value = _windows(call, x, call.result.shape, kernel, stride, padding, [1, 1], "sum", 0.0)
    return elementwise([value], lambda args: to((Scalar(args[0]) / divisor).expr, x.dtype), call.result.shape, x.dtype, 2)


def _has_extents(x: Lazy) -> bool:
    return all(size != 0 for size in x.shape) and x.dtype != torch.bool


@lowers(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default)
def upsample_nearest(call: Call, x: Lazy, size: Sequence[Size], *scales: float | None) -> Any:
    """Where each element is repeated a whole number of times."""
    rank = len(x.shape) - len(size)
    times = _ratios(call.result.shape[rank:], x.shape[rank:])
    if times is None or any(scale is not None and scale != factor for scale, factor in zip(scales, times, strict=False)):
        return NotImplemented
    call.builder.cheap_to_repeat(x)

    def at(place: Sequence[Index]) -> Expr:
        return x.at([*place[:rank], *(p // index(t) for p, t in zip(place[rank:], times, strict=True))])
    return computed([x], call.result.shape, x.dtype, at, 0)


def _ratios(larger: Sequence[Size], smaller: Sequence[Size]) -> list[int] | None:
    """How often each size goes into the other, None where it does not."""
    if any(not isinstance(a, int) or not isinstance(b, int) or b == 0 or a % b for a, b in zip(larger, smaller, strict=True)):
        return None
    return [a // b for a, b in zip(larger, smaller, strict=True)]       # type: ignore[operator, misc]
