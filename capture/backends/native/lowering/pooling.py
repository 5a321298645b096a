"""Lowering of pooling and its gradients: windows of a tensor, combined. Of an average, the gradient is the sum over an element's
windows."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capture.backends.native.index import Index, Size, index, plain
from capture.backends.native.ir import Expr, constant, position
from capture.backends.native.lowering.builder import converted, is_cheap
from capture.backends.native.lowering.lazy import At, Lazy, computed, in_memory, viewed
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import ACCUMULATE, Scalar, as_index, at_least, below, both, choose, masked, number, to
from capture.backends.native.lowering.scalar import call as scalar

aten = torch.ops.aten

UNROLLED = 4            # elements of a window whose sum is written out
COMPARED = 32           # elements of a window whose maximum and its position are written out


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of windows of `count` elements each. `at`: from a window and a number below `count` to the position of that
    element, and the condition under which the window has it (None: always)."""

    count: int
    at: Callable[[Index, Index], tuple[Index, Expr | None]]


@dataclass(frozen=True, slots=True)
class Pool:
    """The settings of a pooling operator along one dimension. `size`: of its input, `result`: of its output."""

    size: int
    result: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def windows(self) -> Axis:
        """From results to elements of the input."""
        def at(window: Index, number: Index) -> tuple[Index, Expr | None]:
            place = window * self.stride + number * self.dilation - self.padding
            return place, both(at_least(place, 0), below(place, self.size))
        return Axis(self.kernel, at)

    @property
    def origins(self) -> Axis:
        """From elements of the input to the results that they have a part in. Without dilation."""
        def at(element: Index, number: Index) -> tuple[Index, Expr | None]:
            padded = element + self.padding
            window = padded // self.stride - number
            return window, both(at_least(window, 0), below(window, self.result), below(padded - window * self.stride, self.kernel))
        return Axis(-(-self.kernel // self.stride), at)

    def extent(self, window: Index, include_pad: bool, ceil: bool) -> Scalar | int:
        """By how many elements a window's sum is divided."""
        start = window * self.stride - self.padding
        if not ceil and (include_pad or not self.padding):
            return self.kernel
        stop = scalar("minimum", Scalar(position(start + self.kernel)), self.size + (self.padding if include_pad else 0))
        return stop - (Scalar(position(start)) if include_pad else scalar("maximum", Scalar(position(start)), 0))


def _pools(x: Lazy, shape: Sequence[Size], kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> list[Pool] | None:
    """The settings of each of the last dimensions of `x`. None where sizes are symbolic, or 0."""
    count = len(kernel)
    sizes, results = x.shape[-count:], shape[-count:]
    if not _has_elements(x) or not all(isinstance(size, int) for size in (*sizes, *results)):
        return None
    stride = _per_dim(stride, kernel, count)
    settings = zip(sizes, results, kernel, stride, _per_dim(padding, (), count), _per_dim(dilation, (), count), strict=True)
    return [Pool(*setting) for setting in settings]


def _per_dim(value: Any, default: Sequence[int], count: int) -> list[int]:
    """A setting for each spatial dimension; one number stands for all."""
    given = [value] if isinstance(value, int) else list(value) or list(default)
    return given * count if len(given) == 1 else given


def _has_elements(x: Lazy) -> bool:
    return all(size != 0 for size in x.shape) and x.dtype != torch.bool


def windows(call: Call, x: Lazy, shape: Sequence[Size], axes: Sequence[Axis], reduction: str, element: At,
            dtype: torch.dtype) -> Lazy:
    """`element`, of `dtype`, which reads `x`, combined over windows of its last dimensions, to a tensor of `shape`. What lies
    outside counts as the reduction's identity."""
    rank = len(shape) - len(axes)
    counts = [axis.count for axis in axes]
    low = -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min
    outside = constant(0 if reduction == "sum" else low, dtype)

    def of_window(place: Sequence[Index], numbers: Sequence[Index]) -> Expr:
        found = [axis.at(p, number) for axis, p, number in zip(axes, place[rank:], numbers, strict=True)]
        inside = both(*(condition for _, condition in found))
        return choose(inside, masked(element([*place[:rank], *(p for p, _ in found)]), inside), outside)
    if math.prod(counts) <= UNROLLED and reduction == "sum":
        def total(place: Sequence[Index]) -> Expr:
            parts = [Scalar(of_window(place, numbers)) for numbers in _steps(counts)]
            return sum(parts[1:], parts[0]).expr
        call.builder.cheap_to_repeat(x)
        return computed([x], tuple(shape), dtype, total, 4 * math.prod(counts))
    # Laid out like the result: from another layout it would have to be transposed.
    value = call.builder.reduce((*shape, *counts), range(len(shape), len(shape) + len(axes)), reduction,
                                lambda place: of_window(place[:len(shape)], place[len(shape):]), dtype,
                                (*call.result.strides, *[1] * len(axes)))
    return viewed(value, tuple(shape), lambda place: [*place, *[index(0)] * len(axes)])


def _steps(counts: Sequence[int]) -> list[list[Index]]:
    """Every point of a window, row by row."""
    points: list[list[Index]] = [[]]
    for count in counts:
        points = [[*point, index(number)] for point in points for number in range(count)]
    return points


def _widened(x: Lazy) -> At:
    wide = ACCUMULATE.get(x.dtype, x.dtype)
    return lambda place: to(x.at(place), wide)


def _stored_if_read_often(call: Call, x: Lazy, pools: Sequence[Pool]) -> None:
    if not is_cheap(x, call.builder.program) and any(pool.stride < pool.kernel for pool in pools):
        call.builder.store(x)


# Maxima.

@lowers(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool(call: Call, x: Lazy, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
             ceil_mode: bool = False) -> Any:
    kernel = _per_dim(kernel, (), 2 if "2d" in call.op._opname else 3)
    pools = _pools(x, call.result.shape, kernel, stride, padding, dilation)
    if pools is None or 1 in call.used and math.prod(kernel) > COMPARED:
        return NotImplemented
    _stored_if_read_often(call, x, pools)
    if 1 in call.used:
        return _maxima(call, x, pools)
    wide = ACCUMULATE.get(x.dtype, x.dtype)
    value = windows(call, x, call.result.shape, [pool.windows for pool in pools], "max", _widened(x), wide)
    return converted(value, x.dtype), None


def _maxima(call: Call, x: Lazy, pools: Sequence[Pool]) -> tuple[Lazy, Lazy]:
    """The maxima and their positions: of equal ones the first, but of NaNs the last, as in eager mode."""
    shape, wide = call.result.shape, ACCUMULATE.get(x.dtype, x.dtype)
    rank = len(shape) - len(pools)
    axes = [pool.windows for pool in pools]
    lowest = -math.inf if wide.is_floating_point else torch.iinfo(wide).min
    call.builder.cheap_to_repeat(x)

    def pair(place: Sequence[Index]) -> tuple[Scalar, Scalar]:
        best, where = Scalar(constant(lowest, wide)), _row_major([_first(pool, p) for pool, p in zip(pools, place[rank:])], pools)
        for numbers in _steps([axis.count for axis in axes]):
            found = [axis.at(p, number) for axis, p, number in zip(axes, place[rank:], numbers, strict=True)]
            inside = both(*(condition for _, condition in found))
            value = Scalar(masked(to(x.at([*place[:rank], *(p for p, _ in found)]), wide), inside))
            better = (value > best) | value.isnan() if wide.is_floating_point else value > best
            chosen = both(inside, better.expr)
            here = _row_major([Scalar(position(p)) for p, _ in found], pools)
            best, where = Scalar(choose(chosen, value.expr, best.expr)), Scalar(choose(chosen, here.expr, where.expr))
        return best, where
    work = 5 * math.prod(axis.count for axis in axes)
    return (computed([x], shape, x.dtype, lambda place: to(pair(place)[0].expr, x.dtype), work),
            computed([x], shape, torch.int64, lambda place: pair(place)[1].expr, work))


def _first(pool: Pool, window: Index) -> Scalar:
    """The first element of a window that is not padding."""
    start = window * pool.stride - pool.padding
    if not pool.padding:
        return Scalar(position(start))
    skipped = scalar("maximum", Scalar(position((pool.dilation - 1 - start) // pool.dilation)), 0)
    return Scalar(position(start)) + skipped * pool.dilation


def _row_major(places: Sequence[Scalar], pools: Sequence[Pool]) -> Scalar:
    total = places[0]
    for place, pool in zip(places[1:], pools[1:], strict=True):
        total = total * pool.size + place
    return total


@lowers(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(call: Call, gradient: Lazy, x: Lazy, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
                        indices: Lazy) -> Any:
    """A scatter within each plane: there are fewer windows than elements."""
    if any(size == 0 for size in gradient.shape) or not call.in_order:
        return NotImplemented
    target = call.builder.fresh(Lazy(x.shape, x.dtype, None, lambda place: number(0, x.dtype)), call.result.strides)
    rank, (height, width) = len(x.shape) - 2, x.shape[-2:]

    def mapped(place: Sequence[Index]) -> list[Index]:
        chosen = as_index(indices.at(place), plain(index(height) * width), wrap=False)
        return [*place[:rank], chosen // index(width), chosen % index(width)]
    call.builder.scatter(target, gradient.shape, (rank, rank + 1), mapped, gradient.at, "add")
    return in_memory(target, x.shape)


# Averages.


@lowers(aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(call: Call, x: Lazy, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
             count_include_pad: bool = True, divisor_override: int | None = None) -> Any:
    kernel = _per_dim(kernel, (), 2 if "2d" in call.op._opname else 3)
    pools = _pools(x, call.result.shape, kernel, stride, padding)
    if pools is None or not x.dtype.is_floating_point:
        return NotImplemented
    _stored_if_read_often(call, x, pools)
    total = windows(call, x, call.result.shape, [pool.windows for pool in pools], "sum", _widened(x),
                    ACCUMULATE.get(x.dtype, x.dtype))
    return _divided(total, x.dtype, _divisor(pools, count_include_pad, ceil_mode, divisor_override))


@lowers(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def avg_pool_backward(call: Call, gradient: Lazy, x: Lazy, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
                      count_include_pad: bool, divisor_override: int | None) -> Any:
    kernel = _per_dim(kernel, (), 2 if "2d" in call.op._opname else 3)
    pools = _pools(x, gradient.shape, kernel, stride, padding)
    if pools is None or not _has_elements(gradient):
        return NotImplemented
    divisor = _divisor(pools, count_include_pad, ceil_mode, divisor_override)
    return _average_gradient(call, gradient, [pool.origins for pool in pools], divisor)


Divisor = Callable[[Sequence[Index]], Scalar | int]     # of a window's place


def _divisor(pools: Sequence[Pool], include_pad: bool, ceil: bool, override: int | None) -> Divisor:
    def divisor(place: Sequence[Index]) -> Scalar | int:
        extents = [pool.extent(p, include_pad, ceil) for pool, p in zip(pools, place[-len(pools):], strict=True)]
        return override or math.prod(extents)
    return divisor


def _divided(total: Lazy, dtype: torch.dtype, divisor: Divisor) -> Lazy:
    def at(place: Sequence[Index]) -> Expr:
        return to(_quotient(total.at(place), divisor, place), dtype)
    return computed([total], total.shape, dtype, at, 4)


def _quotient(value: Expr, divisor: Divisor, place: Sequence[Index]) -> Expr:
    by = divisor(place)
    return (Scalar(value) / (by.to(value.dtype) if isinstance(by, Scalar) else by)).expr


def _average_gradient(call: Call, gradient: Lazy, axes: Sequence[Axis], divisor: Divisor) -> Lazy:
    """Each window's gradient, divided as the window was, goes to all of its elements."""
    if not is_cheap(gradient, call.builder.program):
        call.builder.store(gradient)
    wide = ACCUMULATE.get(gradient.dtype, gradient.dtype)
    total = windows(call, gradient, call.result.shape, axes, "sum",
                    lambda window: _quotient(to(gradient.at(window), wide), divisor, window), wide)
    return converted(total, gradient.dtype)


# Averages over windows that follow from the sizes.

@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(call: Call, x: Lazy, size: Sequence[Size]) -> Any:
    parts = _parts(x, x.shape[-len(size):], size)
    if parts is None or not x.dtype.is_floating_point:
        return NotImplemented
    if not is_cheap(x, call.builder.program) and any(part.overlap for part in parts):
        call.builder.store(x)
    total = windows(call, x, call.result.shape, [part.windows for part in parts], "sum", _widened(x),
                    ACCUMULATE.get(x.dtype, x.dtype))
    return _divided(total, x.dtype, _extent(parts))


@lowers(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool_backward(call: Call, gradient: Lazy, x: Lazy) -> Any:
    count = 2 if "2d" in call.op._opname else 3
    parts = _parts(x, x.shape[-count:], gradient.shape[-count:])
    if parts is None or not _has_elements(gradient) or any(part.overlap for part in parts):     # divisions for each element
        return NotImplemented
    return _average_gradient(call, gradient, [part.origins for part in parts], _extent(parts))


@dataclass(frozen=True, slots=True)
class Part:
    """A dimension of `size` elements cut into `result` windows, as equal as can be, which overlap where that is not exact."""

    size: int
    result: int

    @property
    def overlap(self) -> bool:
        return self.size % self.result != 0

    def start(self, window: Index) -> Index:
        return window * self.size // self.result

    def stop(self, window: Index) -> Index:
        return ((window + 1) * self.size + self.result - 1) // self.result

    @property
    def windows(self) -> Axis:
        """From results to elements of the input."""
        longest = max(-(-(n + 1) * self.size // self.result) - n * self.size // self.result for n in range(self.result))

        def at(window: Index, number: Index) -> tuple[Index, Expr | None]:
            place = self.start(window) + number
            return place, below(place, self.stop(window)) if self.overlap else None
        return Axis(longest, at)

    @property
    def origins(self) -> Axis:
        """From elements of the input to the results that they have a part in; where windows do not overlap."""
        return Axis(1, lambda element, number: (element // index(self.size // self.result), None))


def _parts(x: Lazy, sizes: Sequence[Size], results: Sequence[Size]) -> list[Part] | None:
    if not _has_elements(x) or not all(isinstance(size, int) and size for size in (*sizes, *results)):
        return None
    return [Part(size, result) for size, result in zip(sizes, results, strict=True)]


def _extent(parts: Sequence[Part]) -> Divisor:
    def extent(place: Sequence[Index]) -> Scalar | int:
        lengths = [part.stop(window) - part.start(window) for part, window in zip(parts, place, strict=True)]
        constants = [length.constant for length in lengths]
        return math.prod(Scalar(position(length)) for length in lengths) if None in constants else math.prod(constants)
    return lambda place: extent(place[-len(parts):])
