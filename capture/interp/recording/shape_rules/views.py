"""Sizes of results of operations that move elements: views, and copies that are as large."""
from __future__ import annotations

import itertools
import operator

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.shaper import Many, Shape, Shaper, Unknown, in_common, rule, single_dims
from capture.operators.beyond_schemas import SHAPED_LIKE_FIRST
from capture.refgraph.sizes import as_size, product

# Into which something is put that must fit (writes.py).
FITTING = frozenset("index_add index_copy index_put index_reduce put".split())


@rule(*"""
    _unwrap_for_grad _wrap_for_grad alias bernoulli clone conj conj_physical cumprod cumsum detach empty_like exponential flip
    full_like imag isin isreal logcumsumexp ones_like poisson rand_like randint_like randn_like real requires_grad resolve_conj
    resolve_neg roll to tril triu type_as uniform zero zeros_like""".split(), total=True)
def like_input(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape:
    """As large as the first operand, which may have any sizes."""
    return like_valid_input(c, input)


@rule(*SHAPED_LIKE_FIRST - FITTING,
      *"_make_dual bucketize cauchy copy fill fliplr flipud geometric log_normal msort renorm".split())
def like_valid_input(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape:
    """As large as the first operand. The operation raises for some sizes, of it or of other operands."""
    if not is_a(input.real, torch.Tensor):
        raise Unknown
    return c.shape(input)


@rule("autograd.grad")
def gradients(c: Shaper, outputs: Value, inputs: Value, grad_outputs: Value | None = None, retain_graph: Value | None = None,
              create_graph: Value | None = None, allow_unused: Value | None = None, is_grads_batched: Value | None = None,
              materialize_grads: Value | None = None) -> Many:
    """As large as what they are for."""
    if is_grads_batched is not None and is_grads_batched.real:          # one more dimension, unless a gradient is made of zeros
        raise Unknown
    leaves = [inputs] if is_a(inputs.real, torch.Tensor) else c.items(inputs)
    return Many([c.shape(leaf) for leaf, found in zip(leaves, c.result, strict=True) if found is not None])


@rule("getattr", total=True)
def attribute(c: Shaper, input: Value, name: Value) -> Shape:
    shape = c.shape(input)
    if name.real in ("data", "grad", "real", "imag"):
        return shape
    rank = len(shape)
    if name.real in ("mT", "mH") and rank > 1:
        return c.permute(input, [*range(rank - 2), rank - 1, rank - 2])
    if name.real in ("T", "H") and rank <= 2:
        return c.permute(input, range(rank)[::-1])
    raise Unknown


@rule("contiguous", total=True)
def contiguous(c: Shaper, input: Value, memory_format: Value | None = None) -> Shape:
    c.guard_copies(input)
    shape, cuts = c.shape(input), c.cuts_of(input)
    swapped = swapped_dims(input.real)
    dense = input.real.is_contiguous()
    if cuts or c.fixed(memory_format, torch.contiguous_format) is not torch.contiguous_format or not dense and swapped is None:
        c.require_layout(shape, cuts)
    elif swapped is None:               # and so with fewer elements
        stays = c.stays_contiguous(input)
        c.lies = input.shadow.state.lies  # type: ignore[attr-defined]
        for size in shape:
            if not stays or size.real != 1:
                c.require_several(size, if_many=False)
    else:
        for dim, size in enumerate(shape):
            c.require_several(size) if dim in swapped else c.sizes.decide(operator.ge, size, 1)
    return shape


def swapped_dims(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Two dimensions of a tensor that lie in memory in the other order: as long as both have several elements, the tensor is not
    contiguous, whatever the other dimensions have. None if there are none."""
    several = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    pairs = itertools.combinations(several, 2)
    return next(((one, other) for one, other in pairs if 0 < tensor.stride(one) < tensor.stride(other)), None)


def perhaps_copied(c: Shaper, input: Value, shape: Shape) -> Shape:
    """What a tensor becomes that is viewed in a shape, and copied if its memory layout does not fit. That fits its own shape."""
    before, cuts = c.shape(input), c.cuts_of(input)
    open_layout = cuts or any(size.constant is None for size in before)
    if open_layout and not (c.has_shape(input, shape) or c.is_sure_to_be_contiguous(input) or c.joins_expanded(input, shape)):
        kept = c.outermost(input, in_common(before, shape))
        c.copying.append((tuple(before[kept:]), cuts, tuple(shape[kept:])))
    return c.lay_anew(input, shape)


def viewed(c: Shaper, input: Value, shape: Shape) -> Shape:
    """What a tensor becomes that is viewed in a shape and never copied: how it lies in memory is guarded, since otherwise there is
    no such view. (What is expanded can be viewed, or it raises, for all sizes.)"""
    for part, whole in () if c.has_shape(input, shape) else c.cuts_of(input):
        if whole.constant != 1:
            c.sizes.decide(operator.eq, part, whole)
    for size in c.shape(input)[in_common(c.shape(input), shape):]:
        if size.constant is None and size.real == 1 and not c.stays_contiguous(input):
            c.sizes.fix(size)           # of more elements there may be no such view
    if not input.real.is_contiguous() and not c.has_shape(input, shape):
        c.require_ends(c.shape(input), shape)
    return c.lay_anew(input, shape)


@rule("reshape", total=True)
def reshape(c: Shaper, input: Value, *shape: Value, **kwargs: Value) -> Shape:
    return perhaps_copied(c, input, reshaped(c, c.shape(input), c.given((*shape, *kwargs.values()))))


@rule("view", total=True)
def view(c: Shaper, input: Value, *shape: Value, **kwargs: Value) -> Shape:
    given = (*shape, *kwargs.values())
    if any(is_a(value.real, torch.dtype) for value in given):
        raise Unknown
    return viewed(c, input, reshaped(c, c.shape(input), c.given(given)))


def reshaped(c: Shaper, before: Shape, wanted: Shape) -> Shape:
    """The sizes that are wanted, of which one may be -1."""
    elements, rest = product(before), [place for place, size in enumerate(wanted) if size.constant == -1]
    if not rest:
        c.same(product(wanted), elements)
        return wanted
    others = product(size for place, size in enumerate(wanted) if place not in rest)
    if not others.real or len(rest) > 1:
        raise Unknown
    c.sizes.decide(operator.ge, others, 1)      # of none, what -1 means is not known
    inferred = c.sizes.quotient(elements, others)
    c.same(inferred * others, elements)
    return [inferred if place in rest else size for place, size in enumerate(wanted)]


@rule("view_as", total=True)
def view_as(c: Shaper, input: Value, other: Value) -> Shape:
    return viewed(c, input, reshaped(c, c.shape(input), c.shape(other)))


@rule("reshape_as", total=True)
def reshape_as(c: Shaper, input: Value, other: Value) -> Shape:
    return perhaps_copied(c, input, reshaped(c, c.shape(input), c.shape(other)))


@rule("expand_as", total=True)
def expand_as(c: Shaper, input: Value, other: Value) -> Shape:
    return expanded(c, c.shape(input), c.shape(other))


@rule("expand", "broadcast_to", total=True)
def expand(c: Shaper, input: Value, *size: Value, **kwargs: Value) -> Shape:
    return expanded(c, c.shape(input), c.given((*size, *(value for name, value in kwargs.items() if name != "implicit"))))


def expanded(c: Shaper, shape: Shape, wanted: Shape) -> Shape:
    new = len(wanted) - len(shape)
    result = wanted[:new]
    for size, want in zip(shape, wanted[new:], strict=True):
        if not c.sizes.decide(operator.ge, want, 0):
            c.sizes.fix(want)           # -1: the size that is there
            result.append(size)
        elif size.constant == 1:
            result.append(c.cut(want, size) if want.real == 1 else want)        # of more, all lie where the one is
        elif size.real == want.real:
            c.same(size, want)
            result.append(want)
        else:
            c.sizes.fix(size)
            result.append(want)
    return result


@rule("flatten", total=True)
def flatten(c: Shaper, input: Value, start_dim: Value | None = None, end_dim: Value | None = None) -> Shape:
    shape = c.shape(input)
    if not shape:
        return [as_size(1)]
    start, end = c.dim(start_dim, len(shape)), c.dim(end_dim, len(shape), -1)
    return perhaps_copied(c, input, [*shape[:start], product(shape[start:end + 1]), *shape[end + 1:]])


@rule("ravel", total=True)
def ravel(c: Shaper, input: Value) -> Shape:
    shape = c.shape(input)              # what is not contiguous is copied, even if it has the shape already
    c.copying.append((tuple(shape), c.cuts_of(input), (product(shape),)))
    if single_dims(shape):
        c.lies = c.result.stride() if c.stays_contiguous(input) else ()
    return [product(shape)]


@rule("unflatten")
def unflatten(c: Shaper, input: Value, dim: Value, sizes: Value) -> Shape:
    shape = c.shape(input)
    place = c.dim(dim, len(shape))
    return viewed(c, input, [*shape[:place], *reshaped(c, [shape[place]], c.given([sizes])), *shape[place + 1:]])


@rule("transpose", "swapaxes", "swapdims", total=True)
def transpose(c: Shaper, input: Value, dim0: Value, dim1: Value) -> Shape:
    order = list(range(len(c.shape(input))))
    one, other = c.dim(dim0, len(order)), c.dim(dim1, len(order))
    if order:
        order[one], order[other] = other, one
    return c.permute(input, order)


@rule("t", "adjoint", total=True)
def transposed(c: Shaper, input: Value) -> Shape:
    rank = len(c.shape(input))
    if rank > 2:
        raise Unknown
    return c.permute(input, range(rank)[::-1])


@rule("permute", total=True)
def permute(c: Shaper, input: Value, *dims: Value, **kwargs: Value) -> Shape:
    places = (*dims, *kwargs.values())
    return c.permute(input, [c.fixed(dim) for dim in (places if is_a(places[0].real, int) else c.items(places[0]))])


@rule("movedim", "moveaxis", total=True)
def movedim(c: Shaper, input: Value, source: Value, destination: Value) -> Shape:
    order = list(range(len(c.shape(input))))
    sources, targets = c.dims(source, len(order)), c.dims(destination, len(order))
    rest = iter(dim for dim in order if dim not in sources)
    places = dict(zip(targets, sources, strict=True))
    return c.permute(input, [places[dim] if dim in places else next(rest) for dim in order])


@rule("unsqueeze", total=True)
def unsqueeze(c: Shaper, input: Value, dim: Value) -> Shape:
    shape = c.shape(input)
    shape.insert(c.dim(dim, len(shape) + 1), as_size(1))
    return shape


@rule("squeeze", total=True)
def squeeze(c: Shaper, input: Value, *dim: Value, **kwargs: Value) -> Shape:
    shape = c.shape(input)
    given = (*dim, *kwargs.values())
    dims = c.dims(given[0], len(shape)) if given else list(range(len(shape)))
    return [size for place, size in enumerate(shape) if place not in dims or not c.sizes.decide(operator.eq, size, 1)]


@rule("narrow")
def narrow(c: Shaper, input: Value, dim: Value, start: Value, length: Value) -> Shape:
    shape = c.shape(input)
    place = c.dim(dim, len(shape))
    shape[place] = c.cut(c.size(length), shape[place])
    return shape


@rule("select")
def select(c: Shaper, input: Value, dim: Value, index: Value) -> Shape:
    shape = c.shape(input)
    c.cut(as_size(1), shape.pop(c.dim(dim, len(shape))))
    return shape


@rule("unfold")
def unfold(c: Shaper, input: Value, dimension: Value, size: Value, step: Value) -> Shape:
    shape = c.shape(input)
    place, length, by = c.dim(dimension, len(shape)), c.fixed(size), c.fixed(step)
    count = c.sizes.quotient(shape[place] - length, as_size(by)) + 1
    c.cut(count * by, shape[place])
    return [*shape[:place], count, *shape[place + 1:], as_size(length)]


@rule("view_as_real")
def view_as_real(c: Shaper, input: Value) -> Shape:
    return [*c.shape(input), as_size(2)]


@rule("view_as_complex")
def view_as_complex(c: Shaper, input: Value) -> Shape:
    *shape, pairs = c.shape(input)
    c.same(pairs, as_size(2))
    return shape


@rule("rot90")
def rot90(c: Shaper, input: Value, k: Value | None = None, dims: Value | None = None) -> Shape:
    shape, places = c.shape(input), [0, 1] if dims is None else c.dims(dims, input.real.dim())
    if c.fixed(k, 1) % 2:
        one, other = places
        shape[one], shape[other] = shape[other], shape[one]
    return shape


@rule("_add_batch_dim")
def batched(c: Shaper, batched_tensor: Value, batch_dim: Value, level: Value) -> Shape:
    """What a function sees of a tensor that `torch.vmap` gives it in parts."""
    shape = c.shape(batched_tensor)
    del shape[c.dim(batch_dim, len(shape))]
    return shape


@rule("_unpack_dual")
def primal_and_tangent(c: Shaper, tensor: Value, *args: Value, **kwargs: Value) -> Many:
    """What a tensor is made of for forward-mode gradients, if it has any."""
    return Many([c.shape(tensor) for found in c.result if found is not None])


@rule("_remove_batch_dim")
def unbatched(c: Shaper, batched_tensor: Value, level: Value, batch_size: Value, out_dim: Value) -> Shape:
    shape = c.shape(batched_tensor)
    shape.insert(c.dim(out_dim, len(shape) + 1), c.size(batch_size))
    return shape
