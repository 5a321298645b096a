"""The renderer: each feature of the IR in a kernel of its own, compiled and compared with the IR's meaning."""
from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch

from capture.backends.native.index import ZERO, Symbol, Value, Var, index
from capture.backends.native.ir import Kernel, Stage, Store, constant, load, op, position
from capture.backends.native.render import render
from capture.backends.native.schedule import cpu, tiles
from capture.backends.native.schedule.fetching import fetches_of
from tests.backends.native.render import kernels as by_hand
from tests.backends.native.render.kernels import Library, at, boolean, buffer, check, f32, f64, i32, i64, memory_of, program_of

NONE: frozenset = frozenset()
kernels_compiled_together = pytest.fixture(scope="module", autouse=True)(by_hand.compile_together)


def pointwise(rows: int, columns: int, vectorized: bool = True, parallel: int = 2):
    x, y = buffer("x", rows, columns), buffer("y", rows, columns, kind="output")
    i, j = Var("i", rows), Var("j", columns)
    lx = load(x, at(x, i, j))
    value = op("add", f32, op("exp", f32, lx), op("mul", f32, lx, constant(0.1, f32)))
    if vectorized:
        return Kernel("pointwise", (i, j), parallel, True, (Stage((), NONE, (Store("y", at(y, i, j), value),)),)), (x, y)
    return Kernel("pointwise", (i,), 1, False, (Stage((j,), NONE, (Store("y", at(y, i, j), value),)),)), (x, y)


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 7), (5, 64), (17, 1000), (1, 4099)])
@pytest.mark.parametrize("how", [(True, 2), (True, 1), (True, 0), (False, 1)])
def test_pointwise(rows, columns, how):
    kernel, buffers = pointwise(rows, columns, *how)
    check(kernel, buffers, torch.randn(rows, columns))


def test_nothing_to_do():
    kernel, buffers = pointwise(0, 5)
    check(kernel, buffers, torch.randn(0, 5))
    kernel, buffers = pointwise(5, 0, False)
    check(kernel, buffers, torch.randn(5, 0))


def softmax(rows, columns):
    x, y = buffer("x", rows, columns), buffer("y", rows, columns, kind="output")
    most, total, terms = buffer("most", kind="local"), buffer("total", kind="local"), buffer("terms", columns, kind="local")
    i, j = Var("i", rows), Var("j", columns)
    lx = load(x, at(x, i, j))
    term = op("exp", f32, op("sub", f32, lx, load(most, ZERO)))
    return Kernel("softmax", (i,), 1, False, (
        Stage((j,), frozenset((j,)), (Store("most", ZERO, lx, reduction="max"),)),
        Stage((j,), frozenset((j,)), (Store("terms", index(j), term), Store("total", ZERO, term, reduction="sum"))),
        Stage((j,), NONE, (Store("y", at(y, i, j), op("div", f32, load(terms, index(j)), load(total, ZERO))),))),
        (most, total, terms)), (x, y)


@pytest.mark.parametrize("rows, columns", [(9, 1), (4, 33), (6, 1000), (2, 40000)])
def test_rows_of_several_stages(rows, columns):
    kernel, buffers = softmax(rows, columns)
    check(kernel, buffers, torch.randn(rows, columns) * 5, rtol=1e-5)


@pytest.mark.parametrize("of", ["itself", "more"])
def test_exponents_below_a_maximum(of):
    """Of what is at most the maximum, and only of that, overflow need not be thought of; NaN and infinities are what they were."""
    kernel, buffers = softmax(8, 100)
    if of == "more":
        first, *rest = kernel.stages
        lowered = op("sub", f32, first.stores[0].value, constant(1.0, f32))
        kernel = replace(kernel, stages=(replace(first, stores=(replace(first.stores[0], value=lowered),)), *rest))
    values = torch.randn(8, 100) * 40
    values[1, 3], values[2, 4], values[3, 5], values[4] = -torch.inf, torch.inf, torch.nan, -torch.inf
    values[5, 0], values[5, 1:] = 0.0, torch.linspace(-110, -80, 99)
    text = check(kernel, buffers, values, rtol=1e-5).rendered.sources[0]
    assert ("op_exp_nonpositive(" in text, "op_exp(" in text) == (of == "itself", of == "more")


@pytest.mark.parametrize("change", [False, True])
def test_exponents_below_a_maximum_of_what_was_stored(change):
    kernel, buffers = softmax(6, 100)
    first, second, third = kernel.stages
    doubled, j, k = buffer("doubled", 100, kind="local"), first.inner[0], Var("k", 100)
    twice = op("mul", f32, first.stores[0].value, constant(2.0, f32))
    stages = [replace(first, stores=(Store("doubled", index(j), twice), replace(first.stores[0], value=twice)))]
    if change:
        stages.append(Stage((k,), NONE, (Store("doubled", index(k), op("add", f32, load(doubled, index(k)), constant(1.0, f32))),)))
    term = op("exp", f32, op("sub", f32, load(doubled, index(j)), load(kernel.locals[0], ZERO)))
    stages += [replace(second, stores=tuple(replace(store, value=term) for store in second.stores)), third]
    kernel = replace(kernel, stages=tuple(stages), locals=(*kernel.locals, doubled))
    text = check(kernel, buffers, torch.randn(6, 100) * 20, rtol=1e-5).rendered.sources[0]
    assert ("op_exp_nonpositive(" in text) == (not change)


def test_rows_are_fetched_while_others_are_computed():
    kernel, buffers = softmax(5, 100)
    row = index(kernel.outer[0])
    stage, fetches = fetches_of(kernel)
    assert stage == 0 and [(fetch.buffer, fetch.first, fetch.count, fetch.for_writing) for fetch in fetches] == [
        ("y", row * 100, 100, True), ("x", (row + 1) * 100, 100, False)]
    text = render([cpu.schedule(kernel)]).sources[0]
    assert text.index("reduction(capture_max") < text.index("fetch_for_writing(&") < text.index("reduction(capture_sum")
    for other, _ in (pointwise(5, 100), pointwise(5, 100, vectorized=False)):       # nothing is touched later than something else
        assert not fetches_of(other)[1]


@pytest.mark.parametrize("lane", [False, True])
@pytest.mark.parametrize("name, dtype", [
    *((name, dtype) for name in ("sum", "prod", "max", "min", "argmax", "argmin") for dtype in (f32, f64, i64)),
    *((name, dtype) for name in ("max", "min", "argmax", "argmin") for dtype in (i32, torch.uint8, torch.int8, torch.int16)),
    ("any", boolean), ("all", boolean), ("max", boolean), ("argmax", boolean)])
def test_reductions(name, dtype, lane):
    rows, columns = 37, 203
    x = buffer("x", rows, columns, dtype=dtype)
    values = torch.randn(rows, columns)
    values = values > 2 if dtype == boolean else values.mul(3 if dtype.is_floating_point else 40).to(dtype)
    if dtype not in (torch.uint8, boolean):
        values[7], values[:, 13] = -values[7].abs() - 1, -values[:, 13].abs() - 1
    if name == "prod" and dtype.is_floating_point:
        values = values.abs().clamp(0.9, 1.1)
    if dtype.is_floating_point:
        values[3, 100], values[4, 7], values[4, 9] = torch.nan, torch.inf, torch.nan
        values[5] = -torch.inf
        values[5, 11] = 2.5
    r, c = Var("r", rows), Var("c", columns)
    result = i64 if name.startswith("arg") else dtype
    if lane:
        y = buffer("y", columns, dtype=result, kind="output")
        store = Store("y", index(c), load(x, at(x, r, c)), reduction=name)
        kernel = Kernel("reduction", (c,), 1, True, (Stage((r,), frozenset((r,)), (store,)),))
    else:
        y = buffer("y", rows, dtype=result, kind="output")
        store = Store("y", index(r), load(x, at(x, r, c)), reduction=name)
        kernel = Kernel("reduction", (r,), 1, False, (Stage((c,), frozenset((c,)), (store,)),))
    check(kernel, (x, y), values, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("order", ["reduced outside", "reduced between", "two reduced", "all three"])
def test_reduced_loops_anywhere(order):
    x = buffer("x", 5, 37, 3, 70)
    i, a, b, c = Var("i", 5), Var("a", 37), Var("b", 3), Var("c", 70)
    reduced, kept = {"reduced outside": ((a,), (b, c)), "reduced between": ((b,), (a, c)), "two reduced": ((a, c), (b,)),
                     "all three": ((a, b, c), ())}[order]
    y = buffer("y", 5, *(v.extent for v in kept), kind="output")
    z = buffer("z", 5, *(v.extent for v in kept), kind="output", dtype=i64)
    lx = load(x, at(x, i, a, b, c))
    stores = (Store("y", at(y, i, *kept), lx, reduction="sum"), Store("z", at(z, i, *kept), lx, reduction="argmax"))
    values = torch.randn(5, 37, 3, 70)
    check(Kernel("inner", (i,), 1, False, (Stage((a, b, c), frozenset(reduced), stores),)), (x, y, z), values, atol=1e-4)
    # the same with the last variable outside, in strips
    if c in kept:
        inner = tuple(v for v in (a, b) if v is not c)
        check(Kernel("strips", (i, c), 2, True, (Stage(inner, frozenset(reduced), stores),)), (x, y, z), values, atol=1e-4)


def test_strips_of_several_stages():
    """A layer norm over the first dimension: reductions, local buffers per row, reduction results used by later stages."""
    x, y, mean_out = buffer("x", 40, 3000), buffer("y", 40, 3000, kind="output"), buffer("mean_out", 3000, kind="output")
    total, square, centred = buffer("total", kind="local"), buffer("square", kind="local"), buffer("centred", 40, kind="local")
    r, c = Var("r", 40), Var("c", 3000)
    mean = op("div", f32, load(total, ZERO), constant(40, f32))
    diff = op("sub", f32, load(x, at(x, r, c)), mean)
    scale = op("rsqrt", f32, op("div", f32, load(square, ZERO), constant(40, f32)))
    kernel = Kernel("norm", (c,), 1, True, (
        Stage((r,), frozenset((r,)), (Store("total", ZERO, load(x, at(x, r, c)), reduction="sum"),)),
        Stage((), NONE, (Store("mean_out", index(c), mean),)),
        Stage((r,), frozenset((r,)), (Store("centred", index(r), diff),
                                      Store("square", ZERO, op("mul", f32, diff, diff), reduction="sum"))),
        Stage((r,), NONE, (Store("y", at(y, r, c), op("mul", f32, load(centred, index(r)), scale)),))), (total, square, centred))
    check(kernel, (x, y, mean_out), torch.randn(40, 3000), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lane", [False, True])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", [f32, i64])
def test_scans(name, lane, dtype):
    x = buffer("x", 9, 50, dtype=dtype)
    r, c = Var("r", 9), Var("c", 50)
    y = buffer("y", 9, 50, dtype=i64 if name.startswith("arg") else dtype, kind="output")
    values = torch.randn(9, 50).mul(1 if dtype == f32 else 5).to(dtype)
    if dtype == f32 and name != "prod":
        values[2, 7] = torch.nan
    store = Store("y", at(y, r, c), load(x, at(x, r, c)), reduction=name, scan=True)
    over = Kernel("columns", (c,), 1, True, (Stage((r,), frozenset((r,)), (store,)),)) if lane else \
        Kernel("rows", (r,), 1, False, (Stage((c,), frozenset((c,)), (store,)),))
    check(over, (x, y), values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, f64, boolean, i64, i32, torch.int16, torch.int8, torch.uint8])
def test_dtypes(dtype):
    """Computed in float32 where the dtype is only stored."""
    x, y = buffer("x", 1000, dtype=dtype), buffer("y", 1000, dtype=dtype, kind="output")
    flags = buffer("flags", 1000, dtype=boolean, kind="output")
    i = Var("i", 1000)
    value = load(x, index(i))
    within = value if dtype not in (torch.bfloat16, torch.float16) else op("to", f32, value)
    total = op("add", within.dtype, within, constant(1, within.dtype))
    result = total if total.dtype == dtype else op("to", dtype, total)
    kernel = Kernel("dtypes", (i,), 1, True, (Stage((), NONE, (
        Store("y", index(i), result), Store("flags", index(i), op("gt", boolean, within, constant(0, within.dtype))))),))
    values = torch.randn(1000) * 20
    check(kernel, (x, y, flags), values.to(dtype) if dtype != boolean else values > 0)


@pytest.mark.parametrize("dtype", [f32, f64, i64, i32, torch.int8, torch.uint8, boolean])
def test_constants(dtype):
    numbers = [0, 1] if dtype == boolean else [0, 1, 7]
    if dtype.is_floating_point:
        numbers += [-0.0, 0.1, -1e-45, 1e300, float("inf"), float("-inf"), float("nan"), 3.4028235e38, 123456789.123]
    elif dtype not in (boolean, torch.uint8):
        numbers += [-1, torch.iinfo(dtype).max, torch.iinfo(dtype).min]
    y = buffer("y", len(numbers), dtype=dtype, kind="output")
    i = Var("i", 1)
    kernel = Kernel("constants", (i,), 1, False, (Stage((), NONE, tuple(
        Store("y", index(n), constant(number, dtype)) for n, number in enumerate(numbers))),))
    check(kernel, (y,), rtol=0, atol=0)


@pytest.mark.parametrize("vectorized", [False, True])
def test_masked_loads_and_stores(vectorized):
    """Padding: what lies outside is not read."""
    x, y, z = buffer("x", 6, 20), buffer("y", 6, 30, kind="output"), buffer("z", 6, 20, kind="output")
    i, j = Var("i", 6), Var("j", 30)
    inside = op("and", boolean, op("ge", boolean, position(index(j)), constant(5, i64)),
                op("lt", boolean, position(index(j)), constant(25, i64)))
    padded = load(x, at(x, i, j) - 5, inside)
    stores = (Store("y", at(y, i, j), padded), Store("z", at(z, i, j) - 5, op("neg", f32, padded), mask=inside))
    kernel = Kernel("pad", (i, j), 2, True, (Stage((), NONE, stores),)) if vectorized else \
        Kernel("pad", (i,), 1, False, (Stage((j,), NONE, stores),))
    check(kernel, (x, y, z), torch.randn(6, 20))


def gather(mask=False):
    table, where, y = buffer("table", 11, 40), buffer("where", 25, dtype=i64), buffer("y", 25, 40, kind="output")
    i, j = Var("i", 25), Var("j", 40)
    chosen = load(where, index(i))
    keep = op("ne", boolean, chosen, constant(100, i64)) if mask else None
    value = load(table, at(table, Value(chosen, 11), j), keep)
    return Kernel("gather", (i, j), 2, True, (Stage((), NONE, (Store("y", at(y, i, j), value),)),)), (table, where, y)


def test_gather():
    kernel, buffers = gather()
    check(kernel, buffers, torch.randn(11, 40), torch.randint(0, 11, (25,)))


@pytest.mark.parametrize("wrong", [-1, 11, 1 << 40])
def test_an_index_out_of_range_is_reported_and_not_followed(wrong):
    kernel, buffers = gather()
    where = torch.randint(0, 11, (25,))
    where[20] = wrong
    with pytest.raises(IndexError):
        check(kernel, buffers, torch.randn(11, 40), where)
    program = program_of([kernel], buffers)
    library = Library(program, [kernel])
    memory, symbols = memory_of(program, [torch.randn(11, 40), where])
    library.call("gather", memory, symbols, 0, 20 * 40)
    with pytest.raises(IndexError):
        library.call("gather", memory, symbols, 20 * 40, 25 * 40)


def test_where_the_mask_is_false_an_index_may_be_out_of_range():
    kernel, buffers = gather(mask=True)
    where = torch.randint(0, 11, (25,))
    where[3] = 100
    check(kernel, buffers, torch.randn(11, 40), where)


@pytest.mark.parametrize("vectorized", [False, True])
def test_gather_along_the_innermost_loop(vectorized):
    x, where, y = buffer("x", 7, 90), buffer("where", 7, 33, dtype=i32), buffer("y", 7, 33, kind="output")
    i, j = Var("i", 7), Var("j", 33)
    chosen = op("to", i64, load(where, at(where, i, j)))
    stores = (Store("y", at(y, i, j), load(x, at(x, i, Value(chosen, 90)))),)
    kernel = Kernel("gather", (i, j), 1, True, (Stage((), NONE, stores),)) if vectorized else \
        Kernel("gather", (i,), 1, False, (Stage((j,), NONE, stores),))
    check(kernel, (x, where, y), torch.randn(7, 90), torch.randint(0, 90, (7, 33), dtype=i32))


def test_scatter():
    """Sets memory, then adds to it, in places that meet."""
    x, where, y = buffer("x", 50, 8), buffer("where", 50, dtype=i64), buffer("y", 10, 8, kind="output")
    i, j = Var("i", 50), Var("j", 8)
    a, b = Var("a", 10), Var("b", 8)
    clear = Kernel("clear", (a, b), 2, True, (Stage((), NONE, (Store("y", at(y, a, b), constant(0, f32)),)),))
    store = Store("y", at(y, Value(load(where, index(i)), 10), j), load(x, at(x, i, j)), mode="add")
    add = Kernel("add", (j,), 1, True, (Stage((i,), NONE, (store,)),))
    rows = Kernel("rows", (j, i), 0, True, (Stage((), NONE, (store,)),))
    values, places = torch.randn(50, 8), torch.randint(0, 10, (50,))
    expected = torch.zeros(10, 8).index_add_(0, places, values)
    for kernel in (add, rows):
        program = program_of([clear, kernel], (x, where, y))
        library = Library(program, [clear, kernel])
        memory, symbols = memory_of(program, [values, places])
        memory["y"].fill_(torch.nan)
        for name in library.kernels:
            library.run(name, memory, symbols, (0.4,))
        torch.testing.assert_close(memory["y"], expected)


@pytest.mark.parametrize("rows, columns", [(2, 2), (3, 129), (300, 5)])
def test_symbolic_sizes(rows, columns):
    s, t = Symbol("s"), Symbol("t")
    x, y = buffer("x", index(s), index(t)), buffer("y", index(s), index(t), kind="output")
    sums = buffer("sums", index(t), kind="output")
    i, j = Var("i", index(s)), Var("j", index(t))
    lx = load(x, at(x, i, j))
    kept = buffer("kept", index(t), kind="local")
    total = buffer("total", kind="local")
    kernel = Kernel("rows", (i,), 1, False, (
        Stage((j,), frozenset((j,)), (Store("kept", index(j), op("exp", f32, lx)),
                                      Store("total", ZERO, op("exp", f32, lx), reduction="sum"))),
        Stage((j,), NONE, (Store("y", at(y, i, j), op("div", f32, load(kept, index(j)), load(total, ZERO))),))), (kept, total))
    symbols = {s: (0, 0), t: (0, 1)}
    check(kernel, (x, y), torch.randn(rows, columns), symbols=symbols, rtol=1e-5)
    store = Store("sums", index(j), lx, reduction="sum")
    check(Kernel("columns", (j,), 1, True, (Stage((i,), frozenset((i,)), (store,)),)), (x, sums),
          torch.randn(rows, columns), symbols=symbols, rtol=1e-5)
    check(Kernel("points", (i, j), 2, True, (Stage((), NONE, (Store("y", at(y, i, j), op("neg", f32, lx)),)),)), (x, y),
          torch.randn(rows, columns), symbols=symbols)


def test_quotients_and_remainders():
    """Where they could not be made loops of their own."""
    x, y = buffer("x", 100), buffer("y", 10, 100, kind="output")
    i, j = Var("i", 10), Var("j", 100)
    where = (index(j) * 3 + index(i)) % 7 * 14 + (index(j) * 3 + index(i)) // 40
    negative = (index(j) - 50) // 7 + 8
    stores = (Store("y", at(y, i, j), op("sub", f32, load(x, where), load(x, negative))),)
    check(Kernel("points", (i, j), 2, True, (Stage((), NONE, stores),)), (x, y), torch.randn(100))
    check(Kernel("rows", (i,), 1, False, (Stage((j,), NONE, stores),)), (x, y), torch.randn(100))


@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (1, 3, 1, 70)])
@pytest.mark.parametrize("parallel", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("vectorized", [False, True])
def test_collapsed_ranges(shape, parallel, vectorized):
    x, y = buffer("x", *reversed(shape)), buffer("y", *shape, kind="output")
    variables = tuple(Var(f"i{n}", extent) for n, extent in enumerate(shape))
    store = Store("y", at(y, *variables), load(x, at(x, *reversed(variables))))
    check(Kernel("permute", variables, parallel, vectorized, (Stage((), NONE, (store,)),)), (x, y), torch.randn(*reversed(shape)),
          cuts=((), (0.1, 0.11, 0.5, 0.501, 0.99)))


@pytest.mark.parametrize("dtype", [f32, f64, torch.bfloat16, torch.int8, boolean])
@pytest.mark.parametrize("rows, columns, parallel", [(300, 70, 2), (40, 33, 1), (17, 16, 0), (513, 3, 2)])
def test_transposes_in_tiles(rows, columns, parallel, dtype):
    x, w = buffer("x", columns, rows, dtype=dtype), buffer("w", rows, columns, dtype=dtype)
    y, z = buffer("y", rows, columns, dtype=dtype, kind="output"), buffer("z", rows, columns, dtype=dtype, kind="output")
    i, j = Var("i", rows), Var("j", columns)
    stores = (Store("y", at(y, i, j), load(x, at(x, j, i))), Store("z", at(z, i, j), load(w, at(w, i, j))))
    values = torch.randn(columns, rows).mul(50).to(dtype), torch.randn(rows, columns).mul(50).to(dtype)
    library = check(Kernel("transpose", (i, j), parallel, True, (Stage((), NONE, stores),)), (x, w, y, z), *values,
                    cuts=((), (0.1, 0.11, 0.5, 0.501, 0.99)))
    assert library.rendered.sources[0].count("transpose_tile(") == 1


@pytest.mark.parametrize("dtype", [f32, f64, torch.bfloat16])
@pytest.mark.parametrize("rows, columns, parallel", [(300, 80, 2), (300, 70, 2), (40, 33, 1)])
def test_transposes_past_the_cache(rows, columns, parallel, dtype, monkeypatch):
    monkeypatch.setattr(tiles, "CPU", replace(tiles.CPU, streamed=0))
    x, w = buffer("x", columns, rows, dtype=dtype), buffer("w", rows, columns, dtype=dtype)
    y, z = buffer("y", rows, columns, dtype=dtype, kind="output"), buffer("z", rows, columns, dtype=dtype, kind="output")
    i, j = Var("i", rows), Var("j", columns)
    stores = (Store("y", at(y, i, j), load(x, at(x, j, i))), Store("z", at(z, i, j), load(w, at(w, i, j))))
    library = check(Kernel("transpose", (i, j), parallel, True, (Stage((), NONE, stores),)), (x, w, y, z),
                    torch.randn(columns, rows).to(dtype), torch.randn(rows, columns).to(dtype),
                    cuts=((), (0.1, 0.11, 0.5, 0.501, 0.99)))
    assert library.rendered.sources[0].count("stream(") == (0 if dtype == torch.bfloat16 else 2)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [f32, f64, torch.int8, i64])
def test_places_of_extremes_are_found_in_one_block_of_a_long_row(name, dtype):
    x, y = buffer("x", 6, 2048, dtype=dtype), buffer("y", 6, dtype=i64, kind="output")
    i, j = Var("i", 6), Var("j", 2048)
    values = torch.randint(-100, 100, (6, 2048)).to(dtype)      # each of them many times
    values[1:3] = 7
    values[2, 1000] = values[2, 1300] = 8 if name == "argmax" else 6
    if dtype.is_floating_point:
        values[3, 700] = values[3, 1900] = torch.nan
        values[4] = -torch.inf if name == "argmax" else torch.inf
    store = Store("y", index(i), load(x, at(x, i, j)), reduction=name)
    library = check(Kernel("place", (i,), 1, False, (Stage((j,), frozenset((j,)), (store,)),)), (x, y), values)
    assert "= 0; j0 < 4;" in library.rendered.sources[0]


def test_long_strides_in_the_innermost_loop():
    """GCC takes minutes for a vector loop of loads whose distance is a long constant."""
    x, y = buffer("x", 64, 4096), buffer("y", 64, kind="output")
    i, j = Var("i", 64), Var("j", 4096)
    store = Store("y", index(i), load(x, at(x, i, j)), reduction="max")
    check(Kernel("rows", (i,), 1, True, (Stage((j,), frozenset((j,)), (store,)),)), (x, y), torch.randn(64, 4096))


def test_values_of_a_strip_are_computed_once():
    x, scale, y = buffer("x", 20, 100), buffer("scale", 100), buffer("y", 20, 100, kind="output")
    r, c = Var("r", 20), Var("c", 100)
    value = op("mul", f32, load(x, at(x, r, c)), op("add", f32, op("exp", f32, load(scale, index(c))), constant(1, f32)))
    kernel = Kernel("scaled", (c,), 1, True, (Stage((r,), NONE, (Store("y", at(y, r, c), value),)),))
    library = check(kernel, (x, scale, y), torch.randn(20, 100), torch.randn(100))
    before, rows = library.rendered.sources[0].split("for (int64_t j0")
    assert "op_exp" in before and "op_exp" not in rows


def test_in_place():
    """Two buffers in the same memory, at the same index: loads of a point come before its stores."""
    x, w, y, z = buffer("x", 1000), buffer("w", 1000), buffer("y", 1000, kind="output"), buffer("z", 1000, kind="output")
    i = Var("i", 1000)
    lx, lw = load(x, index(i)), load(w, index(i))
    kernel = Kernel("in_place", (i,), 1, True, (Stage((), NONE, (
        Store("y", index(i), op("add", f32, lx, lw)), Store("z", index(i), op("sub", f32, lw, lx)))),))
    program = program_of([kernel], (x, w, y, z))
    library = Library(program, [kernel])
    memory, symbols = memory_of(program, [torch.randn(1000), torch.randn(1000)])
    expected = memory["x"] + memory["w"], memory["w"] - memory["x"]
    memory["y"], memory["z"] = memory["x"], memory["w"]
    library.run("in_place", memory, symbols)
    assert torch.equal(memory["y"], expected[0]) and torch.equal(memory["z"], expected[1])


def test_a_buffer_changed_by_its_own_kernel():
    x = buffer("x", 30, 200)
    scale = buffer("scale", kind="local")
    i, j = Var("i", 30), Var("j", 200)
    lx = load(x, at(x, i, j))
    kernel = Kernel("normalise", (i,), 1, False, (
        Stage((j,), NONE, (Store("x", at(x, i, j), op("abs", f32, lx)),)),
        Stage((j,), frozenset((j,)), (Store("scale", ZERO, lx, reduction="max"),)),
        Stage((j,), NONE, (Store("x", at(x, i, j), op("div", f32, lx, load(scale, ZERO))),)),
        Stage((), NONE, (Store("x", at(x, i, 0), op("neg", f32, load(x, at(x, i, 0)))),))), (scale,))
    check(kernel, (x,), torch.randn(30, 200))


@pytest.mark.parametrize("lane", [False, True])
def test_long_sums_are_accurate(lane):
    """As accurate as eager's, which adds up in a cascade."""
    n = 1 << 22
    x = buffer("x", n)
    y = buffer("y", 2, kind="output")
    i, two = Var("i", n), Var("two", 2)
    store = Store("y", index(two), load(x, index(i)), reduction="sum")
    kernel = Kernel("long", (two,), 1, lane, (Stage((i,), frozenset((i,)), (store,)),))
    values = torch.rand(n)
    program = program_of([kernel], (x, y))
    library = Library(program, [kernel])
    memory, symbols = memory_of(program, [values])
    library.run("long", memory, symbols)
    exact = values.double().sum()
    assert abs(memory["y"][0].double() - exact) <= max(abs(values.sum().double() - exact), 1e-7 * exact)
    assert abs(memory["y"][1].double() - exact) <= 3e-7 * exact


def test_like_kernels_share_a_function():
    kernel, (x, y) = pointwise(5, 9)
    other_x, other_y = buffer("a", 5, 9), buffer("b", 5, 9, kind="output")
    i, j = Var("p", 5), Var("q", 9)
    la = load(other_x, at(other_x, i, j))
    value = op("add", f32, op("exp", f32, la), op("mul", f32, la, constant(0.1, f32)))
    other = Kernel("other", (i, j), 2, True, (Stage((), NONE, (Store("b", at(other_y, i, j), value),)),))
    different, _ = pointwise(5, 10)
    kernels = kernel, other, Kernel("different", different.outer, 2, True, different.stages)
    rendered = render(map(cpu.schedule, kernels))
    assert rendered.symbols["pointwise"] == rendered.symbols["other"] != rendered.symbols["different"]
    assert rendered.buffers == {"pointwise": ("x", "y"), "other": ("a", "b"), "different": ("x", "y")}
    text, = rendered.sources
    assert text.count('extern "C"') == 2 and "// pointwise, other\n//   buffers: x, y\nextern" in text
    assert text.index("kernel0") < text.index("kernel1") and "((" not in text


def test_kernels_that_differ_in_where_they_begin_share_a_function():
    """Steps of an unrolled loop: each reads two rows of one tensor, adds to a row of another, and writes a column of the result."""
    x, z, y = buffer("x", 8, 9), buffer("z", 8, 9), buffer("y", 9, 4, kind="output")
    i = Var("i", 9)

    def step(number: int) -> Kernel:
        rows = op("sub", f32, load(x, at(x, number, i)), load(x, at(x, number + 2, i)))
        stores = Store("z", at(z, number, i), op("add", f32, load(z, at(z, number, i)), rows)), Store("y", at(y, i, number), rows)
        return Kernel(f"step{number}", (i,), 1, True, (Stage((), NONE, stores),))
    kernels = [step(number) for number in range(4)]
    program = program_of(kernels, (x, z, y))
    library = Library(program, kernels)
    assert len({library.rendered.symbols[f"step{number}"] for number in (1, 2, 3)}) == 1
    memory, symbols = memory_of(program, [torch.randn(8, 9), torch.randn(8, 9)])
    rows = memory["x"][:4] - memory["x"][2:6]
    expected = memory["z"].clone()
    expected[:4] += rows
    for kernel in kernels:
        library.run(kernel.name, memory, symbols, (0.4,))
    assert torch.equal(memory["y"], rows.T) and torch.equal(memory["z"], expected)


def test_gathers_from_the_middle_of_a_buffer():
    """What an index is computed from begins elsewhere too."""
    x, n, y = buffer("x", 40), buffer("n", 30, dtype=i64), buffer("y", 50, kind="output")
    i = Var("i", 10)
    where = Value(load(n, index(i) + 20), 10)
    kernel = Kernel("gathered", (i,), 1, True, (Stage((), NONE, (Store("y", index(i) + 5, load(x, index(where) + 30)),)),))
    library = check(kernel, (x, n, y), torch.randn(40), torch.randint(10, (30,)))
    assert {number.constant for number in library.rendered.numbers["gathered"]} == {5, 20, 30}


def test_large_graphs_become_several_units():
    kernels = [softmax(4, 100 + n)[0] for n in range(60)]
    kernels = [Kernel(f"softmax{n}", k.outer, 1, False, k.stages, k.locals) for n, k in enumerate(kernels)]
    sources = render(map(cpu.schedule, kernels)).sources
    sizes = [source.count("\n") for source in sources]
    assert len(sources) > 2 and max(sizes) < 1.3 * min(sizes)
    assert sum(source.count('extern "C"') for source in sources) == 60
    assert render(map(cpu.schedule, kernels)).sources == sources


def packed(kernel: Kernel, buffers, mnemonics: str) -> int:
    """How many packed instructions of a kind the kernel's machine code has."""
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump")
    library = Library(program_of([kernel], buffers), [kernel])
    command = ["objdump", "-d", "--no-show-raw-insn", str(library.binary.path)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return len(re.findall(rf"\b(?:{mnemonics})\s+.*%[xyz]mm", listing))


def test_loops_are_vectorised():
    assert packed(*pointwise(50, 1000), "v?mulps") > 0
    assert packed(*pointwise(50, 1000, False), "v?mulps") > 0
    assert packed(*softmax(50, 1000), "v?maxps|v?cmp[a-z_]*ps") > 0
    assert packed(*softmax(50, 1000), "v?addps") > 0
    assert packed(*softmax(50, 1000), "v?divps") > 0
