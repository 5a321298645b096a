"""Scatters: writing to, or combining with, elements at positions that tensors hold.

Each is a copy of the tensor, unless it may be changed where it lies, and one nest that stores to it in order, as eager mode does
on a CPU: where several values go to one element, sums are added up in the same order, and of plain values the last one stays. On a
GPU, where order costs more than it is worth, they are ATen's.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capture.backends.native.index import ZERO, Index, Size, Value, contiguous_strides, index, plain
from capture.backends.native.ir import Expr, constant, op, position
from capture.backends.native.lowering.builder import broadcast, converted, elementwise, same_strides
from capture.backends.native.lowering.indexing import along, error_of_elements, selection
from capture.backends.native.lowering.lazy import At, IndexMap, Lazy, computed, in_memory, variables
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import ACCUMULATE, Scalar, choose, number, to, where
from capture.backends.native.lowering.views import reshaping, wrapped

aten = torch.ops.aten

MODES = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "maximum", "amin": "minimum", "mean": "add"}


@dataclass(frozen=True, slots=True)
class _Points:
    """Where values go: from each point of `shape` to the element `mapped`, with points that may meet differing in `meet`."""

    shape: tuple[Size, ...]
    meet: Collection[int]
    mapped: IndexMap


def _scattered(call: Call, x: Lazy, points: _Points, at: At, mode: str = "set",
               mask: Callable[[Sequence[Index]], Expr] | None = None) -> Any:
    """`x` with `at` of each point stored to it."""
    if not call.in_order or mode == "set" and not _are_computed(points):
        return NotImplemented
    target = call.into or call.builder.fresh(x, call.result.strides)
    call.builder.scatter(target, points.shape, points.meet, points.mapped, at, mode, mask)
    return in_memory(target, x.shape)


def _are_computed(points: _Points) -> bool:
    """Whether the program computes where values go; constants do not tell that points meet."""
    return any(isinstance(atom, Value) for one in points.mapped(variables(points.shape)) for atom in index(one).atoms())


def _zeros(shape: tuple[Size, ...], dtype: torch.dtype) -> Lazy:
    return Lazy(shape, dtype, None, lambda place: number(0, dtype))


# Along one dimension, by an index for each value, or for each slice of values.

def _by_element(call: Call, x: Lazy, dim: int, indices: Lazy) -> _Points:
    call.builder.cheap_to_repeat(indices)
    return _Points(indices.shape, [dim], lambda place: [
        along(x.shape[dim], indices, place, error=error_of_elements(call)) if n == dim else p for n, p in enumerate(place)])


def _by_slice(call: Call, x: Lazy, dim: int, indices: Lazy, wrap: bool = False, error: type[Exception] = IndexError) -> _Points:
    call.builder.cheap_to_repeat(indices)
    shape = tuple(indices.numel if n == dim else size for n, size in enumerate(x.shape))
    return _Points(tuple(map(plain, shape)), [dim], lambda place: [
        along(x.shape[dim], indices, place[dim:dim + len(indices.shape)], wrap, error) if n == dim else p
        for n, p in enumerate(place)])


@lowers(aten.scatter.value, aten.scatter.src, part=True)
def scatter(call: Call, x: Lazy, dim: int, indices: Lazy, value: Any) -> Any:
    if not x.shape:
        return NotImplemented
    dim = wrapped(dim, len(x.shape))
    source = value if isinstance(value, Lazy) else None
    one = indices.shape == tuple(1 if n == dim else size for n, size in enumerate(x.shape)) and x.shape[dim] != 1
    if one and call.into is None:
        return _one_of_each(call, x, dim, indices, value)
    at = source.at if source is not None else lambda place: number(value, x.dtype)
    return _scattered(call, x, _by_element(call, x, dim, indices), at)


def _one_of_each(call: Call, x: Lazy, dim: int, indices: Lazy, value: Any) -> Lazy:
    """One element along `dim`, for each index in the other dimensions: a choice by comparing positions."""
    source = value if isinstance(value, Lazy) else None
    for repeated in (indices, source):
        if repeated is not None:
            call.builder.cheap_to_repeat(repeated)

    def there_of(place: Sequence[Index]) -> list[Index]:
        return [ZERO if n == dim else p for n, p in enumerate(place)]

    def chosen_at(place: Sequence[Index]) -> Index:
        return along(x.shape[dim], indices, there_of(place), error=error_of_elements(call))

    def at(place: Sequence[Index]) -> Expr:
        there, chosen = there_of(place), position(chosen_at(place))
        new = number(value, x.dtype) if source is None else source.at(there)
        return choose(op("eq", torch.bool, position(place[dim]), chosen), new, x.at(place))
    values = [x, indices, *([source] if source else [])]
    return call.builder.watch(call.node, computed(values, x.shape, x.dtype, at, 2), lambda place: [chosen_at(place)])


@lowers(aten.scatter_add.default, part=True)
def scatter_add(call: Call, x: Lazy, dim: int, indices: Lazy, source: Lazy) -> Any:
    return _combined(call, x, dim, indices, source, "sum")


@lowers(aten.scatter.reduce, part=True)
def scatter_reduce_old(call: Call, x: Lazy, dim: int, indices: Lazy, source: Lazy, *, reduce: str) -> Any:
    return _combined(call, x, dim, indices, source, reduce)


@lowers(aten.scatter_reduce.two, part=True)
def scatter_reduce(call: Call, x: Lazy, dim: int, indices: Lazy, source: Lazy, reduce: str, *, include_self: bool = True) -> Any:
    return _combined(call, x, dim, indices, source, reduce, include_self)


def _combined(call: Call, x: Lazy, dim: int, indices: Lazy, source: Lazy, reduce: str, include_self: bool = True) -> Any:
    if not x.shape or x.dtype == torch.bool:
        return NotImplemented
    return _reduced(call, x, _by_element(call, x, wrapped(dim, len(x.shape)), indices), source, reduce, include_self)


@lowers(aten.index_reduce.default, part=True)
def index_reduce(call: Call, x: Lazy, dim: int, indices: Lazy, source: Lazy, reduce: str, *, include_self: bool = True) -> Any:
    if not x.shape:
        return NotImplemented
    return _reduced(call, x, _by_slice(call, x, wrapped(dim, len(x.shape)), indices), source, reduce, include_self)


def _reduced(call: Call, x: Lazy, points: _Points, source: Lazy, reduce: str, include_self: bool) -> Any:
    """Without `include_self` elements that values go to start from what changes nothing. Low precision is rounded in the end."""
    if not call.in_order:
        return NotImplemented
    builder, mode = call.builder, MODES[reduce]
    wide = ACCUMULATE.get(x.dtype, x.dtype)
    here = call.into if wide == x.dtype and reduce != "mean" else None
    target = here or builder.fresh(converted(x, wide), call.result.strides)
    if not include_self:
        builder.scatter(target, points.shape, points.meet, points.mapped, lambda place: _identity(mode, wide))
    builder.scatter(target, points.shape, points.meet, points.mapped, lambda place: to(source.at(place), wide), mode)
    result = in_memory(target, x.shape)
    if reduce != "mean":
        return converted(result, x.dtype)
    ones = Lazy(x.shape, torch.int64, None, lambda place: constant(int(include_self), torch.int64))
    counts = builder.fresh(ones, call.result.strides)
    builder.scatter(counts, points.shape, points.meet, points.mapped, lambda place: constant(1, torch.int64), "add")

    def mean(args: Sequence[Expr]) -> Expr:
        total, count = Scalar(args[0]), Scalar(args[1])
        count = where(count < 1, 1, count).to(wide)
        return to((total / count if wide.is_floating_point else total.floordiv(count)).expr, x.dtype)
    return elementwise([result, in_memory(counts, x.shape)], mean, x.shape, x.dtype, 4)


def _identity(mode: str, dtype: torch.dtype) -> Expr:
    if mode in ("add", "mul"):
        return constant(int(mode == "mul"), dtype)
    if dtype.is_floating_point:
        return constant(-math.inf if mode == "maximum" else math.inf, dtype)
    return constant(torch.iinfo(dtype).min if mode == "maximum" else torch.iinfo(dtype).max, dtype)


@lowers(aten.index_add.default, part=True)
def index_add(call: Call, x: Lazy, dim: int, indices: Lazy, source: Lazy, *, alpha: Any = 1) -> Any:
    if not x.shape or x.dtype == torch.bool:
        return NotImplemented
    error = IndexError if len(x.shape) == 1 else RuntimeError
    points = _by_slice(call, x, wrapped(dim, len(x.shape)), indices, error=error)

    wide = ACCUMULATE.get(x.dtype, x.dtype)

    def multiplied(args: Sequence[Expr]) -> Expr:
        value = Scalar(to(args[0], wide))
        return (value if alpha == 1 else value * Scalar(number(alpha, wide))).expr
    if not source.shape:
        source = broadcast(call.builder, source, points.shape)
    return _reduced(call, x, points, elementwise([source], multiplied, source.shape, wide, 1), "sum", True)


@lowers(aten.index_copy.default, part=True)
def index_copy(call: Call, x: Lazy, dim: int, indices: Lazy, source: Lazy) -> Any:
    if not x.shape or not source.shape:
        return NotImplemented
    return _scattered(call, x, _by_slice(call, x, wrapped(dim, len(x.shape)), indices), source.at)


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, part=True)
def index_fill(call: Call, x: Lazy, dim: int, indices: Lazy, value: Any) -> Any:
    if not x.shape:
        return NotImplemented
    filled = to(value.at(()), x.dtype) if isinstance(value, Lazy) else number(value, x.dtype)
    return _scattered(call, x, _by_slice(call, x, wrapped(dim, len(x.shape)), indices, wrap=True), lambda place: filled)


# By an index for each of several dimensions.

@lowers(aten.index_put.default, aten._unsafe_index_put.default, part=True)
def index_put(call: Call, x: Lazy, indices: Sequence[Lazy | None], values: Lazy, accumulate: bool = False) -> Any:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.bool:
        return _masked(call, x, indices[0], values, accumulate)
    chosen = selection(call, x, indices)
    if chosen is None or accumulate and x.dtype == torch.bool:
        return NotImplemented
    for value in chosen.indices:
        call.builder.cheap_to_repeat(value)
    points = _Points(chosen.shape, range(chosen.lead, chosen.lead + chosen.rank), chosen.mapped)
    return _scattered(call, x, points, broadcast(call.builder, values, chosen.shape).at, "add" if accumulate else "set")


@lowers(aten.put.default, part=True)
def put(call: Call, x: Lazy, indices: Lazy, source: Lazy, accumulate: bool = False) -> Any:
    """By an index into the elements of `x` in row-major order. Eager mode goes through the values as they lie in memory, which
    decides where several go to one element. Where there is one element alone, nothing would look at the indices."""
    in_order = all(t.strides is not None and same_strides(t.shape, t.strides, contiguous_strides(t.shape))
                   for t in (indices, source))
    if plain(x.numel) == 1 or not x.shape or not in_order or accumulate and x.dtype == torch.bool:
        return NotImplemented
    call.builder.cheap_to_repeat(indices)
    element, value = reshaping(x.shape, [plain(x.numel)]), reshaping(source.shape, indices.shape)
    points = _Points(indices.shape, range(len(indices.shape)), lambda place: element(
        [along(plain(x.numel), indices, place, wrap=True)]))
    return _scattered(call, x, points, lambda place: source.at(value(place)), "add" if accumulate else "set")


def _masked(call: Call, x: Lazy, mask: Lazy, values: Lazy, accumulate: bool) -> Any:
    """One value for all elements where `mask` is true."""
    if accumulate or any(size != 1 for size in values.shape):
        return NotImplemented
    rank = len(mask.shape)
    call.builder.cheap_to_repeat(mask)
    call.builder.cheap_to_repeat(values)
    return computed([x, mask, values], x.shape, x.dtype, lambda place: choose(
        mask.at(place[:rank]), values.at([ZERO] * len(values.shape)), x.at(place)), 1)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(call: Call, gradient: Lazy, indices: Lazy, rows: Size, padding: int, scale_by_frequency: bool) -> Any:
    if scale_by_frequency:
        return NotImplemented
    call.builder.cheap_to_repeat(indices)
    rank = len(indices.shape)
    points = _Points(gradient.shape, range(rank), lambda place: [along(rows, indices, place[:rank]), place[-1]])

    def used(place: Sequence[Index]) -> Expr:
        return Scalar(to(indices.at(place[:rank]), torch.int64)).ne(padding).expr
    zeros = _zeros(call.result.shape, gradient.dtype)
    return _scattered(call, zeros, points, gradient.at, "add", used if padding >= 0 else None)
