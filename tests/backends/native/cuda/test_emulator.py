"""Kernels whose threads wait for each other: every barrier matters, and the emulator tells what a device would not."""
from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from capture.backends.native.evaluate import evaluate
from capture.backends.native.index import ZERO, Var, index
from capture.backends.native.ir import Kernel, Stage, Store, load, op
from capture.backends.native.render import CUDA_ON_CPU, render
from capture.backends.native.schedule import cuda
from capture.backends.native.toolchain import INCLUDE, find_compiler
from tests.backends.native.render.kernels import ORDERS, at, buffer, f32, memory_of, program_of

NONE: frozenset = frozenset()
HEADER = '#include "cuda_kernel.h"\n'
ROWS = 40


def normalised(columns: int):
    """Rows, backward, less their sums, which are in memory: what one thread stores all read, and rows lie in shared memory."""
    x, y, sums = buffer("x", ROWS, columns), buffer("y", ROWS, columns, kind="output"), buffer("sums", ROWS, kind="output")
    kept = buffer("kept", columns, kind="local")
    i, j = Var("i", ROWS), Var("j", columns)
    lx = load(x, at(x, i, j))
    backward = load(kept, index(columns - 1) - index(j))
    kernel = Kernel("normalised", (i,), 1, False, (
        Stage((j,), frozenset((j,)), (Store("sums", index(i), lx, reduction="sum"), Store("kept", index(j), op("neg", f32, lx)))),
        Stage((j,), NONE, (Store("y", at(y, i, j), op("sub", f32, backward, load(sums, index(i)))),))), (kept,))
    return program_of([kernel], (x, y, sums))


def maxima(columns: int):
    """Two reductions of a row, one after the other, which use the same shared memory."""
    x, y, most = buffer("x", ROWS, columns), buffer("y", ROWS, kind="output"), buffer("most", kind="local")
    i, j = Var("i", ROWS), Var("j", columns)
    lx = load(x, at(x, i, j))
    apart = op("abs", f32, op("sub", f32, lx, load(most, ZERO)))
    kernel = Kernel("maxima", (i,), 1, False, (
        Stage((j,), frozenset((j,)), (Store("most", ZERO, lx, reduction="max"),)),
        Stage((j,), frozenset((j,)), (Store("y", index(i), apart, reduction="max"),))), (most,))
    return program_of([kernel], (x, y))


def agrees(text: str, program, buffers: tuple[str, ...], symbol: str, threads: int, folder: Path) -> bool:
    """Whether one block that does all rows has the right results in every order of threads."""
    path = folder / f"{abs(hash(text))}.so"
    path.write_bytes(find_compiler().compile([text]))
    run = ctypes.CDLL(str(path))[symbol]
    values = torch.randn(program.buffers["x"].sizes)
    expected = evaluate(program, [values.clone()])
    for order in ORDERS:
        os.environ["CAPTURE_EMULATED_ORDER"] = order
        memory, _ = memory_of(program, [values])
        pointers = [ctypes.c_void_p(memory[name].data_ptr()) for name in buffers]
        run(1, threads, (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(pointer) for pointer in pointers)))
        found = [memory[output.buffer] for output in program.outputs]
        if not all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(found, expected)):
            return False
    return True


BETWEEN_STAGES, IN_REDUCTIONS = r"group_sync<\d+>\(\);", r"__syncthreads\(\); (?=\\\n)"


@pytest.mark.parametrize("make, columns, barrier", [
    (normalised, 50, BETWEEN_STAGES), (normalised, 1000, BETWEEN_STAGES), (normalised, 7000, BETWEEN_STAGES),
    (maxima, 7000, IN_REDUCTIONS)])
def test_every_barrier_matters(make, columns, barrier, tmp_path, monkeypatch):
    """Those between stages, at the end of a row, and within reductions by more than a warp."""
    program = cuda.prepared(make(columns))
    kernel, = program.body
    function = cuda.schedule(kernel, unaligned=())
    rendered = render([function], CUDA_ON_CPU)
    monkeypatch.setenv("CAPTURE_EMULATED_ORDER", "0")
    symbol = f"{rendered.symbols[kernel.name]}__emulated"
    text = rendered.sources[0].replace(HEADER, (INCLUDE / "cuda_kernel.h").read_text().replace("#pragma once\n", ""))
    assert agrees(text, program, rendered.buffers[kernel.name], symbol, function.launch.threads, tmp_path)
    found = list(re.finditer(barrier, text))
    assert len(found) == 2
    for one in found:
        without = text[:one.start()] + text[one.end():]
        assert not agrees(without, program, rendered.buffers[kernel.name], symbol, function.launch.threads, tmp_path), \
            text[one.start() - 200:one.end()]


UNEQUAL = """
#include "cuda_on_cpu.h"
#include "cuda_kernel.h"
extern "C" __global__ void ends(float* x) { if (threadIdx.x < 40) __syncthreads(); }
extern "C" __global__ void unnamed(float* x) { x[threadIdx.x] = __shfl_xor_sync(1u, x[threadIdx.x], 1); }
extern "C" __global__ void apart(float* x) { if (threadIdx.x < 32) __syncthreads(); else __syncwarp(0xffffffffu); __syncwarp(3u); }
int main(int, char** given) {
  static float x[64];
  float* pointer = x;
  void* parameters[] = {&pointer};
  const auto kernel = given[1][0] == 'e' ? ends : given[1][0] == 'u' ? unnamed : apart;
  emulator::launch(kernel, true, 1, 64, parameters);
}
"""


@pytest.mark.parametrize("kernel, message", [
    ("ends", "threads wait for others that have ended"), ("unnamed", "does not name it"),
    ("apart", "a lane takes part in a warp operation that does not name it")])
def test_threads_that_do_not_meet(kernel, message, tmp_path):
    (tmp_path / "kernels.cpp").write_text(UNEQUAL)
    subprocess.run([*find_compiler().command, "-std=c++17", "-O1", f"-I{INCLUDE}", "kernels.cpp", "-o", "kernels"], cwd=tmp_path,
                   check=True)
    done = subprocess.run([tmp_path / "kernels", kernel], capture_output=True, text=True, check=False)
    assert done.returncode and message in done.stderr
