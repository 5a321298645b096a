"""Sizes of results of operations that write a part of a tensor: they are those of the tensor, and what is written must fit the
part, or the operation raises. Kernels for all sizes do not look at that."""
from __future__ import annotations

from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.frame import NONE_VALUE, Value
from capture.interp.recording.shape_rules.gathers import getitem, sliced
from capture.interp.recording.shape_rules.shaper import RULES, Shape, Shaper, Unknown, parts_of_subscript, rule
from capture.refgraph.node import Build, ListState, RefNode
from capture.refgraph.sizes import product


@rule("index_add", "index_copy", "index_reduce")
def indexed(c: Shaper, input: Value, dim: Value, index: Value, source: Value, *args: Value, **kwargs: Value) -> Shape:
    shape = c.shape(input)
    if c.is_dynamic(index, source):
        return shape
    given = c.shape(source)
    if len(shape) != len(given):
        raise Unknown
    place = c.dim(dim, len(shape))
    for at, (size, other) in enumerate(zip(shape, given, strict=True)):
        c.same(product(c.shape(index)) if at == place else size, other)
    return shape


@rule("index_put")
def stored(c: Shaper, input: Value, index: Value, values: Value, *args: Value, **kwargs: Value) -> Shape:
    """`x[index] = values`, too."""
    shape = c.shape(input)
    if has_mask(index.real):
        return shape
    subscript = as_subscript(index)
    parts = [Value(real, shadow) for shadow, real in parts_of_subscript(subscript)]
    if not c.is_dynamic(values, *parts) and any(c.shape(values)):
        fit(c, getitem(Shaper(c.graph), input, subscript), c.shape(values))
    return shape


def has_mask(index: Any) -> bool:
    """Whether how much is written depends on values."""
    items = index if is_a(index, (tuple, list)) else [index]
    return any(is_a(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8) for item in items)


def as_subscript(index: Value) -> Value:
    """What a tensor is subscripted with, where it is given as a list of tensors."""
    shadow, real = index.shadow, index.real
    if type(real) is list and any(is_a(item, torch.Tensor) for item in real):
        if not isinstance(shadow, RefNode) or not isinstance(shadow.state, ListState):
            raise Unknown
        return Value(tuple(real), Build(tuple, tuple(shadow.state.items)))
    return index


def fit(c: Shaper, part: Shape, given: Shape) -> None:
    """What is given is as large as the part, or is repeated along some dimensions."""
    for place, size in enumerate(reversed(given), 1):
        if size.constant != 1 and (place > len(part) or size.real != part[-place].real):
            c.sizes.fix(size)
        elif size.constant != 1:
            c.same(size, part[-place])


@rule("select_scatter")
def select_scatter(c: Shaper, input: Value, src: Value, dim: Value, index: Value) -> Shape:
    shape = c.shape(input)
    place = c.dim(dim, len(shape))
    fit(c, [*shape[:place], *shape[place + 1:]], c.shape(src))
    return shape


@rule("slice_scatter")
def slice_scatter(c: Shaper, input: Value, src: Value, dim: Value | None = None, start: Value | None = None,
                  end: Value | None = None, step: Value | None = None) -> Shape:
    shape, bounds = c.shape(input), [bound or NONE_VALUE for bound in (start, end, step)]
    place, part = c.dim(dim, len(shape)), list(shape)
    shadow = Build(slice, tuple(bound.shadow for bound in bounds))
    part[place] = sliced(c, shadow, slice(*(bound.real for bound in bounds)), shape[place])
    fit(c, part, c.shape(src))
    return shape


@rule("diagonal_scatter")
def diagonal_scatter(c: Shaper, input: Value, src: Value, *dims: Value, **kwargs: Value) -> Shape:
    fit(c, RULES["diagonal"](Shaper(c.graph), input, *dims, **kwargs), c.shape(src))
    return c.shape(input)


@rule("fill_diagonal", total=True)
def fill_diagonal(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape:
    """Of more than two dimensions, all are equal."""
    shape = c.shape(input)
    for size in shape[1:] if len(shape) > 2 else ():
        c.same(size, shape[0])
    return shape


@rule("put")
def put(c: Shaper, input: Value, index: Value, source: Value, accumulate: Value | None = None) -> Shape:
    c.same(product(c.shape(index)), product(c.shape(source)))
    return c.shape(input)


@rule("masked_scatter")
def masked_scatter(c: Shaper, input: Value, mask: Value, source: Value) -> Shape:
    """How much is taken of the source depends on values."""
    return c.broadcast(c.shape(input), c.shape(mask))
