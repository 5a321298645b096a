"""Sizes of results of Fourier transforms and linear algebra."""
from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.products import matmul
from capture.interp.recording.shape_rules.shaper import Many, Shape, Shaper, Unknown, rule
from capture.refgraph.sizes import Size, as_size, product

# -- Fourier transforms ------------------------------------------------------------------------------------------------

Length = Callable[[Shaper, Size], Size]


def same_length(c: Shaper, size: Size) -> Size:
    return size


def half(c: Shaper, size: Size) -> Size:
    """How many frequencies real numbers have."""
    return c.sizes.quotient(size, as_size(2)) + 1


def whole(c: Shaper, size: Size) -> Size:
    """How many real numbers have so many frequencies, if nothing else is said."""
    return (size - 1) * 2


def along_one(of: Length, given: Length) -> Callable[..., Shape]:
    """The rule of a transform along one dimension. given: what a length that the call gives makes of it."""
    def transform(c: Shaper, input: Value, n: Value | None = None, dim: Value | None = None, norm: Value | None = None) -> Shape:
        shape = c.shape(input)
        place = c.dim(dim, len(shape), -1)
        shape[place] = of(c, shape[place]) if n is None or n.real is None else given(c, c.size(n))
        return shape
    return transform


def along_many(of: Length, given: Length, dims: int | None) -> Callable[..., Shape]:
    """… along several, of which the last becomes as long as `of` says. dims: how many, if the call does not say."""
    def transform(c: Shaper, input: Value, s: Value | None = None, dim: Value | None = None, norm: Value | None = None) -> Shape:
        shape = c.shape(input)
        lengths = None if s is None or s.real is None else c.given([s])
        named = c.fixed(dim)
        if named is None:
            count = dims if lengths is None or dims is not None else len(lengths)
            places = list(range(len(shape)))[-count:] if count is not None else list(range(len(shape)))
        else:
            places = c.dims(dim, len(shape))
        if not places or lengths is not None and (len(lengths) != len(places) or any(size.real < 0 for size in lengths)):
            raise Unknown
        for place, length in zip(places, lengths or (), strict=lengths is not None):
            shape[place] = length
        shape[places[-1]] = (of if lengths is None else given)(c, shape[places[-1]])
        return shape
    return transform


for _name, _of, _given in (("fft", same_length, same_length), ("ifft", same_length, same_length), ("rfft", half, half),
                           ("irfft", whole, same_length), ("hfft", whole, same_length), ("ihfft", half, half)):
    rule(f"fft_{_name}")(along_one(_of, _given))
    rule(f"fft_{_name}2")(along_many(_of, _given, 2))
    rule(f"fft_{_name}n")(along_many(_of, _given, None))


@rule("fft_fftshift", "fft_ifftshift", "linalg_inv", "inverse", "linalg_cholesky", "cholesky", "matrix_exp", "linalg_matrix_exp",
      "linalg_matrix_power", "matrix_power", "cholesky_inverse", "linalg_householder_product")
def like_valid_input(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape:
    return c.shape(input)


@rule("istft")
def istft(c: Shaper, input: Value, n_fft: Value, hop_length: Value | None = None, win_length: Value | None = None,
          window: Value | None = None, center: Value | None = None, normalized: Value | None = None, onesided: Value | None = None,
          length: Value | None = None, return_complex: Value | None = None) -> Shape:
    *batch, _, frames = c.shape(input)
    width, hop = c.fixed(n_fft), c.fixed(hop_length)
    if length is not None and length.real is not None:
        return [*batch, c.size(length)]
    whole = (frames - 1) * (width // 4 if hop is None else hop) + width
    return [*batch, whole - 2 * (width // 2) if c.fixed(center, True) else whole]


@rule("stft")
def stft(c: Shaper, input: Value, n_fft: Value, hop_length: Value | None = None, win_length: Value | None = None,
         window: Value | None = None, center: Value | None = None, pad_mode: Value | None = None, normalized: Value | None = None,
         onesided: Value | None = None, return_complex: Value | None = None, **kwargs: Value) -> Shape:
    shape, width = c.shape(input), c.fixed(n_fft)
    if kwargs or c.fixed(return_complex) is not True or input.real.is_complex():
        raise Unknown
    hop = c.fixed(hop_length)
    room = shape[-1] - width + (2 * (width // 2) if c.fixed(center, True) else 0)
    frames = c.sizes.quotient(room, as_size(width // 4 if hop is None else hop)) + 1
    return [*shape[:-1], as_size(width if c.fixed(onesided) is False else width // 2 + 1), frames]


# -- linear algebra ----------------------------------------------------------------------------------------------------

@rule("det", "linalg_det", "logdet")
def determinant(c: Shaper, input: Value) -> Shape:
    return c.shape(input)[:-2]


@rule("slogdet", "linalg_slogdet")
def slogdet(c: Shaper, input: Value) -> Many:
    return Many([c.shape(input)[:-2], c.shape(input)[:-2]])


@rule("linalg_eigh")
def eigh(c: Shaper, input: Value, UPLO: Value | None = None) -> Many:
    return Many([c.shape(input)[:-1], c.shape(input)])


@rule("linalg_eigvalsh")
def eigvalsh(c: Shaper, input: Value, UPLO: Value | None = None) -> Shape:
    return c.shape(input)[:-1]


@rule("linalg_solve_triangular")
def solve_triangular(c: Shaper, input: Value, other: Value, **kwargs: Value) -> Shape:
    shape, right = c.shape(input), c.shape(other)
    return [*c.broadcast(shape[:-2], right[:-2]), *right[-2:]]


@rule("linalg_solve")
def solve(c: Shaper, A: Value, B: Value, *, left: Value | None = None) -> Shape:
    shape, right = c.shape(A), c.shape(B)
    c.same(shape[-1], shape[-2])
    if len(right) == 1 or len(right) == len(shape) - 1 and all(
            c.sizes.decide(operator.eq, one, other) for one, other in zip(right, shape[:-1], strict=True)):       # vectors
        c.same(right[-1], shape[-1])
        return shape[:-1]
    c.same(right[-2 if c.fixed(left, True) else -1], shape[-1])
    return [*c.broadcast(shape[:-2], right[:-2]), *right[-2:]]


@rule("linalg_vecdot")
def vecdot(c: Shaper, x: Value, y: Value, dim: Value | None = None) -> Shape:
    shape = c.broadcast(c.shape(x), c.shape(y))
    del shape[c.dim(dim, len(shape), -1)]
    return shape


@rule("inner")
def inner(c: Shaper, input: Value, other: Value) -> Shape:
    left, right = c.shape(input), c.shape(other)
    if not left or not right:
        return left or right
    c.same(left[-1], right[-1])
    return [*left[:-1], *right[:-1]]


@rule("addr")
def addr(c: Shaper, input: Value, vec1: Value, vec2: Value, **kwargs: Value) -> Shape:
    return [*c.shape(vec1), *c.shape(vec2)]


@rule("chain_matmul", "linalg_multi_dot")
def chain(c: Shaper, *matrices: Value, **kwargs: Value) -> Shape:
    each = c.items(matrices[0]) if len(matrices) == 1 else list(matrices)
    shapes = [c.shape(value) for value in each]
    if kwargs or any(len(shape) != 2 for shape in shapes):
        raise Unknown
    for left, right in itertools.pairwise(shapes):
        c.same(left[1], right[0])
    return [shapes[0][0], shapes[-1][1]]


@rule("cov", "corrcoef")
def covariance(c: Shaper, input: Value, *args: Value, **kwargs: Value) -> Shape:
    """Of variables, each in a row; a vector is one of them."""
    return [c.shape(input)[0]] * 2 if input.real.dim() == 2 else []


@rule("cross", "linalg_cross")
def cross(c: Shaper, input: Value, other: Value, *args: Value, **kwargs: Value) -> Shape:
    return c.broadcast(c.shape(input), c.shape(other))


@rule("dist")
def distance(c: Shaper, input: Value, other: Value, p: Value | None = None) -> Shape:
    c.broadcast(c.shape(input), c.shape(other))
    return []


@rule("pdist")
def distances(c: Shaper, input: Value, p: Value | None = None) -> Shape:
    rows = c.shape(input)[0]
    return [c.sizes.quotient(rows * (rows - 1), as_size(2))]


@rule("vander", "linalg_vander")
def powers(c: Shaper, x: Value, N: Value | None = None, increasing: Value | None = None) -> Shape:
    shape = c.shape(x)
    return [*shape, shape[-1] if N is None or N.real is None else c.size(N)]


@rule("cdist")
def cdist(c: Shaper, x1: Value, x2: Value, *args: Value, **kwargs: Value) -> Shape:
    left, right = c.shape(x1), c.shape(x2)
    c.same(left[-1], right[-1])
    return [*c.broadcast(left[:-2], right[:-2]), left[-2], right[-2]]


@rule("kron")
def kron(c: Shaper, input: Value, other: Value) -> Shape:
    left, right = c.shape(input), c.shape(other)
    rank = max(len(left), len(right))
    left, right = ([*[as_size(1)] * (rank - len(shape)), *shape] for shape in (left, right))
    return [one * two for one, two in zip(left, right, strict=True)]


@rule("trace")
def trace(c: Shaper, input: Value) -> Shape:
    return []


@rule("__rmatmul__")
def rmatmul(c: Shaper, input: Value, other: Value) -> Shape:
    return matmul(c, other, input)


# -- diagonals ---------------------------------------------------------------------------------------------------------

def on_diagonal(c: Shaper, rows: Size, columns: Size, offset: int) -> Size:
    """How many elements a diagonal of a matrix has."""
    rows, columns = (rows, columns - offset) if offset >= 0 else (rows + offset, columns)
    least = rows if c.sizes.decide(operator.le, rows, columns) else columns
    return least if c.sizes.decide(operator.ge, least, 0) else as_size(0)


@rule("diagonal", "linalg_diagonal")
def diagonal(c: Shaper, input: Value, offset: Value | None = None, dim1: Value | None = None, dim2: Value | None = None,
             **kwargs: Value) -> Shape:
    shape = c.shape(input)
    if kwargs or input.real.dim() < 2:
        raise Unknown
    one, other = c.dim(dim1, len(shape)), c.dim(dim2, len(shape), 1)
    length = on_diagonal(c, shape[one], shape[other], c.fixed(offset, 0))
    for place in (one, other):
        c.cut(as_size(1), shape[place])
    return [*(size for place, size in enumerate(shape) if place not in (one, other)), length]


@rule("diag")
def diag(c: Shaper, input: Value, diagonal: Value | None = None) -> Shape:
    shape, offset = c.shape(input), c.fixed(diagonal, 0)
    if len(shape) == 1:
        return [shape[0] + abs(offset)] * 2
    return [on_diagonal(c, shape[0], shape[1], offset)]


@rule("diagflat")
def diagflat(c: Shaper, input: Value, offset: Value | None = None) -> Shape:
    return [product(c.shape(input)) + abs(c.fixed(offset, 0))] * 2


@rule("tril_indices")
def lower_indices(c: Shaper, row: Value, col: Value, offset: Value | None = None, **kwargs: Value) -> Shape:
    return [as_size(2), in_lower_triangle(c, c.size(row), c.size(col), c.fixed(offset, 0))]


@rule("triu_indices")
def upper_indices(c: Shaper, row: Value, col: Value, offset: Value | None = None, **kwargs: Value) -> Shape:
    rows, columns = c.size(row), c.size(col)
    return [as_size(2), rows * columns - in_lower_triangle(c, rows, columns, c.fixed(offset, 0) - 1)]


def in_lower_triangle(c: Shaper, rows: Size, columns: Size, offset: int) -> Size:
    """How many elements of a matrix lie on a diagonal or below it."""
    def within(size: Size, most: Size) -> Size:
        if not c.sizes.decide(operator.ge, size, 0):
            return as_size(0)
        return size if c.sizes.decide(operator.le, size, most) else most

    skipped = within(as_size(-offset), rows)                                # rows of which nothing is taken, …
    whole = within(rows - columns + (offset + 1), rows - skipped)           # … all is, …
    partly = rows - skipped - whole                                         # … and one more than of the row before
    first = within(as_size(offset + 1), columns) if offset >= 0 else as_size(1)
    return whole * columns + partly * first + c.sizes.quotient(partly * (partly - 1), as_size(2))


@rule("diag_embed")
def diag_embed(c: Shaper, input: Value, offset: Value | None = None, dim1: Value | None = None, dim2: Value | None = None) -> Shape:
    shape = c.shape(input)
    rank, size = len(shape) + 1, shape[-1] + abs(c.fixed(offset, 0))
    one, other = c.dim(dim1, rank, -2), c.dim(dim2, rank, -1)
    rest = iter(shape[:-1])
    return [size if place in (one, other) else next(rest) for place in range(rank)]
