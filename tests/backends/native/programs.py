"""Programs and kernels written by hand; used by the tests of memory planning, plans and the executor."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from capture import _C
from capture.backends.native.index import Index, Size, Symbol, Value, Var, contiguous_strides, index
from capture.backends.native.ir import Buffer, Extern, Kernel, Program, Stage, Store, View, constant, load, op
from capture.backends.native.memory import plan_layout
from capture.backends.native.plan import Plan, make_plan
from capture.backends.native.render import INVALID, Rendered
from capture.backends.native.toolchain import find_compiler

f32, i64 = torch.float32, torch.int64

# What the kernels that `doubling` and `gathering` describe do, for each dtype.
SOURCE = """
#include <stdint.h>
#define DOUBLING(NAME, TYPE) \
  extern "C" void NAME(void* const* buffers, const int64_t* numbers, int64_t begin, int64_t end) { \
    const TYPE* in = (const TYPE*)buffers[0]; TYPE* out = (TYPE*)buffers[1]; \
    for (int64_t i = begin; i < end; i++) out[i] = in[i] + in[i]; }
DOUBLING(double_float32, float)
DOUBLING(double_float64, double)
DOUBLING(double_uint8, uint8_t)
DOUBLING(double_int8, int8_t)
DOUBLING(double_int16, int16_t)
DOUBLING(double_int32, int32_t)
DOUBLING(double_int64, int64_t)
DOUBLING(double_bool, bool)
extern "C" void gather(void* const* buffers, const int64_t* numbers, int64_t begin, int64_t end) {
  const float* table = (const float*)buffers[0]; const int64_t* where = (const int64_t*)buffers[1]; float* out = (float*)buffers[2];
  unsigned char invalid = 0;
  for (int64_t i = begin; i < end; i++) {
    bool valid = (uint64_t)where[i] < (uint64_t)numbers[0];
    invalid |= !valid;
    out[i] = valid ? table[where[i]] : 0.0f;
  }
  if (invalid) *(unsigned char*)buffers[3] |= invalid;
}
extern "C" void count(void* const* buffers, const int64_t* numbers, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++) ((int64_t*)buffers[0])[i] = begin;
}
"""
N = 1000            # elements of a vector


def compile_library(folder: Path, source: str = SOURCE) -> Path:
    """The shared library of a source."""
    path = folder / "kernels.so"
    path.write_bytes(find_compiler().compile([source]))
    return path


def buffer(name: str, *sizes: Size, dtype: torch.dtype = f32, kind: str = "temporary",
           strides: Sequence[Size] | None = None) -> Buffer:
    return Buffer(name, dtype, sizes, tuple(contiguous_strides(sizes) if strides is None else strides), kind)


def whole(target: Buffer) -> View:
    return View(target.name, target.sizes, target.strides)


def doubling(name: str, given: Buffer, result: Buffer, extent: Size) -> Kernel:
    """result[i] = given[i] + given[i]"""
    i = Var(f"i_{name}", extent)
    value = load(given, index(i))
    store = Store(result.name, index(i), op("add", given.dtype, value, value))
    return Kernel(name, (i,), 1, False, (Stage((), frozenset(), (store,)),))


def gathering(name: str, table: Buffer, where: Buffer, result: Buffer, extent: Size) -> Kernel:
    """result[i] = table[where[i]], with a check that it lies within the table's first dimension"""
    i = Var(f"i_{name}", extent)
    place = index(Value(load(where, index(i)), table.sizes[0]))
    return Kernel(name, (i,), 1, False, (Stage((), frozenset(), (Store(result.name, index(i), load(table, place)),)),))


def counting(name: str, result: Buffer, extent: Size) -> Kernel:
    """result[i] = the first point of the range that a thread was given; as IR: 0"""
    i = Var(f"i_{name}", extent)
    store = Store(result.name, index(i), constant(0, i64))
    return Kernel(name, (i,), 1, False, (Stage((), frozenset(), (store,)),))


def extern(name: str, op_: str, args: Sequence[Any], *results: Buffer | None, kwargs: dict[str, Any] | None = None,
           mutates: Sequence[str] = ()) -> Extern:
    """A call that allocates its results."""
    names = tuple(None if result is None else result.name for result in results)
    return Extern(name, op_, tuple(args), kwargs or {}, names, False, tuple(mutates))


def extern_out(name: str, op_: str, args: Sequence[Any], result: Buffer, **kwargs: Any) -> Extern:
    """A call that writes to `result`."""
    return Extern(name, op_, tuple(args), {**kwargs, "out": whole(result)}, (result.name,), True)


def program(buffers: Sequence[Buffer], body: Sequence[Kernel | Extern], outputs: Sequence[View | Size | None],
            symbols: dict[Symbol, tuple[int, int | None]] | None = None, inputs: Sequence[str | Symbol] | None = None,
            constants: dict[str, torch.Tensor] | None = None) -> Program:
    """Inputs in the order of the buffers, if not given."""
    names = [b.name for b in buffers if b.kind == "input"] if inputs is None else list(inputs)
    return Program({b.name: b for b in buffers}, names, list(outputs), dict(symbols or {}), list(body), dict(constants or {}))


def rendered(source: Program) -> Rendered:
    """How the functions of `SOURCE` are called for the kernels of a program."""
    symbols, buffers, numbers = {}, {}, {}
    for kernel in (statement for statement in source.body if isinstance(statement, Kernel)):
        (store,) = kernel.stages[0].stores
        value = store.value
        numbers[kernel.name] = ()
        if hasattr(value, "args"):
            (given, _) = value.args
            symbols[kernel.name] = f"double_{str(value.dtype).removeprefix('torch.')}"
            buffers[kernel.name] = (given.buffer, store.buffer)
        elif hasattr(value, "index"):
            ((atom,),) = value.index.terms
            symbols[kernel.name] = "gather"
            buffers[kernel.name] = (value.buffer, atom.expr.buffer, store.buffer, INVALID)
            numbers[kernel.name] = (Index(index(atom.extent).terms),)
        else:
            symbols[kernel.name] = "count"
            buffers[kernel.name] = (store.buffer,)
    return Rendered((), symbols, buffers, numbers)


def plan_of(source: Program) -> Plan:
    return make_plan(source, rendered(source), plan_layout(source))


def executor_of(source: Program, library: Path | None) -> _C.Executor:
    return _C.Executor(plan_of(source), library, list(source.constants.values()))


def chain(length: int = 4, size: int = N) -> Program:
    """Doubles its input `length` times."""
    names = [buffer("x", size, kind="input"), *(buffer(f"t{i}", size) for i in range(length - 1)), buffer("y", size, kind="output")]
    body = [doubling(f"k{i}", names[i], names[i + 1], size) for i in range(length)]
    return program(names, body, [whole(names[-1])])
