"""Fusion: how many kernels and passes come out, what must stay apart, and that the meaning is the same."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from capture.backends.native.evaluate import evaluate
from capture.backends.native.fusion import fuse
from capture.backends.native.index import Index, Size, Symbol, Value, Var, contiguous_strides, index
from capture.backends.native.ir import Buffer, Expr, Extern, Kernel, Nest, Program, Store, View, constant, load, op
from capture.backends.native.loops import fresh, size_of

F32 = torch.float32


class Builder:
    """Writes programs down: every method adds a nest over all points of the result's shape."""

    def __init__(self) -> None:
        self.program = Program()

    def input(self, *sizes: Size, dtype: torch.dtype = F32) -> Buffer:
        buffer = self._buffer(sizes, "input", dtype)
        self.program.inputs.append(buffer.name)
        return buffer

    def map(self, sizes: Sequence[Size], value: Callable[..., Expr], kind: str = "temporary",
            strides: Sequence[Size] | None = None) -> Buffer:
        result = self._buffer(sizes, kind, strides=strides)
        loops = tuple(map(fresh, sizes))
        self._nest(loops, (), Store(result.name, at(result, *loops), value(*loops)))
        return result

    def reduce(self, how: str, sizes: Sequence[Size], over: Sequence[Size], value: Callable[..., Expr], kind: str = "temporary",
               dtype: torch.dtype = F32) -> Buffer:
        result = self._buffer(sizes, kind, dtype)
        loops, reduced = tuple(map(fresh, sizes)), tuple(map(fresh, over))
        self._nest(loops, reduced, Store(result.name, at(result, *loops), value(*loops, *reduced), reduction=how))
        return result

    def assign(self, target: Buffer, value: Callable[..., Expr]) -> None:
        loops = tuple(map(fresh, target.sizes))
        self._nest(loops, (), Store(target.name, at(target, *loops), value(*loops)))

    def call(self, name: str, result_sizes: Sequence[Size], *arguments: Buffer) -> Buffer:
        result = self._buffer(result_sizes, "temporary")
        views = tuple(View(b.name, b.sizes, b.strides) for b in arguments)
        self.program.body.append(Extern(f"call{len(self.program.body)}", name, views, {}, (result.name,)))
        return result

    def returns(self, *buffers: Buffer) -> Program:
        for b in buffers:
            if b.kind == "temporary":
                b = self.program.buffers[b.name] = Buffer(b.name, b.dtype, b.sizes, b.strides, "output")
            self.program.outputs.append(View(b.name, b.sizes, b.strides))
        return self.program

    def _buffer(self, sizes: Sequence[Size], kind: str, dtype: torch.dtype = F32, strides: Sequence[Size] | None = None) -> Buffer:
        buffer = Buffer(f"b{len(self.program.buffers)}", dtype, tuple(sizes), tuple(strides or contiguous_strides(sizes)), kind)
        self.program.buffers[buffer.name] = buffer
        return buffer

    def _nest(self, space: tuple[Var, ...], reduced: tuple[Var, ...], *stores: Store) -> None:
        self.program.body.append(Nest(f"n{len(self.program.body)}", space, reduced, stores))


def at(buffer: Buffer, *indices: Index | Var | int) -> Index:
    total = index(0)
    for position, stride in zip(indices, buffer.strides, strict=True):
        total = total + index(position) * stride
    return total


def of(buffer: Buffer, *indices: Index | Var | int) -> Expr:
    return load(buffer, at(buffer, *indices))


def add(a: Expr, b: Expr) -> Expr:
    return op("add", F32, a, b)


def fused(program: Program, *inputs: Tensor | int) -> list[Kernel | Extern]:
    """The fused body, after checking that both programs do the same to the same inputs."""
    before, after = ([t.clone() if isinstance(t, Tensor) else t for t in inputs] for _ in range(2))
    expected = evaluate(program, before)
    result = fuse(program)
    torch.testing.assert_close(evaluate(result.program, after), expected)
    torch.testing.assert_close(after, before)
    assert not any(isinstance(statement, Nest) for statement in result.program.body)
    return result.program.body


def kernels(body: Sequence[Kernel | Extern]) -> list[Kernel]:
    return [statement for statement in body if isinstance(statement, Kernel)]


def softmax(b: Builder, x: Buffer, rows: Sequence[int], width: int) -> Buffer:
    most = b.reduce("max", rows, [width], lambda *i: of(x, *i))
    power = b.map([*rows, width], lambda *i: op("exp", F32, op("sub", F32, of(x, *i), of(most, *i[:-1]))))
    total = b.reduce("sum", rows, [width], lambda *i: of(power, *i))
    return b.map([*rows, width], lambda *i: op("div", F32, of(power, *i), of(total, *i[:-1])))


def test_softmax_is_one_kernel_of_three_passes() -> None:
    b = Builder()
    body = fused(b.returns(softmax(b, b.input(4, 8, 32), [4, 8], 32)), torch.randn(4, 8, 32))
    kernel, = body
    assert [len(stage.stores) for stage in kernel.stages] == [1, 2, 1]
    assert {local.sizes for local in kernel.locals} == {(), (32,)}
    assert [size_of(v.extent) for v in kernel.outer] == [32], "rows are one loop"


@pytest.mark.parametrize("how", ["max", "argmax"])
def test_reductions_of_contiguous_rows_run_along_them(how: str) -> None:
    b = Builder()
    x = b.input(512, 64)
    dtype = torch.int64 if how == "argmax" else F32
    kernel, = fused(b.returns(b.reduce(how, [512], [64], lambda *i: of(x, *i), dtype=dtype)), torch.randn(512, 64))
    assert not kernel.vectorized


def test_layer_normalisation_is_one_kernel_along_rows() -> None:
    b = Builder()
    x, weight = b.input(64, 128), b.input(128)
    mean = b.reduce("sum", [64], [128], lambda *i: of(x, *i))
    square = b.reduce("sum", [64], [128], lambda i, j: op("mul", F32, *[op("sub", F32, of(x, i, j), of(mean, i))] * 2))
    scale = b.map([64], lambda i: op("rsqrt", F32, of(square, i)))
    y = b.map([64, 128],
              lambda i, j: op("mul", F32, op("mul", F32, op("sub", F32, of(x, i, j), of(mean, i)), of(scale, i)), of(weight, j)))
    kernel, = fused(b.returns(y, scale), torch.randn(64, 128), torch.randn(128))
    assert not kernel.vectorized


def test_a_chain_of_maps_is_one_loop_without_temporaries() -> None:
    b = Builder()
    x, y = b.input(6, 10), b.input(6, 10)
    first = b.map([6, 10], lambda *i: add(of(x, *i), of(y, *i)))
    second = b.map([6, 10], lambda *i: op("mul", F32, of(first, *i), of(first, *i)))
    kernel, = fused(b.returns(b.map([6, 10], lambda *i: add(of(second, *i), of(first, *i)))),
                    torch.randn(6, 10), torch.randn(6, 10))
    assert kernel.vectorized and not kernel.locals
    assert [size_of(v.extent) for v in kernel.outer] == [60]
    assert [len(stage.stores) for stage in kernel.stages] == [1]


def test_a_temporary_that_is_returned_is_stored_as_well() -> None:
    b = Builder()
    x = b.input(50)
    first = b.map([50], lambda i: add(of(x, i), constant(1, F32)))
    kernel, = fused(b.returns(b.map([50], lambda i: op("neg", F32, of(first, i))), first), torch.randn(50))
    assert sorted(store.buffer for store in kernel.stages[0].stores) == ["b1", "b2"]


def test_loops_of_different_factoring_are_matched() -> None:
    b = Builder()
    x = b.input(4, 6, 8)
    first = b.map([4, 48], lambda i, j: op("exp", F32, load(x, at(x, i, index(j) // 8, index(j) % 8))))
    second = b.map([24, 8], lambda i, j: op("neg", F32, load(first, index(i) * 8 + j)))
    third = b.map([4, 6, 4, 2], lambda i, j, k, m: op("abs", F32, load(second, index(i) * 48 + index(j) * 8 + index(k) * 2 + m)))
    kernel, = fused(b.returns(third), torch.randn(4, 6, 8))
    assert [size_of(v.extent) for v in kernel.outer] == [192]


def test_sums_over_leading_dimensions_run_along_the_contiguous_one() -> None:
    b = Builder()
    x = b.input(64, 48)
    kernel, = fused(b.returns(b.reduce("sum", [48], [64], lambda j, i: of(x, i, j))), torch.randn(64, 48))
    assert kernel.vectorized and [size_of(v.extent) for v in kernel.outer] == [48]
    assert len(kernel.stages[0].inner) == 1 and kernel.stages[0].reduced == set(kernel.stages[0].inner)


def test_what_a_sum_over_rows_reads_is_computed_in_its_loop() -> None:
    b = Builder()
    x = b.input(64, 48)
    y = b.map([64, 48], lambda *i: op("exp", F32, of(x, *i)))
    kernel, = fused(b.returns(y, b.reduce("sum", [48], [64], lambda j, i: of(y, i, j))), torch.randn(64, 48))
    assert len(kernel.stages) == 1 and len(kernel.stages[0].stores) == 2


def test_rows_and_columns_of_one_matrix_are_two_kernels() -> None:
    b = Builder()
    x = b.input(64, 48)
    rows = b.reduce("sum", [64], [48], lambda i, j: of(x, i, j))
    columns = b.reduce("sum", [48], [64], lambda j, i: of(x, i, j))
    assert len(kernels(fused(b.returns(rows, columns), torch.randn(64, 48)))) == 2


def test_channels_between_others_are_rows() -> None:
    """Batch normalisation in training: statistics of a channel, then the channel's own elements, in one kernel."""
    b = Builder()
    x = b.input(4, 32, 5, 5)
    total = b.reduce("sum", [32], [4, 5, 5], lambda c, n, h, w: of(x, n, c, h, w))
    kernel, = fused(b.returns(b.map([4, 32, 5, 5], lambda n, c, h, w: op("sub", F32, of(x, n, c, h, w), of(total, c)))),
                    torch.randn(4, 32, 5, 5))
    assert [size_of(v.extent) for v in kernel.outer] == [32] and len(kernel.stages) == 2


def test_a_shifted_read_of_what_was_just_written_stays_apart() -> None:
    b = Builder()
    x = b.input(40)
    y = b.map([40], lambda i: op("exp", F32, of(x, i)))
    flipped = b.map([40], lambda i: load(y, 39 - index(i)))
    assert len(kernels(fused(b.returns(flipped), torch.randn(40)))) == 2


def test_a_gather_of_what_was_just_written_stays_apart() -> None:
    b = Builder()
    x, where = b.input(40), b.input(40, dtype=torch.int64)
    y = b.map([40], lambda i: op("exp", F32, of(x, i)))
    picked = b.map([40], lambda i: load(y, index(Value(of(where, i), 40))))
    assert len(kernels(fused(b.returns(picked), torch.randn(40), torch.randint(0, 40, (40,))))) == 2


def test_transposed_reads_stay_within_the_point() -> None:
    b = Builder()
    x = b.input(16, 24)
    y = b.map([16, 24], lambda *i: op("exp", F32, of(x, *i)))
    z = b.map([24, 16], lambda i, j: of(y, j, i))
    kernel, = fused(b.returns(z), torch.randn(16, 24))
    assert len(kernel.stages) == 1


def test_square_matrix_plus_its_transpose_stays_apart() -> None:
    b = Builder()
    x = b.input(16, 16)
    y = b.map([16, 16], lambda *i: op("exp", F32, of(x, *i)))
    assert len(kernels(fused(b.returns(b.map([16, 16], lambda i, j: add(of(y, i, j), of(y, j, i)))), torch.randn(16, 16)))) == 2


def test_an_operator_in_between_keeps_its_place() -> None:
    b = Builder()
    x = b.input(8, 8)
    y = b.map([8, 8], lambda *i: op("exp", F32, of(x, *i)))
    product = b.call("aten::mm", [8, 8], y, y)
    z = b.map([8, 8], lambda *i: add(of(y, *i), of(product, *i)))
    body = fused(b.returns(z), torch.randn(8, 8))
    assert [type(statement) for statement in body] == [Kernel, Extern, Kernel]


def test_what_is_independent_of_an_operator_moves_past_it() -> None:
    b = Builder()
    x = b.input(8, 8)
    y = b.map([8, 8], lambda *i: op("exp", F32, of(x, *i)))
    product = b.call("aten::mm", [8, 8], x, x)
    z = b.map([8, 8], lambda *i: op("neg", F32, of(y, *i)))
    assert len(kernels(fused(b.returns(z, product), torch.randn(8, 8)))) == 1


def test_a_kernel_stands_where_its_first_member_stood() -> None:
    """So that results of operators which it does not need are not in memory before their time."""
    b = Builder()
    x, w = b.input(8, 8), b.input(8, 8)
    y = b.map([8, 8], lambda *i: op("exp", F32, of(x, *i)))
    product = b.call("aten::mm", [8, 8], w, w)
    z = b.map([8, 8], lambda *i: op("neg", F32, of(y, *i)))
    body = fused(b.returns(z, product), torch.randn(8, 8), torch.randn(8, 8))
    assert [type(statement) for statement in body] == [Kernel, Extern]


def test_an_input_is_overwritten_after_its_last_read() -> None:
    b = Builder()
    x = b.input(40)
    doubled = b.map([40], lambda i: add(of(x, i), of(x, i)))
    flipped = b.map([40], lambda i: load(x, 39 - index(i)))
    b.assign(x, lambda i: op("exp", F32, of(x, i)))
    after = b.map([40], lambda i: op("neg", F32, of(x, i)))
    body = fused(b.returns(doubled, flipped, after), torch.randn(40))
    assert len(kernels(body)) == 2, "what reads it elsewhere runs before the kernel that writes it"


def test_large_sums_are_cut_into_parts() -> None:
    b = Builder()
    x = b.input(1 << 16)
    first, last = fused(b.returns(b.reduce("sum", [], [1 << 16], lambda i: of(x, i))), torch.randn(1 << 16))
    assert [size_of(v.extent) for v in first.outer] == [64] and not last.outer


def test_dead_results_are_dropped() -> None:
    b = Builder()
    x = b.input(8)
    b.map([8], lambda i: op("exp", F32, of(x, i)))
    assert len(fused(b.returns(b.map([8], lambda i: op("neg", F32, of(x, i)))), torch.randn(8))) == 1


@pytest.mark.parametrize("how", ["argmax", "argmin"])
def test_positions_of_extremes_are_fused_with_maps(how: str) -> None:
    b = Builder()
    x = b.input(32, 4, 6)
    y = b.map([32, 24], lambda i, j: op("neg", F32, load(x, index(i) * 24 + j)))
    place = b.reduce(how, [32], [24], lambda i, j: of(y, i, j), dtype=torch.int64)
    assert len(kernels(fused(b.returns(place), torch.randn(32, 4, 6)))) == 1


def test_symbolic_sizes() -> None:
    b = Builder()
    n = index(Symbol("s0"))
    x = b.input(n, 16)
    b.program.symbols[Symbol("s0")] = (0, 0)
    y = b.map([n, 16], lambda *i: op("exp", F32, of(x, *i)))
    total = b.reduce("sum", [n], [16], lambda i, j: of(y, i, j))
    kernel, = fused(b.returns(b.map([n, 16], lambda i, j: op("div", F32, of(y, i, j), of(total, i)))), torch.randn(5, 16))
    assert len(kernel.stages) == 2


def test_loops_of_the_same_name_are_not_the_same_loop() -> None:
    b = Builder()
    x, y, i = b.input(32), b.input(32, 32), Var("i", 32)
    first, second = b._buffer([32], "temporary"), b._buffer([32], "temporary")
    b._nest((i,), (), Store(first.name, at(first, i), op("exp", F32, of(x, i))))
    b._nest((i,), (), Store(second.name, at(second, i), add(load(first, 31 - index(i)), of(y, i, 0))))
    assert len(kernels(fused(b.returns(second), torch.randn(32), torch.randn(32, 32)))) == 2


def test_every_decision_has_its_reason() -> None:
    b = Builder()
    x = b.input(40)
    y = b.map([40], lambda i: op("exp", F32, of(x, i)))
    result = fuse(b.returns(b.map([40], lambda i: load(y, 39 - index(i)))))
    assert any("apart" in decision for decision in result.decisions)
