"""Pointwise kernels that read across what they write: tiles in shared memory, run by the emulator."""
from __future__ import annotations

import pytest
import torch

from capture.backends.native.index import Symbol, Var, index
from capture.backends.native.ir import Kernel, Stage, Store, load, op
from capture.backends.native.render import CUDA_ON_CPU
from capture.backends.native.schedule import cuda
from capture.backends.native.schedule.transposes import crosswise_loads
from tests.backends.native.render import kernels
from tests.backends.native.render.kernels import at, buffer, f32

pytestmark = pytest.mark.usefixtures("on_emulated_device")
NONE: frozenset = frozenset()


def transposed(rows: int, columns: int, dtype: torch.dtype = f32) -> tuple[Kernel, tuple]:
    """y[i, j] = x[j, i] + z[i, j]."""
    x, z = buffer("x", columns, rows, dtype=dtype), buffer("z", rows, columns, dtype=dtype)
    y = buffer("y", rows, columns, dtype=dtype, kind="output")
    i, j = Var("i", rows), Var("j", columns)
    value = op("add", dtype, load(x, at(x, j, i)), load(z, at(z, i, j)))
    return Kernel("transposed", (i, j), 1, True, (Stage((), NONE, (Store("y", at(y, i, j), value),)),)), (x, z, y)


@pytest.mark.parametrize("order", ["0", "3"])
@pytest.mark.parametrize("rows, columns", [(32, 32), (16, 70), (100, 33), (65, 129)])
def test_tiles(rows, columns, order, monkeypatch):
    monkeypatch.setenv("CAPTURE_EMULATED_ORDER", order)
    kernel, buffers = transposed(rows, columns)
    assert crosswise_loads(kernel) is not None
    kernels.check(kernel, buffers, torch.randn(columns, rows), torch.randn(rows, columns))


def test_what_has_no_tiles():
    assert crosswise_loads(transposed(8, 100)[0]) is None           # too short
    kernel, _ = transposed(64, 64)
    i, j = kernel.outer
    x, y = buffer("x", 64, 64), buffer("y", 64, 64, kind="output")
    straight = Store("y", at(y, i, j), load(x, at(x, i, j)))
    assert crosswise_loads(Kernel("copy", (i, j), 1, True, (Stage((), NONE, (straight,)),))) is None
    in_place = Store("x", at(x, i, j), load(x, at(x, j, i)))
    assert crosswise_loads(Kernel("in_place", (i, j), 1, True, (Stage((), NONE, (in_place,)),))) is None


def test_both_barriers_are_there():
    kernel, _ = transposed(100, 70)
    text = kernels.render([cuda.schedule(kernel)], CUDA_ON_CPU).sources[0]
    assert text.count("group_sync<256>();") == 2 and "__shared__ float tile0[32][32 + 1];" in text


def test_batches_and_sizes_that_vary():
    size = Symbol("s", 2)
    b, i, j = Var("b", 3), Var("i", size), Var("j", 40)
    x = buffer("x", 3, 40, index(size))
    y = buffer("y", 3, index(size), 40, kind="output")
    store = Store("y", at(y, b, i, j), op("neg", f32, load(x, at(x, b, j, i))))
    kernel = Kernel("batched", (b, i, j), 1, True, (Stage((), NONE, (store,)),))
    assert crosswise_loads(kernel) is not None
    for rows in (2, 33, 70):
        kernels.check(kernel, (x, y), torch.randn(3, 40, rows), symbols={size: (0, 2)})
