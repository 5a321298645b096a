"""Sizes of results of operations that take elements by their places: subscripts, gathers, embeddings."""
from __future__ import annotations

import operator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.shaper import Shape, Shaper, Unknown, nested, parts_of_subscript, rule
from capture.refgraph.lookup import parts
from capture.refgraph.node import Build, Const
from capture.refgraph.sizes import Size, as_size, product


@rule("embedding", total=True)
def embedding(c: Shaper, input: Value, weight: Value, *args: Value, **kwargs: Value) -> Shape:
    if is_a(input.real, torch.Tensor) and input.real.is_floating_point():       # of ATen: the weight comes first
        input, weight = weight, input
    return [*c.shape(input), c.shape(weight)[1]]


@rule("embedding_bag")
def embedding_bag(c: Shaper, input: Value, weight: Value, offsets: Value | None = None, *args: Value,
                  include_last_offset: Value | None = None, **kwargs: Value) -> Shape:
    """Of torch.nn.functional; the operator takes the weight first, and makes several tensors."""
    shape = c.shape(input)
    if input.real.is_floating_point():
        raise Unknown
    include_last_offset = args[6] if len(args) > 6 else include_last_offset
    if len(shape) == 2:
        return [shape[0], c.shape(weight)[1]]
    if offsets is None or offsets.real is None:
        raise Unknown
    return [c.shape(offsets)[0] - int(bool(c.fixed(include_last_offset, False))), c.shape(weight)[1]]


@rule("one_hot")
def one_hot(c: Shaper, tensor: Value, num_classes: Value | None = None) -> Shape:
    if num_classes is None or num_classes.real == -1:
        raise Unknown
    return [*c.shape(tensor), c.size(num_classes)]


@rule("gather", total=True)
def gather(c: Shaper, input: Value, dim: Value, index: Value, **kwargs: Value) -> Shape:
    shape, taken = c.shape(input), c.shape(index)
    place = c.dim(dim, len(shape)) if shape else 0
    for at, (size, most) in enumerate(zip(taken, shape)):
        if at != place and not c.sizes.decide(operator.le, size, most):
            raise Unknown               # it takes nothing
    return taken


@rule("take")
def take(c: Shaper, input: Value, index: Value) -> Shape:
    return c.shape(index)


@rule("take_along_dim")
def take_along_dim(c: Shaper, input: Value, indices: Value, dim: Value | None = None) -> Shape:
    shape, taken = c.shape(input), c.shape(indices)
    if dim is None or dim.real is None:
        return [product(taken)]
    place = c.dim(dim, len(shape))
    shape[place] = as_size(1)
    return [*c.broadcast(shape[:place], taken[:place]), taken[place], *c.broadcast(shape[place + 1:], taken[place + 1:])]


@rule("index_select", total=True)
def index_select(c: Shaper, input: Value, dim: Value, index: Value) -> Shape:
    shape, taken = c.shape(input), c.shape(index)
    if len(taken) != 1 or not shape:
        raise Unknown
    shape[c.dim(dim, len(shape))] = taken[0]
    return shape


@rule("index")
def getitem(c: Shaper, input: Value, index: Value) -> Shape:
    if not is_a(input.real, torch.Tensor):
        raise Unknown
    # To torch, a list of lists may be a tuple of indices.
    if type(index.real) is list and any(is_a(item, (list, tuple)) for item in index.real):
        raise Unknown
    key = parts_of_subscript(index)
    shape = c.shape(input)
    taken = sum(1 for _, part in key if part is not None and part is not Ellipsis)
    result: Shape = []
    gathered: list[Shape] = []
    first: int | None = None            # where in the result the dimensions of the gathered elements begin …
    apart = False                       # … unless tensors are apart in the subscript: then they come first, as in numpy
    dim = 0
    for shadow, part in key:
        before = len(gathered)
        if part is None:
            result.append(as_size(1))
        elif part is Ellipsis:
            skipped = len(shape) - taken
            result += shape[dim:dim + skipped]
            dim += skipped
        elif type(part) is slice:
            result.append(c.cut(sliced(c, shadow, part, shape[dim]), shape[dim]))
            dim += 1
        elif type(part) is int:         # unlike in numpy, it is taken before anything is gathered
            if isinstance(shadow, Const):
                c.sizes.decide(operator.gt, shape[dim], part if part >= 0 else -part - 1)
            c.cut(as_size(1), shape[dim])
            dim += 1
        elif is_a(part, torch.Tensor) and not part.is_floating_point() and part.dtype not in (torch.bool, torch.uint8):
            gathered.append(c.shape(Value(part, shadow)))
        elif type(part) is list and not any(is_a(item, bool) for item in tree_leaves(part)):
            gathered.append(nested(part))
        else:
            raise Unknown
        if len(gathered) > before:
            apart |= first is not None and len(result) != first
            first = len(result) if first is None else first
            dim += 1
    result += shape[dim:]
    if gathered:
        place = 0 if apart else first
        result[place:place] = c.broadcast(*gathered)
    return result


def sliced(c: Shaper, shadow: Any, part: slice, size: Size) -> Size:
    """How many elements a slice of a dimension takes."""
    if isinstance(shadow, Const):
        bounds = [Value(bound, Const(bound)) for bound in parts(part)]
    elif isinstance(shadow, Build):
        bounds = [Value(bound, item) for item, bound in zip(shadow.items, parts(part), strict=True)]
    else:
        raise Unknown
    step = c.fixed(bounds[2])
    if any(number is not None and type(number) is not int for number in (step, bounds[0].real, bounds[1].real)):
        raise Unknown
    start = as_size(0) if bounds[0].real is None else within(c, c.size(bounds[0]), size)
    stop = size if bounds[1].real is None else within(c, c.size(bounds[1]), size)
    taken = stop - start if stop == size or c.sizes.decide(operator.le, start, stop) else as_size(0)
    return taken if step in (None, 1) else c.sizes.quotient(taken + (step - 1), as_size(step))


def within(c: Shaper, bound: Size, size: Size) -> Size:
    """Where a bound of a slice lies, as Python counts."""
    if not c.sizes.decide(operator.ge, bound, 0):
        bound = bound + size
        if c.sizes.may_be_short(bound):
            return c.sizes.larger(bound, as_size(0))
        if not c.sizes.decide(operator.ge, bound, 0):
            return as_size(0)
    return bound if c.sizes.decide(operator.le, bound, size) else size
