"""Views, and what else only moves elements: each operator is a map from the indices of the result to those of the argument."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from capture.backends.native.index import ZERO, Index, Size, bounds, index, plain
from capture.backends.native.ir import Expr
from capture.backends.native.lowering.builder import converted
from capture.backends.native.lowering.lazy import IndexMap, Lazy, computed, in_memory, viewed
from capture.backends.native.lowering.registry import Call, lowers
from capture.backends.native.lowering.scalar import at_least, below, both, choose, masked, number, to
from capture.backends.native.signature import Unsupported

aten = torch.ops.aten


def wrapped(dim: int, rank: int) -> int:
    """A dimension, counted from the front."""
    return dim % rank if rank else 0


def _view(call: Call, x: Lazy, mapped: IndexMap) -> Lazy:
    return viewed(x, call.result.shape, mapped, call.result.strides)


# Dimensions.

@lowers(aten.alias.default, aten.detach.default, aten.lift_fresh.default, view=True)
def alias(call: Call, x: Lazy) -> Lazy:
    return _view(call, x, lambda place: place)


@lowers(aten.permute.default, view=True)
def permute(call: Call, x: Lazy, dims: Sequence[int]) -> Lazy:
    order = [wrapped(dim, len(dims)) for dim in dims]
    back = [order.index(n) for n in range(len(order))]
    return _view(call, x, lambda place: [place[n] for n in back])


@lowers(aten.transpose.int, view=True)
def transpose(call: Call, x: Lazy, first: int, second: int) -> Lazy:
    dims = list(range(len(x.shape)))
    if dims:
        first, second = wrapped(first, len(dims)), wrapped(second, len(dims))
        dims[first], dims[second] = dims[second], dims[first]
    return permute(call, x, dims)


@lowers(aten.t.default, aten.numpy_T.default, aten.mT.default, view=True)
def t(call: Call, x: Lazy) -> Lazy:
    return x if len(x.shape) < 2 else transpose(call, x, -2, -1)


@lowers(aten.expand.default, view=True)
def expand(call: Call, x: Lazy, size: Sequence[Size], *, implicit: bool = False) -> Lazy:
    shape = call.result.shape
    lead = len(shape) - len(x.shape)
    ones = [n for n, inner in enumerate(x.shape) if inner == 1 and shape[lead + n] != 1]
    if ones or any(size != 1 for size in shape[:lead]):
        call.builder.cheap_to_repeat(x)
    return _view(call, x, lambda place: [ZERO if n in ones else p for n, p in enumerate(place[lead:])])


@lowers(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, view=True)
def squeeze(call: Call, x: Lazy, dims: int | Sequence[int] | None = None) -> Lazy:
    given = range(len(x.shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    wanted = {wrapped(dim, len(x.shape)) for dim in given}
    gone = {n for n, size in enumerate(x.shape) if size == 1 and n in wanted}

    def mapped(place: Sequence[Index]) -> Sequence[Index]:
        left = iter(place)
        return [ZERO if n in gone else next(left) for n in range(len(x.shape))]
    return _view(call, x, mapped)


@lowers(aten.unsqueeze.default, view=True)
def unsqueeze(call: Call, x: Lazy, dim: int) -> Lazy:
    dim = wrapped(dim, len(x.shape) + 1)
    return _view(call, x, lambda place: [*place[:dim], *place[dim + 1:]])


# Shapes.

@lowers(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten._reshape_alias.default, view=True)
def view(call: Call, x: Lazy, *ignored: Any) -> Lazy:
    return _view(call, x, reshaping(x.shape, call.result.shape))


def reshaping(old: Sequence[Size], new: Sequence[Size]) -> IndexMap:
    """The map of a change of shape that keeps the row-major order of elements."""
    if any(size == 0 for size in (*old, *new)):
        return lambda place: [ZERO] * len(old)
    groups = _groups(old, new)

    def mapped(place: Sequence[Index]) -> Sequence[Index]:
        result = [ZERO] * len(old)
        for olds, news in groups:
            if len(olds) == 1 and len(news) == 1:
                result[olds[0]] = place[news[0]]
                continue
            number = ZERO
            for n in news:
                number = number * new[n] + place[n]
            for n in reversed(olds[1:]):
                result[n] = number % index(old[n])
                number = number // index(old[n])
            if olds:
                result[olds[0]] = number
        return result
    return mapped


def _groups(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Runs of dimensions of the old and the new shape that hold the same elements, as short as can be; without those of size 1."""
    olds, news = [n for n, size in enumerate(old) if size != 1], [n for n, size in enumerate(new) if size != 1]
    groups = []
    while olds or news:
        left, right = [], []
        a, b = index(1), index(1)
        while not left or a != b:
            if olds and (not news and not left or _is_less(a, b) or not news or not left):
                left.append(olds.pop(0))
                a = a * old[left[-1]]
            elif news:
                right.append(news.pop(0))
                b = b * new[right[-1]]
            else:
                return [([n for n, size in enumerate(old) if size != 1], [n for n, size in enumerate(new) if size != 1])]
        groups.append((left, right))
    return groups


def _is_less(a: Index, b: Index) -> bool:
    """Whether a product of sizes is the smaller one, or, of unknown sizes, has fewer factors."""
    low, high = bounds(b - a)
    if low is not None and low > 0:
        return True
    if high is not None and high <= 0:
        return False
    return max(map(len, a.terms)) < max(map(len, b.terms))


@lowers(aten.as_strided.default, view=True)
def as_strided(call: Call, x: Lazy, size: Sequence[Size], stride: Sequence[Size], offset: Size | None = None) -> Any:
    """Names places in memory, which are those of eager where a tensor is all of its memory."""
    fake = call.node.args[0].meta["val"]
    span = 1 + sum((s - 1) * stride for s, stride in zip(fake.shape, fake.stride(), strict=True))
    view = call.builder.exact(x)
    if fake.numel() == 0 or fake.untyped_storage().nbytes() != span * fake.element_size() or view.offset != 0:
        raise Unsupported("as_strided of a part of the memory")
    assert x.stored is not None
    return in_memory(replace(x.stored, offset=index(offset or 0), strides=tuple(stride)), tuple(size))


# Parts.

@lowers(aten.slice.Tensor, view=True)
def slice_(call: Call, x: Lazy, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1) -> Any:
    dim = wrapped(dim, len(x.shape))
    first = slice_start(start, x.shape[dim], end, call.result.shape[dim] if step == 1 else None)
    if first is None:
        return NotImplemented
    return _view(call, x, lambda place: [p * step + first if n == dim else p for n, p in enumerate(place)])


def slice_start(start: Size | None, size: Size, end: Size | None, length: Size | None) -> Index | None:
    """Where a slice starts, None if that is not known. length: how long it is, None where it leaves elements out."""
    start, size = index(0 if start is None else start), index(size)
    low, high = bounds(start)
    if high is not None and high < 0:
        start = start + size
        low, high = bounds(start)
        if high is not None and high < 0:
            return ZERO
    if length is not None and length == size - start:
        return start            # counted from the back, or beyond the end, there would be less than these
    over, under = bounds(start - size)
    if low is None or low < 0:
        return None
    if under is not None and under <= 0:
        return start
    if over is not None and over > 0:
        return size
    if length is not None and end is not None and length == end - start:
        return start            # or there would be less than these
    return start if start.constant is not None or start == size else None


@lowers(aten.select.int, view=True)
def select(call: Call, x: Lazy, dim: int, position: Size) -> Any:
    dim = wrapped(dim, len(x.shape))
    low, high = bounds(position)
    if low is None or high is None and low < 0:
        return NotImplemented
    where = index(position) + x.shape[dim] if low < 0 else index(position)
    return _view(call, x, lambda place: [*place[:dim], where, *place[dim:]])


def _part(call: Call, number: int, x: Lazy, dim: int, start: Size) -> Lazy | None:
    spec = call.results[number]
    if spec is None or number not in call.used:
        return None
    return viewed(x, spec.shape, lambda place: [p + start if n == dim else p for n, p in enumerate(place)], spec.strides)


@lowers(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, view=True)
def split(call: Call, x: Lazy, sizes: Any, dim: int = 0) -> Any:
    dim = wrapped(dim, len(x.shape))
    parts, start = [], index(0)
    for n, spec in enumerate(call.results):
        parts.append(_part(call, n, x, dim, start))
        start = start + (spec.shape[dim] if spec is not None else 0)
    return parts


@lowers(aten.unbind.int, view=True)
def unbind(call: Call, x: Lazy, dim: int = 0) -> Any:
    dim = wrapped(dim, len(x.shape))
    return [None if spec is None or n not in call.used else
            viewed(x, spec.shape, lambda place, n=n: [*place[:dim], index(n), *place[dim:]], spec.strides)
            for n, spec in enumerate(call.results)]


@lowers(aten.diagonal.default, view=True)
def diagonal(call: Call, x: Lazy, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Lazy:
    first, second = wrapped(dim1, len(x.shape)), wrapped(dim2, len(x.shape))
    down, right = max(-offset, 0), max(offset, 0)

    def mapped(place: Sequence[Index]) -> Sequence[Index]:
        left = iter(place[:-1])
        return [place[-1] + down if n == first else place[-1] + right if n == second else next(left) for n in range(len(x.shape))]
    return _view(call, x, mapped)


@lowers(aten.unfold.default, view=True)
def unfold(call: Call, x: Lazy, dim: int, size: int, step: int) -> Lazy:
    if not x.shape:
        return _view(call, x, lambda place: [])
    dim = wrapped(dim, len(x.shape))
    call.builder.cheap_to_repeat(x)
    return _view(call, x, lambda place: [p * step + place[-1] if n == dim else p for n, p in enumerate(place[:-1])])


# Moved elements: these are copies in eager.

def _moved(call: Call, x: Lazy, mapped: IndexMap) -> Lazy:
    return computed([x], call.result.shape, x.dtype, lambda place: x.at(mapped(place)), 0)


@lowers(aten.flip.default)
def flip(call: Call, x: Lazy, dims: Sequence[int]) -> Lazy:
    flipped = {wrapped(d, len(x.shape)) for d in dims}
    return _moved(call, x, lambda place: [index(x.shape[n]) - 1 - p if n in flipped else p for n, p in enumerate(place)])


@lowers(aten.repeat.default)
def repeat(call: Call, x: Lazy, repeats: Sequence[Size]) -> Lazy:
    lead = len(repeats) - len(x.shape)
    call.builder.cheap_to_repeat(x)

    def mapped(place: Sequence[Index]) -> Sequence[Index]:
        return [ZERO if size in (0, 1) else p if times == 1 else p % index(size)
                for p, times, size in zip(place[lead:], repeats[lead:], x.shape, strict=True)]
    return _moved(call, x, mapped)


@lowers(aten.roll.default)
def roll(call: Call, x: Lazy, shifts: Any, dims: Any = ()) -> Any:
    shifts, dims = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    if not dims or any(not isinstance(s, int) for s in (*shifts, *x.shape)) or 0 in x.shape:
        return NotImplemented
    parts = x
    for shift, dim in zip(shifts, dims, strict=True):
        parts = _rolled(parts, shift, wrapped(dim, len(x.shape)))
    return parts if shifts else _moved(call, x, lambda place: place)


def _rolled(x: Lazy, shift: int, dim: int) -> Lazy:
    """The end, then the beginning."""
    size = x.shape[dim]
    assert isinstance(size, int)
    shift %= size
    if shift == 0:
        return computed([x], x.shape, x.dtype, x.at, 0)

    def part(start: int, length: int) -> Lazy:
        shape = tuple(length if n == dim else s for n, s in enumerate(x.shape))
        return viewed(x, shape, lambda place: [p + start if n == dim else p for n, p in enumerate(place)])
    return concatenated([part(size - shift, shift), part(0, size - shift)], dim, x.shape)


# Joined and padded.

def concatenated(values: Sequence[Lazy], dim: int, shape: tuple[Size, ...]) -> Lazy:
    """The values one after another along `dim`."""
    starts = []
    total = index(0)
    for value in values:
        starts.append(plain(total))
        total = total + value.shape[dim]
    parts = tuple(zip(starts, values, strict=True))

    def at(place: Sequence[Index]) -> Expr:
        result = None
        for start, value in reversed(parts):
            end = index(start) + value.shape[dim]
            own = [ZERO if value.shape[n] == 1 else p - start if n == dim else p for n, p in enumerate(place)]
            reach = both(at_least(place[dim], start), below(place[dim], end))
            expr = masked(value.at(own), reach)
            result = expr if result is None else choose(below(place[dim], end), expr, result)
        assert result is not None
        return result
    result = computed(values, shape, values[0].dtype, at, 2 * len(values))
    result.parts = dim, parts
    return result


@lowers(aten.cat.default)
def cat(call: Call, tensors: Sequence[Lazy], dim: int = 0) -> Lazy:
    tensors = [t for t in tensors if t.shape != (0,)] or [tensors[0]]
    dtype = call.result.dtype
    tensors = [converted(t, dtype) for t in tensors]
    return concatenated(tensors, wrapped(dim, len(call.result.shape)), call.result.shape)


@lowers(aten.stack.default)
def stack(call: Call, tensors: Sequence[Lazy], dim: int = 0) -> Lazy:
    dim = wrapped(dim, len(call.result.shape))
    shape = tuple(1 if n == dim else size for n, size in enumerate(call.result.shape))
    parts = [viewed(t, shape, lambda place: [*place[:dim], *place[dim + 1:]]) for t in tensors]
    return cat(call, parts, dim)


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(call: Call, x: Lazy, pad: Sequence[Size], value: Any = 0) -> Any:
    if not all(isinstance(p, int) for p in pad):
        return NotImplemented
    rank = len(x.shape)
    fill = number(value, x.dtype)
    if any(p < 0 for p in pad):
        return _cropped(call, x, [pad[2 * (rank - 1 - n)] if rank - 1 - n < len(pad) // 2 else 0 for n in range(rank)], fill)
    result = x
    for n in range(len(pad) // 2):
        result = _with_margins(result, rank - 1 - n, pad[2 * n], pad[2 * n + 1], fill)
    return computed([x], x.shape, x.dtype, x.at, 0) if result is x else result


def _with_margins(x: Lazy, dim: int, before: int, after: int, fill: Expr) -> Lazy:
    """`x` between margins: what is stored of it is stored without a test."""
    def margin(size: int) -> Lazy:
        return computed([], (*x.shape[:dim], size, *x.shape[dim + 1:]), x.dtype, lambda place: fill, 0)
    parts = [margin(before)] * bool(before) + [x] + [margin(after)] * bool(after)
    shape = (*x.shape[:dim], plain(index(x.shape[dim]) + before + after), *x.shape[dim + 1:])
    return concatenated(parts, dim, shape) if len(parts) > 1 else x


def _cropped(call: Call, x: Lazy, before: Sequence[int], fill: Expr) -> Lazy:
    """Padding of which some is negative: that much is left out."""
    def at(place: Sequence[Index]) -> Expr:
        own = [p - start for p, start in zip(place, before, strict=True)]
        inside = both(*(c for p, size in zip(own, x.shape, strict=True) for c in (at_least(p, 0), below(p, size))))
        return choose(inside, masked(x.at(own), inside), fill)
    return computed([x], call.result.shape, x.dtype, at, 2)


# With a part replaced.

# The view of the part that an operator replaces: it takes the same arguments, but for the new part.
VIEW_OF = {
    aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default}


def check_part(source: Lazy, shape: Sequence[Size | None]) -> None:
    """Raises Unsupported unless a new part has the shape of the old one (None: any size). An operation with `out` gives the part
    another shape where its result does not fit: eager mode then writes beyond it."""
    if len(source.shape) != len(shape) or any(
            type(new) is type(old) is int and new != old for new, old in zip(source.shape, shape, strict=True)):
        raise Unsupported("a write by `out` that gives a part of a tensor another shape")


def _replaced(base: Lazy, source: Lazy, inside: Any, mapped: IndexMap) -> Lazy:
    """`base`, but `source`, where the condition `inside(place)` holds."""
    def at(place: Sequence[Index]) -> Expr:
        condition = inside(place)
        new = masked(to(source.at(mapped(place)), base.dtype), condition)
        return new if condition is None else choose(condition, new, base.at(place))
    return computed([base, source], base.shape, base.dtype, at, 2)


@lowers(aten.slice_scatter.default, part=True)
def slice_scatter(call: Call, x: Lazy, source: Lazy, dim: int = 0, start: Size | None = None, end: Size | None = None,
                  step: int = 1) -> Any:
    dim = wrapped(dim, len(x.shape))
    check_part(source, [None if n == dim else size for n, size in enumerate(x.shape)])
    first = slice_start(start, x.shape[dim], end, source.shape[dim] if step == 1 else None)
    if first is None or not isinstance(step, int):
        return NotImplemented

    def inside(place: Sequence[Index]) -> Expr | None:
        offset = place[dim] - first
        whole = None if step == 1 else _is_zero(offset % index(step))
        return both(at_least(place[dim], first), below(offset, index(source.shape[dim]) * step), whole)
    return _replaced(x, source, inside, lambda place: [
        (ZERO if source.shape[n] == 1 else (p - first) // index(step)) if n == dim else p for n, p in enumerate(place)])


@lowers(aten.select_scatter.default, part=True)
def select_scatter(call: Call, x: Lazy, source: Lazy, dim: int, position: Size) -> Any:
    dim = wrapped(dim, len(x.shape))
    check_part(source, [*x.shape[:dim], *x.shape[dim + 1:]])
    low, high = bounds(position)
    if low is None or high is None and low < 0:
        return NotImplemented
    where = index(position) + x.shape[dim] if low < 0 else index(position)
    return _replaced(x, source, lambda place: _is_zero(place[dim] - where), lambda place: [*place[:dim], *place[dim + 1:]])


@lowers(aten.diagonal_scatter.default, part=True)
def diagonal_scatter(call: Call, x: Lazy, source: Lazy, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Lazy:
    first, second = wrapped(dim1, len(x.shape)), wrapped(dim2, len(x.shape))
    check_part(source, [*(size for n, size in enumerate(x.shape) if n not in (first, second)), None])
    return _replaced(x, source, lambda place: _is_zero(place[second] - place[first] - offset), lambda place: [
        *(p for n, p in enumerate(place) if n not in (first, second)), place[first] - max(-offset, 0)])


@lowers(aten.tril.default, aten.triu.default)
def triangle(call: Call, x: Lazy, diagonal: int = 0) -> Lazy:
    lower = call.op is aten.tril.default

    def at(place: Sequence[Index]) -> Expr:
        below_diagonal = place[-2] - place[-1] + diagonal
        keep = at_least(below_diagonal, 0) if lower else at_least(-below_diagonal, 0)
        return choose(keep, x.at(place), number(0, x.dtype))
    return computed([x], x.shape, x.dtype, at, 2)


def _is_zero(value: Index) -> Expr | None:
    return both(at_least(value, 0), below(value, 1))
