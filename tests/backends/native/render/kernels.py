"""Kernels written by hand, compiled and run; used by the tests of the renderer.

Of what a small kernel takes to compile, most is the compiler's start and what all kernels include. So those that the tests of a
file check first are compiled in few libraries, before the first test: see `compile_together`.
"""
from __future__ import annotations

import ctypes
import inspect
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from capture.backends.native.evaluate import evaluate
from capture.backends.native.index import ERRORS, Index, Size, Symbol, Value, Var, contiguous_strides, index
from capture.backends.native.ir import Buffer, Kernel, Program, View
from capture.backends.native.render import CPU, INVALID, Form, Rendered, render
from capture.backends.native.schedule import cpu, cuda
from capture.backends.native.toolchain import find_compiler
from capture.errors import ToolchainError

TARGET = CPU        # what kernels are rendered for; a test of another one sets it
ORDERS = ("0", "1", "7")        # in which the emulated threads of devices run: forward, backward, and at random
f32, f64, i64, i32, boolean = torch.float32, torch.float64, torch.int64, torch.int32, torch.bool


def buffer(name: str, *sizes: Size, dtype: torch.dtype = f32, kind: str = "input", strides: Sequence[Size] | None = None) -> Buffer:
    return Buffer(name, dtype, sizes, tuple(strides) if strides is not None else contiguous_strides(sizes), kind)


def at(target: Buffer, *where: Size | Var | Value) -> Index:
    """The place of an element in a buffer."""
    return sum((index(i) * stride for i, stride in zip(where, target.strides)), index(0))


def program_of(kernels: Sequence[Kernel], buffers: Iterable[Buffer],
               symbols: dict[Symbol, tuple[int, int | None]] | None = None) -> Program:
    """All inputs in, and everything that the kernels write out."""
    table = {one.name: one for one in buffers}
    written = {store.buffer for kernel in kernels for stage in kernel.stages for store in stage.stores}
    outputs = [View(name, one.sizes, one.strides) for name, one in table.items() if name in written and one.kind != "local"]
    return Program({n: b for n, b in table.items() if b.kind != "local"}, [n for n, b in table.items() if b.kind == "input"],
                   outputs, dict(symbols or {}), list(kernels))


class Binary:
    """A shared library of C++."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name) / "kernels.so"
        self.path.write_bytes(find_compiler().compile(sources))
        self.functions = ctypes.CDLL(str(self.path))


class Noted(Exception):
    """Leaves a test whose kernel is only to be noted."""


UNITS = 40      # that are compiled together: several libraries, so that one does not take the processor for long
_noted: dict[tuple[str, ...], None] | None = None           # while kernels are noted: their sources
_together: dict[tuple[str, ...], tuple[Binary, str]] = {}   # by sources: their library, and what symbols begin with in it


def compile_together(request: pytest.FixtureRequest) -> None:
    """Compiles what the tests of a file check first, as far as those need no fixtures: each is run up to there, which takes little.
    What does not compile is left to its test."""
    global _noted
    _noted = {}
    try:
        for item in request.session.items:
            if item.module is request.module:
                arguments = item.callspec.params if hasattr(item, "callspec") else {}
                if arguments.keys() == inspect.signature(item.obj).parameters.keys():
                    with suppress(Exception, pytest.skip.Exception):
                        item.obj(**arguments)
        units = [sources for sources in _noted if len(sources) == 1]
    finally:
        _noted = None
    for first in range(0, len(units), UNITS):
        prefixes = {sources: f"unit{number}_" for number, sources in enumerate(units[first:first + UNITS])}
        texts = [re.sub(r"\b(?=kernel\d+_)", prefix, source) for (source,), prefix in prefixes.items()]
        with suppress(ToolchainError):
            binary = Binary(["\n".join(texts)])
            _together.update((sources, (binary, prefix)) for sources, prefix in prefixes.items())


class Library:
    """Rendered kernels, compiled and loaded. shared: maybe with those of other tests."""

    def __init__(self, program: Program, kernels: Sequence[Kernel], shared: bool = False) -> None:
        if TARGET is not CPU:
            program = cuda.prepared(replace(program, body=list(kernels)))
            kernels = program.body
        self.program = program
        self.kernels = {kernel.name: kernel for kernel in kernels}
        self.rendered: Rendered = render(map(cpu.schedule if TARGET is CPU else cuda.schedule, kernels), TARGET)
        if shared and _noted is not None:
            _noted[tuple(self.rendered.sources)] = None
            raise Noted
        found = _together.get(tuple(self.rendered.sources)) if shared else None
        self.binary, self._prefix = found or (Binary(self.rendered.sources), "")
        self.wide = False       # whether a kernel runs in its wide form, where it has one

    def call(self, name: str, memory: dict[str, torch.Tensor], symbols: dict[Symbol, int], begin: int, end: int) -> None:
        """Runs a kernel on a part of its range. Raises what it says."""
        symbol, launch = self.rendered.symbols[name], None
        if forms := self.rendered.forms.get(name):
            form = next(form for form in forms if self._suits(form, symbols))
            assert all(memory[b].data_ptr() % 16 == 0 for b in form.aligned)
            symbol, launch = form.symbol, form.launch
        numbers = [value(size, symbols) for size in self.rendered.numbers[name]]
        invalid = ctypes.c_uint8(0)
        pointers = [ctypes.addressof(invalid) if b == INVALID else memory[b].data_ptr() for b in self.rendered.buffers[name]]
        if launch is not None:
            buffers = [pointer for pointer, b in zip(pointers, self.rendered.buffers[name], strict=True) if b != INVALID]
            values = [*map(ctypes.c_void_p, buffers), *map(ctypes.c_int64, numbers), ctypes.c_void_p(ctypes.addressof(invalid))]
            parameters = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            self._function(f"{symbol}__emulated")(value(launch.blocks, symbols), launch.threads, parameters)
        else:
            self._function(symbol)((ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(numbers))(*numbers),
                                   ctypes.c_int64(begin), ctypes.c_int64(end))
        if invalid:
            raise ERRORS[invalid.value.bit_length() - 1](name)

    def _function(self, symbol: str) -> ctypes._CFuncPtr:
        return self.binary.functions[self._prefix + symbol]

    def _suits(self, form: Form, symbols: dict[Symbol, int]) -> bool:
        if form.aligned and not self.wide:
            return False
        return all(value(size, symbols) % width == 0 for size, width in form.divisible)

    def run(self, name: str, memory: dict[str, torch.Tensor], symbols: dict[Symbol, int], cuts: Sequence[float] = ()) -> None:
        """Runs a kernel in parts, cut at these fractions of its range."""
        total = 1
        kernel = self.kernels[name]
        if name in self.rendered.forms:
            return self.call(name, memory, symbols, 0, 1)
        for variable in kernel.outer[:kernel.parallel]:
            total *= value(variable.extent, symbols)
        ends = [0, *(int(total * cut) for cut in cuts), total]
        for begin, end in zip(ends, ends[1:]):
            self.call(name, memory, symbols, begin, end)


def value(size: Size, symbols: dict[Symbol, int]) -> int:
    found = index(size).substitute(lambda atom: symbols.get(atom) if isinstance(atom, Symbol) else None).constant
    assert found is not None
    return found


def memory_of(program: Program, inputs: Sequence[torch.Tensor | int]) -> tuple[dict[str, torch.Tensor], dict[Symbol, int]]:
    """Copies of the inputs, and zeros for all else."""
    symbols = {}
    for symbol, (position, dimension) in program.symbols.items():
        symbols[symbol] = inputs[position] if dimension is None else inputs[position].size(dimension)
    memory = {name: tensor.clone() for name, tensor in zip(program.inputs, inputs) if isinstance(name, str)}
    for name, one in program.buffers.items():
        if name not in memory:
            sizes = [value(size, symbols) for size in one.sizes]
            memory[name] = torch.zeros(sizes, dtype=one.dtype).as_strided(sizes, [value(s, symbols) for s in one.strides])
    return memory, symbols


def check(kernel: Kernel, buffers: Sequence[Buffer], *inputs: torch.Tensor,
          symbols: dict[Symbol, tuple[int, int | None]] | None = None,
          cuts: Sequence[Sequence[float]] = ((), (0.3, 0.31, 0.77)), rtol: float = 2e-6, atol: float = 1e-6) -> Library:
    """A kernel does what `evaluate` says, with the same bits however its range is cut, or its threads are ordered, and in
    both of its forms."""
    program = program_of([kernel], buffers, symbols)
    library = Library(program, [kernel], shared=True)
    expected = evaluate(program, [tensor.clone() for tensor in inputs])
    program = library.program
    written = [output.buffer for output in program.outputs]
    first = None
    for way in cuts if TARGET is CPU else ORDERS:
        memory, sizes = memory_of(program, inputs)
        if TARGET is CPU:
            library.run(kernel.name, memory, sizes, way)
        else:
            os.environ["CAPTURE_EMULATED_ORDER"] = way
            library.wide = not library.wide
            library.run(kernel.name, memory, sizes)
        found = [memory[name] for name in written]
        for name, a, b in zip(written, found, expected):
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True,
                                       msg=lambda m, n=name: f"{n}: {m}\n{library.rendered.sources[0]}")
        first = first or found
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, found)), library.rendered.sources[0]
    return library
