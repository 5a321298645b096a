"""Gathers: reading at positions that tensors hold."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from capture.backends.native.index import ZERO, Index, Size
from capture.backends.native.ir import Expr, op, position
from capture.backends.native.lowering.builder import broadcast
from capture.backends.native.lowering.lazy import Lazy, computed
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import as_index, choose, number
from capture.backends.native.lowering.views import wrapped

aten = torch.ops.aten


def _gathered(call: Call, x: Lazy, indices: Sequence[Lazy], mapped: Any) -> Lazy:
    """`x` at `mapped(place)`."""
    call.builder.cheap_to_repeat(x)
    for value in indices:
        call.builder.cheap_to_repeat(value)
    return computed([x, *indices], call.result.shape, x.dtype, lambda place: x.at(mapped(place)), 1)


def _along(size: Size, index: Lazy, place: Sequence[Index], wrap: bool = False) -> Index:
    """The position along a dimension of that size which the tensor `index` has at `place`."""
    return as_index(index.at(place), size, wrap)


@lowers(aten.embedding.default)
def embedding(call: Call, weight: Lazy, indices: Lazy, *options: Any) -> Lazy:
    return _gathered(call, weight, [indices], lambda place: [_along(weight.shape[0], indices, place[:-1]), place[-1]])


@lowers(aten.index_select.default)
def index_select(call: Call, x: Lazy, dim: int, indices: Lazy) -> Any:
    if not x.shape or len(indices.shape) != 1:
        return NotImplemented
    dim = wrapped(dim, len(x.shape))
    return _gathered(call, x, [indices], lambda place: [
        _along(x.shape[dim], indices, [p]) if n == dim else p for n, p in enumerate(place)])


@lowers(aten.gather.default)
def gather(call: Call, x: Lazy, dim: int, indices: Lazy, *, sparse_grad: bool = False) -> Any:
    if len(x.shape) != len(indices.shape) or not x.shape:
        return NotImplemented
    dim = wrapped(dim, len(x.shape))
    return _gathered(call, x, [indices], lambda place: [
        _along(x.shape[dim], indices, place) if n == dim else p for n, p in enumerate(place)])


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(call: Call, x: Lazy, indices: Sequence[Lazy | None]) -> Any:
    given = [n for n, value in enumerate(indices) if value is not None]
    tensors = [value for value in indices if value is not None]
    if not given or any(t.dtype in (torch.bool, torch.uint8) for t in tensors):
        return NotImplemented
    together = given == list(range(given[0], given[-1] + 1))
    lead = given[0] if together else 0
    rank = len(call.result.shape) - (len(x.shape) - len(given))
    common = call.result.shape[lead:lead + rank]
    spread = {n: broadcast(call.builder, value, common) for n, value in zip(given, tensors, strict=True)}

    def mapped(place: Sequence[Index]) -> Sequence[Index]:
        where, rest = place[lead:lead + rank], iter([*place[:lead], *place[lead + rank:]])
        return [ZERO if x.shape[n] == 0 else _along(x.shape[n], spread[n], where, wrap=True) if n in spread else next(rest)
                for n in range(len(x.shape))]
    return _gathered(call, x, list(spread.values()), mapped)


@lowers(aten.scatter.value, aten.scatter.src)
def scatter(call: Call, x: Lazy, dim: int, indices: Lazy, value: Any) -> Any:
    """One element along `dim`, for each index in the other dimensions: a choice by comparing positions."""
    dim = wrapped(dim, len(x.shape))
    if not x.shape or indices.shape != tuple(1 if n == dim else size for n, size in enumerate(x.shape)) or x.shape[dim] == 1:
        return NotImplemented
    call.builder.cheap_to_repeat(indices)
    source = value if isinstance(value, Lazy) else None
    if source is not None:
        call.builder.cheap_to_repeat(source)

    def at(place: Sequence[Index]) -> Expr:
        there = [ZERO if n == dim else p for n, p in enumerate(place)]
        chosen = position(_along(x.shape[dim], indices, there))
        new = number(value, x.dtype) if source is None else source.at(there)
        return choose(op("eq", torch.bool, position(place[dim]), chosen), new, x.at(place))
    values = [x, indices, *([source] if source else [])]
    return computed(values, x.shape, x.dtype, at, 2)
