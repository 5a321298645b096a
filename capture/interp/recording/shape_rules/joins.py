"""Sizes of results of operations that take tensors apart, join or repeat them."""
from __future__ import annotations

import itertools
import math
import operator

import torch

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.gathers import within
from capture.interp.recording.shape_rules.shaper import Many, Shape, Shaper, Unknown, rule
from capture.refgraph.sizes import Size, as_size, product


@rule("unbind", total=True)
def unbind(c: Shaper, input: Value, dim: Value | None = None) -> Many:
    shape = c.shape(input)
    place = c.dim(dim, len(shape))
    count = c.sizes.fix(shape.pop(place))
    return Many([list(shape) for _ in range(count)])


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", total=True)
def split(c: Shaper, tensor: Value, split_size_or_sections: Value, dim: Value | None = None) -> Many:
    shape = c.shape(tensor)
    place = c.dim(dim, len(shape))
    if not is_a(split_size_or_sections.real, int):
        sections = c.given([split_size_or_sections])
        for size in sections:
            c.sizes.decide(operator.ge, size, 0)
        c.same(sum(sections, as_size(0)), shape[place])
        return pieces(c, shape, place, sections)
    piece = c.size(split_size_or_sections)
    c.sizes.decide(operator.gt, piece, 0)
    return in_pieces_of(c, shape, place, piece)


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
    shape = c.shape(input)
    return parted(c, shape, c.dim(dim, len(shape)), indices_or_sections)


@rule("vsplit")
def vsplit(c: Shaper, input: Value, indices_or_sections: Value) -> Many:
    return evenly_parted(c, input, 0, indices_or_sections)


@rule("hsplit")
def hsplit(c: Shaper, input: Value, indices_or_sections: Value) -> Many:
    return evenly_parted(c, input, min(1, input.real.dim() - 1), indices_or_sections)


@rule("dsplit")
def dsplit(c: Shaper, input: Value, indices_or_sections: Value) -> Many:
    return evenly_parted(c, input, 2, indices_or_sections)


def evenly_parted(c: Shaper, input: Value, place: int, at: Value) -> Many:
    """Like `parted`, but so many parts are equal ones, or it raises."""
    shape = c.shape(input)
    if is_a(at.real, int):
        c.same(c.sizes.quotient(shape[place], as_size(at.real)) * c.fixed(at), shape[place])
    return parted(c, shape, place, at)


def parted(c: Shaper, shape: Shape, place: int, at: Value) -> Many:
    """What is cut into so many parts, or at these places."""
    whole = shape[place]
    if is_a(at.real, (list, tuple)):
        bounds = [as_size(0), *(within(c, c.size(item), whole) for item in c.items(at)), whole]
        return pieces(c, shape, place, [stop - start if c.sizes.decide(operator.le, start, stop) else as_size(0)
                                        for start, stop in itertools.pairwise(bounds)])
    count = c.fixed(at)
    if type(count) is not int:
        raise Unknown
    least = c.sizes.quotient(whole, as_size(count))
    larger = c.sizes.fix(whole - least * count)
    return pieces(c, shape, place, [least + (number < larger) for number in range(count)])


@rule("vstack", "row_stack")
def vstack(c: Shaper, tensors: Value) -> Shape:
    return joined([[as_size(1), *shape] if len(shape) == 1 else shape for shape in map(c.shape, c.items(tensors))], 0, c)


@rule("hstack")
def hstack(c: Shaper, tensors: Value) -> Shape:
    shapes = list(map(c.shape, c.items(tensors)))
    return joined(shapes, int(len(shapes[0]) > 1), c)


@rule("column_stack")
def column_stack(c: Shaper, tensors: Value) -> Shape:
    """Vectors count as columns."""
    shapes = [shape if len(shape) > 1 else [product(shape), as_size(1)] for shape in map(c.shape, c.items(tensors))]
    return joined(shapes, 1, c)


@rule("dstack")
def dstack(c: Shaper, tensors: Value) -> Shape:
    """Vectors and matrices count as images with one channel."""
    one = as_size(1)
    shapes = [shape if len(shape) > 2 else [one] * (2 - len(shape)) + [*shape, one] for shape in map(c.shape, c.items(tensors))]
    return joined(shapes, 2, c)


@rule("block_diag")
def block_diag(c: Shaper, *tensors: Value) -> Shape:
    blocks = tensors if len(tensors) != 1 or is_a(tensors[0].real, torch.Tensor) else c.items(tensors[0])
    rows = columns = as_size(0)
    for shape in map(c.shape, blocks):
        height, width = [as_size(1)] * (2 - len(shape)) + shape
        rows, columns = rows + height, columns + width
    return [rows, columns]


@rule("cartesian_prod")
def cartesian_product(c: Shaper, *tensors: Value) -> Shape:
    lines = [c.shape(value) for value in (tensors if is_a(tensors[0].real, torch.Tensor) else c.items(tensors[0]))]
    return lines[0] if len(lines) == 1 else [product(line[0] for line in lines), as_size(len(lines))]


@rule("combinations")
def combinations(c: Shaper, input: Value, r: Value | None = None, with_replacement: Value | None = None) -> Shape:
    size, = c.shape(input)
    taken, again = c.fixed(r, 2), c.fixed(with_replacement, False)
    if not taken:
        return [as_size(0)]
    ways = product(size + place if again else size - place for place in range(taken))
    count = c.sizes.quotient(ways, as_size(math.factorial(taken)))
    return [count, as_size(taken)]


@rule("pad_sequence")
def pad_sequence(c: Shaper, sequences: Value, batch_first: Value | None = None, *args: Value, **kwargs: Value) -> Shape:
    shapes = list(map(c.shape, c.items(sequences)))
    longest = shapes[0][0]
    for shape in shapes[1:]:
        longest = longest if shape[0] == longest else c.sizes.larger(longest, shape[0])
        for size, other in zip(shapes[0][1:], shape[1:], strict=True):
            c.same(size, other)
    count = as_size(len(shapes))
    return [*((count, longest) if c.fixed(batch_first, False) else (longest, count)), *shapes[0][1:]]


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
