"""Sizes of results of operations that move elements: views, joins, gathers."""
from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.shaper import Many, Shape, Shaper, Unknown, in_common, nested, rule, single_dims
from capture.operators.beyond_schemas import SHAPED_LIKE_FIRST
from capture.refgraph.lookup import parts
from capture.refgraph.node import Build, Const
from capture.refgraph.sizes import Size, as_size, product

# Into which something is put that must fit (writes.py).
FITTING = frozenset("index_add index_copy index_put index_reduce put".split())


@rule(*"""
    alias bernoulli clone conj conj_physical cumprod cumsum detach empty_like exponential flip full_like imag isin
    isreal logcumsumexp ones_like rand_like randint_like randn_like real requires_grad resolve_conj resolve_neg roll to type_as
    uniform zero zeros_like""".split(), total=True)
def like_input(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape:
    """As large as the first operand, which may have any sizes."""
    return like_valid_input(c, input)


@rule(*SHAPED_LIKE_FIRST - FITTING, *"bucketize cauchy copy fill fliplr flipud geometric log_normal msort renorm tril triu".split())
def like_valid_input(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape:
    """As large as the first operand. The operation raises for some sizes, of it or of other operands."""
    if not is_a(input.real, torch.Tensor):
        raise Unknown
    return c.shape(input)


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


@rule("expand_as")
def expand_as(c: Shaper, input: Value, other: Value) -> Shape:
    return expanded(c, c.shape(input), c.shape(other))


@rule("expand", "broadcast_to")
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


@rule("unbind", total=True)
def unbind(c: Shaper, input: Value, dim: Value | None = None) -> Many:
    shape = c.shape(input)
    place = c.dim(dim, len(shape))
    count = c.sizes.fix(shape.pop(place))
    return Many([list(shape) for _ in range(count)])


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes")
def split(c: Shaper, tensor: Value, split_size_or_sections: Value, dim: Value | None = None) -> Many:
    shape = c.shape(tensor)
    place = c.dim(dim, len(shape))
    if not is_a(split_size_or_sections.real, int):
        return pieces(c, shape, place, c.given([split_size_or_sections]))
    return in_pieces_of(c, shape, place, c.size(split_size_or_sections))


@rule("chunk", "unsafe_chunk", total=True)
def chunk(c: Shaper, input: Value, chunks: Value, dim: Value | None = None) -> Many:
    shape, count = c.shape(input), c.fixed(chunks)
    place = c.dim(dim, len(shape))
    size = shape[place]
    exact = size.divided(as_size(count))
    if exact is not None:
        return pieces(c, shape, place, [exact] * count)
    if not c.sizes.decide(operator.ge, size, 1):
        return pieces(c, shape, place, [size] * count)
    return in_pieces_of(c, shape, place, c.sizes.quotient(size + (count - 1), as_size(count)))


def in_pieces_of(c: Shaper, shape: Shape, place: int, piece: Size) -> Many:
    """What is split into pieces of one size, the last of which may be smaller."""
    whole = shape[place]
    if not piece.real:
        c.sizes.pin([whole, piece])
    count = max(c.sizes.fix(c.sizes.quotient(whole + (piece - 1), piece)), 1) if piece.real else 1
    last = whole - piece * (count - 1)
    return pieces(c, shape, place, [piece] * (count - 1) + [last])


def pieces(c: Shaper, shape: Shape, place: int, sizes: Shape) -> Many:
    return Many([[*shape[:place], c.cut(size, shape[place]), *shape[place + 1:]] for size in sizes])


@rule("cat", "concat", "concatenate", total=True)
def cat(c: Shaper, tensors: Value, dim: Value | None = None, **kwargs: Value) -> Shape:
    shapes, times = c.repeated(tensors)
    if kwargs:
        raise Unknown
    if len(set(map(len, shapes))) > 1:          # a tensor of shape (0,) goes with all others
        for shape in shapes:
            if len(shape) == 1:
                c.same(shape[0], as_size(0))
        shapes = [shape for shape in shapes if len(shape) > 1]
    place = c.dim(dim, len(shapes[0]))
    result = joined(shapes, place, c)
    result[place] *= times
    return result


def joined(shapes: list[Shape], place: int, c: Shaper) -> Shape:
    """The sizes of tensors in one, along a dimension."""
    if len({len(shape) for shape in shapes}) != 1 or not shapes[0]:
        raise Unknown
    result = list(shapes[0])
    for shape in shapes[1:]:
        for other, size in enumerate(shape):
            if other == place:
                result[place] += size
            else:
                c.same(result[other], size)
    return result


@rule("stack", total=True)
def stack(c: Shaper, tensors: Value, dim: Value | None = None, **kwargs: Value) -> Shape:
    shapes, times = c.repeated(tensors)
    if kwargs:
        raise Unknown
    for shape in shapes[1:]:
        for size, other in zip(shapes[0], shape, strict=True):
            c.same(size, other)
    result = list(shapes[0])
    result.insert(c.dim(dim, len(result) + 1), times * len(shapes))
    return result


@rule("tensor_split")
def tensor_split(c: Shaper, input: Value, indices_or_sections: Value, dim: Value | None = None) -> Many:
    shape, count = c.shape(input), c.fixed(indices_or_sections)
    if type(count) is not int:
        raise Unknown
    place = c.dim(dim, len(shape))
    least = c.sizes.quotient(shape[place], as_size(count))
    larger = shape[place] - least * count
    c.sizes.fix(larger)
    return pieces(c, shape, place, [least + (number < larger.real) for number in range(count)])


@rule("vstack", "row_stack")
def vstack(c: Shaper, tensors: Value) -> Shape:
    return joined([[as_size(1), *shape] if len(shape) == 1 else shape for shape in map(c.shape, c.items(tensors))], 0, c)


@rule("hstack")
def hstack(c: Shaper, tensors: Value) -> Shape:
    shapes = list(map(c.shape, c.items(tensors)))
    return joined(shapes, int(len(shapes[0]) > 1), c)


@rule("broadcast_tensors", total=True)
def broadcast_tensors(c: Shaper, *tensors: Value) -> Many:
    shapes = list(map(c.shape, tensors if len(tensors) != 1 or is_a(tensors[0].real, torch.Tensor) else c.items(tensors[0])))
    return Many([c.broadcast(*shapes) for _ in shapes])


@rule("meshgrid")
def meshgrid(c: Shaper, *tensors: Value, indexing: Value | None = None) -> Many:
    lines = list(map(c.shape, tensors if is_a(tensors[0].real, torch.Tensor) else c.items(tensors[0])))
    sizes = [line[0] if line else as_size(1) for line in lines]
    if c.fixed(indexing, "ij") == "xy" and len(sizes) > 1:
        sizes[:2] = sizes[1::-1]
    return Many([list(sizes) for _ in lines])


@rule("tile")
def tile(c: Shaper, input: Value, *dims: Value, **kwargs: Value) -> Shape:
    shape, times = c.shape(input), c.given((*dims, *kwargs.values()))
    rank = max(len(shape), len(times))
    shape, times = ([as_size(1)] * (rank - len(sizes)) + sizes for sizes in (shape, times))
    return [size * count for size, count in zip(shape, times, strict=True)]


@rule("repeat")
def repeat(c: Shaper, input: Value, *repeats: Value, **kwargs: Value) -> Shape:
    shape, times = c.shape(input), c.given((*repeats, *kwargs.values()))
    shape = [as_size(1)] * (len(times) - len(shape)) + shape
    return [size * count for size, count in zip(shape, times, strict=True)]


@rule("repeat_interleave")
def repeat_interleave(c: Shaper, input: Value, repeats: Value, dim: Value | None = None, output_size: Value | None = None) -> Shape:
    shape = c.shape(input)
    times = c.size(repeats)
    if dim is None or dim.real is None:
        return [product(shape) * times]
    place = c.dim(dim, len(shape))
    shape[place] *= times
    return shape


@rule("pad")
def pad(c: Shaper, input: Value, pad: Value, mode: Value | None = None, value: Value | None = None) -> Shape:
    shape, widths = c.shape(input), c.given([pad])
    for place, (before, after) in enumerate(zip(widths[::2], widths[1::2], strict=True), 1):
        shape[-place] = shape[-place] + before + after
    return shape


@rule("embedding")
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


@rule("gather")
def gather(c: Shaper, input: Value, dim: Value, index: Value, **kwargs: Value) -> Shape:
    return c.shape(index)


@rule("take_along_dim")
def take_along_dim(c: Shaper, input: Value, indices: Value, dim: Value | None = None) -> Shape:
    shape, taken = c.shape(input), c.shape(indices)
    if dim is None or dim.real is None:
        return [product(taken)]
    place = c.dim(dim, len(shape))
    shape[place] = as_size(1)
    return [*c.broadcast(shape[:place], taken[:place]), taken[place], *c.broadcast(shape[place + 1:], taken[place + 1:])]


@rule("index_select")
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
    key = parts_of_key(index)
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


def parts_of_key(index: Value) -> list[tuple[Any, Any]]:
    """The shadow and the real object of each part of a subscript."""
    if is_a(index.real, tuple) and isinstance(index.shadow, Build):
        return list(zip(index.shadow.items, parts(index.real), strict=True))
    if is_a(index.real, tuple) and isinstance(index.shadow, Const):
        return [(Const(part), part) for part in index.real]
    return [(index.shadow, index.real)]


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


@rule("unfold")
def unfold(c: Shaper, input: Value, dimension: Value, size: Value, step: Value) -> Shape:
    shape = c.shape(input)
    place, length, by = c.dim(dimension, len(shape)), c.fixed(size), c.fixed(step)
    count = c.sizes.quotient(shape[place] - length, as_size(by)) + 1
    c.cut(count * by, shape[place])
    return [*shape[:place], count, *shape[place + 1:], as_size(length)]
