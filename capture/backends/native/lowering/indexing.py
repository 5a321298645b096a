"""Lowering of gathers: reading at positions that tensors hold."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capture.backends.native.index import ZERO, Index, Size, Value
from capture.backends.native.index import index as index_of
from capture.backends.native.ir import Expr, Load, Position, constant, op, position
from capture.backends.native.lowering.builder import broadcast
from capture.backends.native.lowering.lazy import IndexMap, Lazy, computed
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import ACCUMULATE, as_index, number, to
from capture.backends.native.lowering.views import wrapped
from capture.backends.native.show import postorder

aten = torch.ops.aten


def _gathered(call: Call, x: Lazy, indices: Sequence[Lazy], mapped: Any) -> Lazy:
    """`x` at `mapped(place)`."""
    call.builder.cheap_to_repeat(x)
    for value in indices:
        call.builder.cheap_to_repeat(value)

    def at(place: Sequence[Index]) -> Expr:
        where = mapped(place)
        return in_range(x.at(where), where)
    result = computed([x, *indices], call.result.shape, x.dtype, at, 1)
    return result if call.op is aten._unsafe_index.Tensor else call.builder.watch(call.node, result, mapped)


def in_range(expr: Expr, where: Sequence[Index]) -> Expr:
    """What is found at `where`. If that is the same anywhere (it is constant, or one element), the indices are looked at
    nevertheless, since eager mode refuses those out of range."""
    asked = [value for place in where for value in place.atoms() if isinstance(value, Value) and value.error is not None]
    used = {atom for node in postorder(expr) if isinstance(node, (Load, Position)) for atom in node.index.atoms()} if asked else ()
    for value in dict.fromkeys(asked):
        if value not in used:
            below = op("lt", torch.bool, position(index_of(value)), constant(0, torch.int64))       # never
            wide = ACCUMULATE.get(expr.dtype, expr.dtype)
            expr = to(op("where", wide, below, number(0, wide), to(expr, wide)), expr.dtype)
    return expr


def along(size: Size, index: Lazy, place: Sequence[Index], wrap: bool = False, error: type[Exception] = IndexError) -> Index:
    """The position along a dimension of that size which the tensor `index` has at `place`; see `as_index`."""
    return as_index(index.at(place), size, wrap, error)


def error_of_elements(call: Call) -> type[Exception]:
    """What eager mode raises where a call that reads or writes elements one by one has an index out of range."""
    decomposed = str(call.node.meta.get("original_aten", ""))       # a copy, which is equal to no other
    return IndexError if decomposed.startswith("aten.nll_loss") else RuntimeError


@lowers(aten.embedding.default)
def embedding(call: Call, weight: Lazy, indices: Lazy, *options: Any) -> Lazy:
    return _gathered(call, weight, [indices], lambda place: [along(weight.shape[0], indices, place[:-1]), place[-1]])


@lowers(aten.index_select.default)
def index_select(call: Call, x: Lazy, dim: int, indices: Lazy) -> Any:
    if not x.shape or len(indices.shape) != 1:
        return NotImplemented
    dim = wrapped(dim, len(x.shape))
    return _gathered(call, x, [indices], lambda place: [
        along(x.shape[dim], indices, [p]) if n == dim else p for n, p in enumerate(place)])


@lowers(aten.gather.default)
def gather(call: Call, x: Lazy, dim: int, indices: Lazy, *, sparse_grad: bool = False) -> Any:
    if len(x.shape) != len(indices.shape) or not x.shape:
        return NotImplemented
    dim = wrapped(dim, len(x.shape))
    return _gathered(call, x, [indices], lambda place: [
        along(x.shape[dim], indices, place, error=error_of_elements(call)) if n == dim else p for n, p in enumerate(place)])


@dataclass(frozen=True, slots=True)
class Selection:
    """What `x[indices]` means. `shape`: of the result, of which `rank` dimensions from `lead` on are those of the indices together;
    `mapped`: from an element of it to one of `x`; `indices`: the tensors."""

    shape: tuple[Size, ...]
    lead: int
    rank: int
    mapped: IndexMap
    indices: tuple[Lazy, ...]


def selection(call: Call, x: Lazy, indices: Sequence[Lazy | None]) -> Selection | None:
    """None for masks: what these select depends on the data."""
    given = [n for n, value in enumerate(indices) if value is not None]
    tensors = [value for value in indices if value is not None]
    if not given or any(t.dtype in (torch.bool, torch.uint8) for t in tensors):
        return None
    lead = given[0] if given == list(range(given[0], given[-1] + 1)) else 0
    rank = max(len(t.shape) for t in tensors)
    padded = [(1,) * (rank - len(t.shape)) + t.shape for t in tensors]
    common = tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))
    others = [size for n, size in enumerate(x.shape) if n not in given]
    shape = (*others[:lead], *common, *others[lead:])
    spread = {n: broadcast(call.builder, value, common) for n, value in zip(given, tensors, strict=True)}

    def mapped(place: Sequence[Index]) -> Sequence[Index]:
        where, rest = place[lead:lead + rank], iter([*place[:lead], *place[lead + rank:]])
        return [ZERO if x.shape[n] == 0 else along(x.shape[n], spread[n], where, wrap=True) if n in spread else next(rest)
                for n in range(len(x.shape))]
    return Selection(shape, lead, rank, mapped, tuple(spread.values()))


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(call: Call, x: Lazy, indices: Sequence[Lazy | None]) -> Any:
    chosen = selection(call, x, indices)
    return NotImplemented if chosen is None else _gathered(call, x, chosen.indices, chosen.mapped)
