"""16 bytes at a time where sizes vary: forms for sizes that are multiples of what a thread does in turn, and one for all others."""
from __future__ import annotations

import pytest
import torch

from capture.backends.native.index import ZERO, Symbol, Var, index
from capture.backends.native.ir import Kernel, Load, Stage, Store, load, op
from capture.backends.native.render import Form
from capture.backends.native.schedule import wide
from tests.backends.native.render import kernels
from tests.backends.native.render.kernels import at, buffer, f32

pytestmark = pytest.mark.usefixtures("on_emulated_device")
NONE: frozenset = frozenset()
ROWS, SIZE = Symbol("r"), Symbol("s")


def asked(forms: tuple[Form, ...]) -> list[tuple[bool, set[str]]]:
    """Of each form: whether it asks for addresses, and which sizes must be multiples."""
    return [(bool(form.aligned), {repr(size) for size, _ in form.divisible}) for form in forms]


@pytest.mark.parametrize("size", [2, 61, 64, 1028])
def test_rows(size):
    """The sum of a row is the same wherever the row begins: `check` compares the bits of both forms for multiples of 4."""
    x, y = buffer("x", 5, index(SIZE)), buffer("y", 5, index(SIZE), kind="output")
    total = buffer("total", dtype=torch.float64, kind="local")
    i, j = Var("i", 5), Var("j", index(SIZE))
    here = load(x, at(x, i, j))
    kernel = Kernel("rows", (i,), 1, False, (
        Stage((j,), frozenset((j,)), (Store("total", ZERO, here, reduction="total"),)),
        Stage((j,), NONE, (Store("y", at(y, i, j), op("add", f32, here, op("to", f32, load(total, ZERO)))),))), (total,))
    library = kernels.check(kernel, (x, y), torch.randn(5, size), symbols={SIZE: (0, 1)}, rtol=1e-5)
    assert asked(library.rendered.forms["rows"]) == [(True, {"s"}), (False, {"s"}), (False, set())]
    assert "load_elements<4>" in library.rendered.sources[0]


@pytest.mark.parametrize("rows, size", [(3, 5), (4, 5), (2, 64)])
def test_points(rows, size):
    """All points in a row, of which only the number matters, and rows of an operand that is repeated, where each counts."""
    x, y = buffer("x", index(ROWS) * index(SIZE)), buffer("y", index(ROWS) * index(SIZE), kind="output")
    i = Var("i", index(ROWS) * index(SIZE))
    kernel = Kernel("points", (i,), 1, True, (Stage((), NONE, (Store("y", index(i), op("neg", f32, load(x, index(i)))),)),))
    symbols = {ROWS: (1, 0), SIZE: (1, 1)}
    sizes = buffer("sizes", index(ROWS), index(SIZE))
    library = kernels.check(kernel, (x, sizes, y), torch.randn(rows * size), torch.zeros(rows, size), symbols=symbols)
    assert asked(library.rendered.forms["points"]) == [(True, {"r*s"}), (False, set())]


@pytest.mark.parametrize("rows, size", [(3, 5), (4, 5), (2, 64)])
def test_columns(rows, size):
    x, y = buffer("x", index(ROWS), index(SIZE)), buffer("y", index(SIZE), kind="output")
    i, j = Var("i", index(ROWS)), Var("j", index(SIZE))
    store = Store("y", index(j), load(x, at(x, i, j)), reduction="sum")
    kernel = Kernel("columns", (j,), 1, True, (Stage((i,), frozenset((i,)), (store,)),))
    library = kernels.check(kernel, (x, y), torch.randn(rows, size), symbols={ROWS: (0, 0), SIZE: (0, 1)}, rtol=1e-5)
    assert asked(library.rendered.forms["columns"]) == [(True, {"s"}), (False, set())]


def test_what_is_asked_of_sizes():
    j, k = Var("j", index(SIZE)), Var("k", 7)

    def asks(where, width=4):
        return wide.multiples_for_access(Load("x", index(where), f32), j, width)
    assert asks(index(j)) == set() and asks(index(j) + index(k) * 8) == set()
    assert asks(index(j) + index(k) * index(SIZE)) == {index(SIZE)}
    assert asks(index(j) + index(k) * index(SIZE) * 2) == {index(SIZE) * 2}
    assert asks(index(j) + index(SIZE) * index(ROWS)) == {index(SIZE) * index(ROWS)}
    assert asks(index(j) + 1) is None and asks(index(j) + index(k)) is None and asks(index(j) * 2) is None
    assert asks(index(j) * index(SIZE)) is None
