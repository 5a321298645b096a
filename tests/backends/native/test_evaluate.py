"""The reference interpreter: what each part of the IR means, and that it refuses programs whose points depend on each other."""
from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from capture.backends.native.evaluate import evaluate
from capture.backends.native.index import Index, Symbol, Value, Var, index
from capture.backends.native.ir import Buffer, Expr, Extern, Kernel, Nest, Program, Stage, Store, View, constant, load, op, position
from capture.backends.native.verify import InvalidProgram
from tests.backends.native.render.kernels import buffer

f32, i64, boolean = torch.float32, torch.int64, torch.bool
ROWS, COLUMNS = 4, 6
i, j, k = Var("i", ROWS), Var("j", COLUMNS), Var("k", COLUMNS)
AT: Index = index(i) * COLUMNS + j


X, N = buffer("x", ROWS, COLUMNS), buffer("n", ROWS, COLUMNS, dtype=i64)
Y, Z = buffer("y", ROWS, COLUMNS, kind="output"), buffer("z", ROWS, kind="output")


def run(buffers: Sequence[Buffer], body: Sequence[Nest | Kernel | Extern], inputs: Sequence[Any], **changes: Any) -> list[Any]:
    """Runs statements over buffers; the outputs are those of kind "output", whole, unless said otherwise."""
    table = {b.name: b for b in buffers}
    outputs = changes.pop("outputs", [View(b.name, b.sizes, b.strides) for b in buffers if b.kind == "output"])
    return evaluate(Program(table, [b.name for b in buffers if b.kind == "input"], outputs, body=list(body), **changes), inputs)


def stored(value: Expr, at: Index = AT, space: tuple[Var, ...] = (i, j), into: Buffer = Y, **how: Any) -> Nest:
    return Nest("nest", space, tuple(v for v in (i, j) if v not in space), (Store(into.name, at, value, **how),))


def test_pointwise_and_views() -> None:
    x = torch.randn(ROWS, COLUMNS)
    transposed = View("y", (COLUMNS, ROWS), (1, COLUMNS))
    corner = View("y", (2,), (1,), 3)
    outputs = [View("y", Y.sizes, Y.strides), transposed, corner, None, 7, View("x", (2,), (6,), 1)]
    results = run([X, Y], [stored(op("exp", f32, load(X, AT)))], [x], outputs=outputs)
    assert_close(results[0], x.exp())
    assert_close(results[1], x.exp().T, check_stride=True)
    assert_close(results[2], x.exp()[0, 3:5])
    assert results[3:5] == [None, 7]
    assert results[5].data_ptr() == x[0, 1:].data_ptr() and results[0].data_ptr() == results[1].data_ptr()


def test_strided_inputs() -> None:
    base = torch.randn(COLUMNS, 2 * ROWS)
    x = base.T[1::2]
    result, = run([buffer("x", ROWS, COLUMNS, strides=x.stride()), Y], [stored(load(X, index(i) * 2 + index(j) * 8))], [x])
    assert_close(result, x.contiguous())


def test_inputs_are_checked() -> None:
    for wrong in (torch.randn(ROWS, COLUMNS).double(), torch.randn(ROWS, 5), torch.randn(COLUMNS, ROWS).T):
        with pytest.raises(ValueError, match="x is"):
            run([X, Y], [stored(load(X, AT))], [wrong])
    with pytest.raises(ValueError, match="2 inputs for 1"):
        run([X, Y], [], [torch.randn(1), torch.randn(1)])


REDUCED = {
    "sum": lambda x: x.sum(1), "prod": lambda x: x.prod(1), "max": lambda x: x.amax(1), "min": lambda x: x.amin(1),
    "argmax": lambda x: x.argmax(1), "argmin": lambda x: x.argmin(1),
}
SCANNED = {
    "sum": lambda x: x.cumsum(1), "prod": lambda x: x.cumprod(1),
    "max": lambda x: x.cummax(1).values, "min": lambda x: x.cummin(1).values,
}


@pytest.mark.parametrize("reduction", REDUCED)
def test_reductions(reduction: str) -> None:
    x = torch.randint(0, 5, (ROWS, COLUMNS)).float()
    x[1, 2] = x[1, 4] = torch.nan
    x[2, :] = torch.inf
    into = buffer("z", ROWS, kind="output", dtype=i64 if reduction.startswith("arg") else f32)
    result, = run([X, into], [stored(load(X, AT), index(i), (i,), into, reduction=reduction)], [x])
    assert_close(result, REDUCED[reduction](x), equal_nan=True)


@pytest.mark.parametrize("reduction", SCANNED)
def test_scans(reduction: str) -> None:
    x = torch.randn(ROWS, COLUMNS)
    x[1, 2] = torch.nan
    result, = run([X, Y], [stored(load(X, AT), space=(i,), reduction=reduction, scan=True)], [x])
    assert_close(result, SCANNED[reduction](x), equal_nan=True)


def test_logical_reductions_and_partial_positions() -> None:
    x = torch.tensor([[0., 1, 0, 2, 2, 1], [0] * 6, [1] * 6, [3, 2, 1, 0, 5, torch.nan]])
    flags, every = (buffer(name, ROWS, kind="output", dtype=boolean) for name in ("z", "w"))
    places = buffer("p", ROWS, COLUMNS, kind="output", dtype=i64)
    positive = op("gt", boolean, load(X, AT), constant(0.0, f32))
    nest = Nest("n", (i,), (j,), (Store("z", index(i), positive, reduction="any"), Store("w", index(i), positive, reduction="all"),
                                  Store("p", AT, load(X, AT), reduction="argmax", scan=True)))
    some, all_, first = run([X, flags, every, places], [nest], [x])
    assert_close(some, (x > 0).any(1))
    assert_close(all_, (x > 0).all(1))
    assert first.tolist() == [[0, 1, 1, 3, 3, 3], [0] * 6, [0] * 6, [0, 0, 0, 0, 4, 5]]


def test_identities_of_reductions() -> None:
    nothing = Var("j", 0)
    expected = {"sum": 0.0, "prod": 1.0, "max": -torch.inf, "min": torch.inf}
    for reduction, value in expected.items():
        store = Store("z", index(i), load(X, index(nothing)), reduction=reduction)
        result, = run([buffer("x", ROWS, 0), Z], [Nest("n", (i,), (nothing,), (store,))], [torch.zeros(ROWS, 0)])
        assert result.tolist() == [value] * ROWS


def test_positions_of_several_reduced_loops_are_row_major() -> None:
    x = torch.randn(ROWS, COLUMNS)
    into = buffer("z", kind="output", dtype=i64)
    result, = run([X, into], [Nest("n", (), (i, j), (Store("z", index(0), load(X, AT), reduction="argmax"),))], [x])
    assert result == x.argmax()


def test_masks() -> None:
    x = torch.randn(ROWS, COLUMNS)
    first = op("lt", boolean, position(index(j)), constant(2, i64))
    result, = run([X, Y], [stored(load(X, AT * 100, op("not", boolean, op("eq", boolean, position(index(j)), position(index(j)))))),
                           stored(load(X, AT), mask=first)], [x])
    assert_close(result, torch.where(torch.arange(COLUMNS) < 2, x, 0.0))


def test_gather_scatter_and_range() -> None:
    x, n = torch.randn(ROWS, COLUMNS), torch.randint(0, COLUMNS, (ROWS, COLUMNS))
    place = index(i) * COLUMNS + index(Value(load(N, AT), COLUMNS))
    result, = run([X, N, Y], [stored(load(X, place))], [x, n])
    assert_close(result, x.gather(1, n))
    for mode, reduce in ("add", "sum"), ("mul", "prod"), ("maximum", "amax"), ("minimum", "amin"):
        scatter = Nest("scatter", (i,), (j,), (Store("y", place, load(X, AT), mode=mode),))
        result, = run([X, N, Y], [stored(constant(0.5, f32)), scatter], [x, n])
        assert_close(result, torch.full_like(x, 0.5).scatter_reduce(1, n, x, reduce))
    with pytest.raises(InvalidProgram, match="several threads scatter to the same element of y"):
        run([X, N, Y], [stored(constant(0.5, f32)), stored(load(X, AT), place, mode="add")], [x, torch.zeros_like(n)])
    n[2, 3] = COLUMNS
    with pytest.raises(IndexError, match="index 6 is out of bounds for a dimension of size 6"):
        run([X, N, Y], [stored(load(X, place))], [x, n])
    n[2, 3] = -1
    within = op("ge", boolean, load(N, AT), constant(0, i64))
    result, = run([X, N, Y], [stored(load(X, place, within))], [x, n])
    assert_close(result, torch.where(n >= 0, x.gather(1, n.clamp(0)), 0.0))


def test_inputs_are_mutated() -> None:
    x = torch.randn(ROWS, COLUMNS)
    expected = x + 1
    assert run([X], [stored(op("add", f32, load(X, AT), constant(1.0, f32)), into=X)], [x]) == []
    assert_close(x, expected)


def test_loads_of_a_point_come_before_its_stores() -> None:
    x = torch.randn(ROWS, COLUMNS)
    before = x.clone()
    nest = Nest("n", (i, j), (), (Store("x", AT, constant(0.0, f32)), Store("y", AT, load(X, AT))))
    result, = run([X, Y], [nest], [x])
    assert_close(result, before)
    assert not x.any()


def test_symbols() -> None:
    rows, columns = Symbol("s"), Symbol("t", 1)
    x = buffer("x", index(rows), index(columns), strides=(index(columns), 1))
    y = buffer("y", index(columns), index(rows), kind="output", strides=(index(rows), 1))
    a, b = Var("a", index(rows)), Var("b", index(columns))
    value = op("mul", f32, load(x, index(a) * index(columns) + b), op("to", f32, position(index(rows))))
    nest = Nest("n", (a, b), (), (Store("y", index(b) * index(rows) + a, value),))
    program = Program({"x": x, "y": y}, ["x", columns], [View("y", y.sizes, y.strides), index(rows) * index(columns) // 2],
                      {rows: (0, 0), columns: (1, None)}, [nest])
    for sizes in itertools.product((2, 5), (1, 3)):
        given = torch.randn(sizes)
        result, half = evaluate(program, [given, sizes[1]])
        assert_close(result, given.T * sizes[0])
        assert half == sizes[0] * sizes[1] // 2
    with pytest.raises(ValueError, match="s is 1, less than 2"):
        evaluate(program, [torch.randn(1, 3), 3])


def test_constants_and_conversions() -> None:
    weights = torch.randn(ROWS, COLUMNS)
    c = buffer("c", ROWS, COLUMNS, kind="constant")
    whole = buffer("y", ROWS, COLUMNS, kind="output", dtype=i64)
    value = op("to", i64, op("mul", f32, load(c, AT), constant(9.5, f32)))
    result, = run([c, whole], [stored(value)], [], constants={"c": weights})
    assert_close(result, (weights * 9.5).long())


def test_calls() -> None:
    x = torch.randn(ROWS, COLUMNS)
    whole = View("x", X.sizes, X.strides)
    square = buffer("y", ROWS, ROWS, kind="output")
    transposed = View("x", (COLUMNS, ROWS), (1, COLUMNS))
    target = View("y", square.sizes, square.strides)
    result, = run([X, square], [Extern("mm", "aten::mm.out", (whole, transposed), {"out": target}, ("y",), out=True)], [x])
    assert_close(result, x @ x.T)
    result, = run([X, square], [Extern("mm", "aten::mm", (whole, transposed), {}, ("y",))], [x])
    assert_close(result, x @ x.T)
    largest, places = buffer("y", ROWS, index(2), kind="output"), buffer("z", ROWS, index(2), kind="output", dtype=i64)
    topk = Extern("topk", "aten::topk", (whole, index(2), 1), {"sorted": True}, ("y", "z"))
    values, chosen = run([X, largest, places], [topk], [x])
    assert_close(values, x.topk(2, 1).values)
    chosen, = run([X, places], [Extern("topk", "aten::topk", (whole, 2), {}, (None, "z"))], [x])
    assert_close(chosen, x.topk(2).indices)
    run([X], [Extern("zero", "aten::zero_", (View("x", (2, COLUMNS), (COLUMNS, 1)),), {}, (), mutates=("x",))], [x])
    assert not x[:2].any() and x[2:].all()
    bits, = run([X, buffer("y", ROWS, COLUMNS, kind="output", dtype=torch.int32)],
                [Extern("bits", "aten::clone", (View("x", X.sizes, X.strides, 0, torch.int32),), {}, ("y",))], [x])
    assert_close(bits, x.view(torch.int32))


def test_results_of_calls_are_as_declared() -> None:
    whole = View("x", X.sizes, X.strides)
    with pytest.raises(InvalidProgram, match=r"y is torch.float32\(4, 6\)"):
        transposed = buffer("y", COLUMNS, ROWS, kind="output")
        run([X, transposed], [Extern("relu", "aten::relu", (whole,), {}, ("y",))], [torch.randn(ROWS, COLUMNS)])
    with pytest.raises(InvalidProgram, match="1 results, not 2"):
        run([X, Y, Z], [Extern("relu", "aten::relu", (whole,), {}, ("y", "z"))], [torch.randn(ROWS, COLUMNS)])


# Kernels: what a row may know of others.

LOCAL = Buffer("m", f32, (), (), "local")
ROW = Buffer("e", f32, (COLUMNS,), (1,), "local")


def softmax(second: Index = index(k)) -> Kernel:
    """Rows of softmax; the last stage reads the row's exponentials at `second`."""
    quotient = op("div", f32, load(ROW, second), load(replace_name(LOCAL, "s"), index(0)))
    return Kernel("softmax", (i,), 1, False, (
        Stage((j,), frozenset({j}), (Store("m", index(0), load(X, AT), reduction="max"),)),
        Stage((k,), frozenset({k}), (Store("e", index(k), exponential(), ), Store("s", index(0), exponential(), reduction="sum"))),
        Stage((k,), frozenset(), (Store("y", index(i) * COLUMNS + k, quotient),)),
    ), (LOCAL, replace_name(LOCAL, "s"), ROW))


def exponential() -> Expr:
    return op("exp", f32, op("sub", f32, load(X, index(i) * COLUMNS + k), load(LOCAL, index(0))))


def replace_name(old: Buffer, name: str) -> Buffer:
    return Buffer(name, old.dtype, old.sizes, old.strides, old.kind)


def test_kernels_with_locals() -> None:
    x = torch.randn(ROWS, COLUMNS)
    result, = run([X, Y], [softmax()], [x])
    assert_close(result, x.softmax(1))


def two_stages(first: Index, second: Index, third: Index = AT, parallel: int = 1) -> Kernel:
    """Stores x to y at `first`; then y, read at `second`, to w at `third`."""
    return Kernel("k", (i,), parallel, False, (
        Stage((j,), frozenset(), (Store("y", first, load(X, AT)),)),
        Stage((j,), frozenset(), (Store("w", third, load(Y, second)),))))


W = buffer("w", ROWS, COLUMNS, kind="output")
BACKWARDS: Index = index(i) * COLUMNS + (COLUMNS - 1 - index(j))
UPSIDE_DOWN: Index = (ROWS - 1 - index(i)) * COLUMNS + j


def test_stages_see_the_same_row() -> None:
    x = torch.randn(ROWS, COLUMNS)
    y, w = run([X, Y, W], [two_stages(AT, BACKWARDS)], [x])
    assert_close(y, x)
    assert_close(w, x.flip(1))


@pytest.mark.parametrize("kernel, message", [
    (two_stages(AT, UPSIDE_DOWN), "a row loads an element of y that another row stores"),
    (two_stages(index(j), index(j)), "several rows store to the same element of y"),
    (two_stages(AT, AT + 1), r"y\[1 \+ i\*6 \+ j\] reaches 1 … 24 of 24 elements"),
    (two_stages(AT, AT, UPSIDE_DOWN // 2), "several points store to the same element of w"),
], ids=["load", "store", "bounds", "injective"])
def test_rows_that_are_not_independent_are_refused(kernel: Kernel, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        run([X, Y, W], [kernel], [torch.randn(ROWS, COLUMNS)])


def test_points_that_are_not_independent_are_refused() -> None:
    x = torch.randn(ROWS, COLUMNS)
    with pytest.raises(InvalidProgram, match="a row loads an element of x that another row stores"):
        run([X], [stored(load(X, UPSIDE_DOWN), into=X)], [x])
    with pytest.raises(InvalidProgram, match="a point loads an element of x that another point stores"):
        run([X], [Kernel("k", (i,), 1, False, (Stage((j,), frozenset(), (Store("x", AT, load(X, BACKWARDS)),)),))], [x])
    with pytest.raises(InvalidProgram, match="a point loads an element of x that another point stores"):
        run([X], [Nest("n", (i,), (j,), (Store("x", index(i) * COLUMNS, load(X, AT), reduction="sum"),))], [x])


def test_a_row_may_not_know_the_local_elements_of_another() -> None:
    first_row = op("eq", boolean, position(index(i)), constant(0, i64))
    kernel = Kernel("k", (i,), 1, False, (
        Stage((k,), frozenset(), (Store("e", index(k), load(X, index(k)), mask=first_row),)),
        Stage((k,), frozenset(), (Store("y", index(i) * COLUMNS + k, load(ROW, index(k))),))), (ROW,))
    with pytest.raises(InvalidProgram, match="e is read before it is written"):
        run([X, Y], [kernel], [torch.randn(ROWS, COLUMNS)])


def test_reading_before_writing_is_refused() -> None:
    x = torch.randn(ROWS, COLUMNS)
    with pytest.raises(InvalidProgram, match="y is read before it is written"):
        run([X, Y, W], [stored(load(Y, AT), into=W)], [x])
    half = Nest("n", (Var("i", 2), j), (), (Store("y", index(Var("i", 2)) * COLUMNS + j, constant(1.0, f32)),))
    with pytest.raises(InvalidProgram, match="y is read before it is written"):
        run([X, Y, W], [half, stored(load(Y, AT), into=W)], [x])
    with pytest.raises(InvalidProgram, match="y is read before it is written"):
        run([X, Y], [stored(load(X, AT), mode="add")], [x])


@pytest.mark.parametrize("parallel", [0, 1])
def test_threads_do_not_scatter_to_the_same_element(parallel: int) -> None:
    x = torch.randn(ROWS, COLUMNS)
    zero = Nest("zero", (j,), (), (Store("z", index(j), constant(0.0, f32)),))
    add = Kernel("add", (i,), parallel, False, (Stage((j,), frozenset(), (Store("z", index(j), load(X, AT), mode="add"),)),))
    sums = buffer("z", COLUMNS, kind="output")
    if parallel:
        with pytest.raises(InvalidProgram, match="several threads scatter to the same element of z"):
            run([X, sums], [zero, add], [x])
    else:
        assert_close(run([X, sums], [zero, add], [x])[0], x.sum(0))


def test_types_are_checked() -> None:
    x = torch.randn(ROWS, COLUMNS)
    with pytest.raises(InvalidProgram, match="torch.int64 stored to y"):
        run([X, Y], [stored(position(index(j)))], [x])
    with pytest.raises(InvalidProgram, match="exp of"):
        run([X, Y], [stored(op("exp", torch.float64, load(X, AT)))], [x])


def test_the_error_quotes_the_kernel() -> None:
    with pytest.raises(InvalidProgram, match="kernel k\n    parallel for i < 4"):
        run([X, Y, W], [two_stages(AT, UPSIDE_DOWN)], [torch.randn(ROWS, COLUMNS)])
