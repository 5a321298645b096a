"""Sizes of results of operations that take matrices apart: QR, LU, eigenvalues, singular values."""
from __future__ import annotations

from capture.interp.core.frame import Value
from capture.interp.recording.shape_rules.reductions import reduced
from capture.interp.recording.shape_rules.shaper import Many, Shape, Shaper, Unknown, rule
from capture.refgraph.sizes import Size


def matrix(c: Shaper, input: Value) -> tuple[Shape, Size, Size, Size]:
    """The batch of matrices, their rows, their columns, and whichever are fewer."""
    *batch, rows, columns = c.shape(input)
    return batch, rows, columns, c.sizes.smaller(rows, columns)


def square(c: Shaper, input: Value) -> Shape:
    """A batch of matrices that have as many rows as columns; others raise."""
    shape = c.shape(input)
    c.same(shape[-1], shape[-2])
    return shape


@rule("linalg_qr", "qr")
def qr(c: Shaper, A: Value, mode: Value | None = None) -> Many:
    batch, rows, columns, fewer = matrix(c, A)
    how = c.fixed(mode, "reduced")
    if how in ("reduced", True):                # `qr` says whether it makes only what is needed
        return Many([[*batch, rows, fewer], [*batch, fewer, columns]])
    if how not in ("complete", False):
        raise Unknown
    return Many([[*batch, rows, rows], [*batch, rows, columns]])


@rule("linalg_svd")
def singular_values_and_vectors(c: Shaper, A: Value, full_matrices: Value | None = None, *, driver: Value | None = None) -> Many:
    batch, rows, columns, fewer = matrix(c, A)
    left, right = (rows, columns) if c.fixed(full_matrices, True) else (fewer, fewer)
    return Many([[*batch, rows, left], [*batch, fewer], [*batch, right, columns]])


@rule("linalg_svdvals")
def singular_values(c: Shaper, A: Value, *, driver: Value | None = None) -> Shape:
    batch, *_, fewer = matrix(c, A)
    return [*batch, fewer]


@rule("linalg_eig")
def eigenvalues_and_vectors(c: Shaper, A: Value) -> Many:
    shape = square(c, A)
    return Many([shape[:-1], shape])


@rule("linalg_eigvals")
def eigenvalues(c: Shaper, A: Value) -> Shape:
    return square(c, A)[:-1]


@rule("linalg_cholesky_ex", "linalg_inv_ex")
def with_errors(c: Shaper, A: Value, **kwargs: Value) -> Many:
    """What is as large as the matrices, and a number for each of them."""
    shape = square(c, A)
    return Many([shape, shape[:-2]])


@rule("linalg_lu")
def lu(c: Shaper, A: Value, *, pivot: Value | None = None) -> Many:
    batch, rows, columns, fewer = matrix(c, A)
    if c.fixed(pivot, True) is not True:
        raise Unknown
    return Many([[*batch, rows, rows], [*batch, rows, fewer], [*batch, fewer, columns]])


@rule("linalg_lu_factor")
def lu_factor(c: Shaper, A: Value, *, pivot: Value | None = None) -> Many:
    batch, rows, columns, fewer = matrix(c, A)
    return Many([[*batch, rows, columns], [*batch, fewer]])


@rule("linalg_pinv", "pinverse")
def pseudo_inverse(c: Shaper, A: Value, *args: Value, **kwargs: Value) -> Shape:
    *batch, rows, columns = c.shape(A)
    return [*batch, columns, rows]


@rule("linalg_matrix_norm")
def matrix_norm(c: Shaper, A: Value, ord: Value | None = None, dim: Value | None = None, keepdim: Value | None = None,
                **kwargs: Value) -> Shape:
    shape = c.shape(A)
    places = [len(shape) - 2, len(shape) - 1] if dim is None else c.dims(dim, len(shape))
    return reduced(shape, places, bool(c.fixed(keepdim, False)))


@rule("linalg_matrix_rank")
def matrix_rank(c: Shaper, A: Value, *args: Value, **kwargs: Value) -> Shape:
    if args or kwargs:
        raise Unknown                           # tolerances may be tensors
    return c.shape(A)[:-2]
