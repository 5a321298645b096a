"""Sizes of results of reductions, sorting and searching."""
from __future__ import annotations

import operator

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.joins import joined
from capture.interp.recording.shape_rules.shaper import Many, Shape, Shaper, Unknown, pointwise, rule
from capture.refgraph.sizes import as_size, product


def reduced(shape: Shape, dims: list[int], keep: bool) -> Shape:
    """The sizes that are left."""
    return [as_size(1) if place in dims else size for place, size in enumerate(shape) if keep or place not in dims]


@rule("sum", "mean", "prod", "nansum", "nanmean", "logsumexp", "all", "any", "count_nonzero", total=True)
def total(c: Shaper, input: Value, dim: Value | None = None, keepdim: Value | None = None, **kwargs: Value) -> Shape:
    return reduction(c, input, dim, keepdim, **kwargs)


@rule("_is_all_true", "_is_any_true", total=True)
def decided(c: Shaper, input: Value) -> Shape:
    return []


@rule("amax", "amin", "argmax", "argmin", total=True)
def greatest(c: Shaper, input: Value, dim: Value | None = None, keepdim: Value | None = None, **kwargs: Value) -> Shape:
    """What there is none of where there is nothing."""
    shape = c.shape(input)
    c.sizes.decide(operator.gt, product(shape[place] for place in c.dims(dim, len(shape))), 0)
    return reduction(c, input, dim, keepdim, **kwargs)


def reduction(c: Shaper, input: Value, dim: Value | None = None, keepdim: Value | None = None, **kwargs: Value) -> Shape:
    if kwargs.keys() - {"dtype"}:
        raise Unknown
    shape = c.shape(input)
    return reduced(shape, c.dims(dim, len(shape)), bool(c.fixed(keepdim, False)))


@rule("var", "std", total=True)
def moment(c: Shaper, input: Value, dim: Value | None = None, unbiased: Value | None = None, keepdim: Value | None = None,
           *, correction: Value | None = None) -> Shape:
    if dim is not None and is_a(dim.real, bool):
        dim = None
    shape = c.shape(input)
    return reduced(shape, c.dims(dim, len(shape)), bool(c.fixed(keepdim, False)))


@rule("var_mean", "std_mean", total=True)
def moments(c: Shaper, *args: Value, **kwargs: Value) -> Many:
    shape = moment(c, *args, **kwargs)
    return Many([shape, list(shape)])


@rule("norm")
def norm(c: Shaper, input: Value, p: Value | None = None, dim: Value | None = None, keepdim: Value | None = None,
         **kwargs: Value) -> Shape:
    shape = c.shape(input)
    return reduced(shape, c.dims(dim, len(shape)), bool(c.fixed(keepdim, False)))


@rule("linalg_norm", "linalg_vector_norm", "vector_norm")
def vector_norm(c: Shaper, input: Value, ord: Value | None = None, dim: Value | None = None, keepdim: Value | None = None,
                **kwargs: Value) -> Shape:
    return norm(c, input, ord, dim, keepdim)


@rule("max", "min", "median", "nanmedian", "mode", total=True)
def extreme(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape | Many:
    if not args and not kwargs:
        c.sizes.decide(operator.gt, product(c.shape(input)), 0)
        return []
    other = args[0] if args else kwargs.get("other")
    if other is not None and not is_a(other.real, int):
        return pointwise(c, input, other)
    return extremes(c, input, *args, **kwargs)


def extremes(c: Shaper, input: Value, dim: Value | None = None, keepdim: Value | None = None) -> Many:
    shape = c.shape(input)
    place = c.dim(dim, len(shape), -1)
    if shape:
        c.sizes.decide(operator.gt, shape[place], 0)
    result = reduced(shape, [place], bool(c.fixed(keepdim, False)))
    return Many([result, list(result)])


@rule("sort", total=True)
def sort(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Many:
    return Many([c.shape(input), c.shape(input)])


@rule("argsort", total=True)
def argsort(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape:
    return c.shape(input)


@rule("kthvalue")
def kthvalue(c: Shaper, input: Value, k: Value, dim: Value | None = None, keepdim: Value | None = None) -> Many:
    c.fixed(k)
    return extremes(c, input, dim, keepdim)


@rule("aminmax")
def aminmax(c: Shaper, input: Value, dim: Value | None = None, keepdim: Value | None = None) -> Many:
    shape = c.shape(input)
    result = reduced(shape, c.dims(dim, len(shape)), bool(c.fixed(keepdim, False)))
    return Many([result, list(result)])


@rule("quantile", "nanquantile")
def quantile(c: Shaper, input: Value, q: Value, dim: Value | None = None, keepdim: Value | None = None, **kwargs: Value) -> Shape:
    shape, several = c.shape(input), c.shape(q)
    if kwargs.keys() - {"interpolation"}:
        raise Unknown
    return [*several, *reduced(shape, c.dims(dim, len(shape)), bool(c.fixed(keepdim, False)))]


@rule("searchsorted")
def searchsorted(c: Shaper, sorted_sequence: Value, input: Value, **kwargs: Value) -> Shape:
    c.shape(sorted_sequence)
    return c.shape(input)


@rule("topk")
def topk(c: Shaper, input: Value, k: Value, dim: Value | None = None, *args: Value, **kwargs: Value) -> Many:
    shape = c.shape(input)
    shape[c.dim(dim, len(shape), -1)] = c.size(k)
    return Many([shape, list(shape)])


@rule("multinomial")
def multinomial(c: Shaper, input: Value, num_samples: Value, *args: Value, **kwargs: Value) -> Shape:
    return [*c.shape(input)[:-1], c.size(num_samples)]


@rule("cummax", "cummin")
def running(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Many:
    return Many([c.shape(input), c.shape(input)])


@rule("histc")
def histc(c: Shaper, input: Value, bins: Value | None = None, *args: Value, **kwargs: Value) -> Shape:
    c.shape(input)
    return [as_size(100) if bins is None else c.size(bins)]


@rule("diff", total=True)
def diff(c: Shaper, input: Value, n: Value | None = None, dim: Value | None = None, prepend: Value | None = None,
         append: Value | None = None) -> Shape:
    shape, times = c.shape(input), c.fixed(n, 1)
    place = c.dim(dim, len(shape), -1)
    for more in (prepend, append):
        if more is not None and more.real is not None:
            shape = joined([shape, c.shape(more)], place, c)
    shape[place] = shape[place] - times if c.sizes.decide(operator.ge, shape[place], times) else as_size(0)
    return shape


@rule("trapezoid", "trapz")
def trapezoid(c: Shaper, y: Value, x: Value | None = None, *, dx: Value | None = None, dim: Value | None = None) -> Shape:
    shape = c.shape(y)
    size = shape.pop(c.dim(dim, len(shape), -1))
    if x is not None and is_a(x.real, torch.Tensor):
        if x.real.dim() != 1:
            raise Unknown
        c.same(c.shape(x)[0], size)
    return shape


@rule("cumulative_trapezoid")
def running_trapezoid(c: Shaper, y: Value, x: Value | None = None, *, dx: Value | None = None, dim: Value | None = None) -> Shape:
    shape, place = c.shape(y), c.dim(dim, y.real.dim(), -1)
    if not c.sizes.decide(operator.ge, shape[place], 1):
        raise Unknown
    return [*trapezoid(c, y, x, dim=dim)[:place], shape[place] - 1, *shape[place + 1:]]


@rule("gradient")
def gradient(c: Shaper, input: Value, **kwargs: Value) -> Many:
    """One for each dimension that is asked for."""
    return Many([c.shape(input) for _ in c.result])


@rule("segment_reduce")
def segment_reduce(c: Shaper, data: Value, reduce: Value, *, lengths: Value | None = None, axis: Value | None = None,
                   **kwargs: Value) -> Shape:
    if lengths is None or not is_a(lengths.real, torch.Tensor) or c.fixed(axis, 0) or kwargs.keys() - {"unsafe", "initial"}:
        raise Unknown
    return [*c.shape(lengths), *c.shape(data)[1:]]
