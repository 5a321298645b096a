"""Rows that are too long for registers: what a later stage needs is computed again, not written to memory and read."""
from __future__ import annotations

import pytest
import torch

from capture.backends.native.index import ZERO, Var, index
from capture.backends.native.ir import Kernel, Stage, Store, load, op
from capture.backends.native.rewrite import stores_of
from capture.backends.native.schedule.recomputed import with_recomputed
from tests.backends.native.render import kernels
from tests.backends.native.render.kernels import at, buffer, f32

pytestmark = pytest.mark.usefixtures("on_emulated_device")
NONE: frozenset = frozenset()
COLUMNS = 40000


def softmax(columns: int, changed: bool = False) -> tuple[Kernel, tuple]:
    """Exponentials over their sum, in a buffer of their own; `changed`: x is written over before they are read."""
    x, y = buffer("x", 3, columns), buffer("x" if changed else "y", 3, columns, kind="input" if changed else "output")
    most, total = buffer("most", kind="local"), buffer("total", dtype=torch.float64, kind="local")
    kept = buffer("kept", columns, kind="local")
    i, j = Var("i", 3), Var("j", columns)
    here = load(x, at(x, i, j))
    power = op("exp", f32, op("sub", f32, here, load(most, ZERO)))
    stages = [Stage((j,), frozenset((j,)), (Store("most", ZERO, here, reduction="max"),)),
              Stage((j,), frozenset((j,)), (Store("kept", index(j), power), Store("total", ZERO, power, reduction="total")))]
    if changed:
        stages.append(Stage((j,), NONE, (Store("x", at(x, i, j), op("neg", f32, here)),)))
    quotient = op("div", f32, load(kept, index(j)), op("to", f32, load(total, ZERO)))
    stages.append(Stage((j,), NONE, (Store(y.name, at(y, i, j), quotient),)))
    return Kernel("softmax", (i,), 1, False, tuple(stages), (most, total, kept)), (x,) if changed else (x, y)


@pytest.mark.parametrize("changed", [False, True])
def test_softmax(changed):
    kernel, buffers = softmax(COLUMNS, changed)
    library = kernels.check(kernel, buffers, torch.randn(3, COLUMNS) * 5, rtol=1e-5)
    prepared, = library.program.body
    written = {store.buffer for store in stores_of(prepared)}
    assert ("softmax_rows0" in library.program.buffers) == changed and ("softmax_rows0" in written) == changed


def test_what_fits_stays_in_registers():
    kernel, buffers = softmax(2000)
    library = kernels.check(kernel, buffers, torch.randn(3, 2000), rtol=1e-5)
    assert "kept" in {local.name for local in library.program.body[0].locals}


def test_what_is_computed_again():
    kernel, _ = softmax(COLUMNS)
    again = with_recomputed(kernel, ["kept"])
    assert [local.name for local in again.locals] == ["most", "total"] and len(again.stages) == 3
    assert with_recomputed(kernel, []) is kernel
    for wrong in (("most",), ("total",)):           # reductions
        assert with_recomputed(kernel, wrong) == kernel or [local.name for local in with_recomputed(kernel, wrong).locals] == [
            "most", "total", "kept"]
    i, = kernel.outer
    j = Var("j", COLUMNS)
    sources = [buffer(name, 3, COLUMNS) for name in ("a", "b", "c")]
    loads = [load(one, at(one, i, j)) for one in sources]
    value = op("add", f32, op("add", f32, *loads[:2]), loads[2])
    costly = Kernel("costly", (i,), 1, False, (
        Stage((j,), frozenset((j,)), (Store("kept", index(j), value), Store("total", ZERO, value, reduction="total"))),
        Stage((j,), NONE, (Store("y", at(sources[0], i, j), load(buffer("kept", COLUMNS), index(j))),))), kernel.locals[1:])
    assert "kept" in {local.name for local in with_recomputed(costly, ["kept"]).locals}       # more would be read
