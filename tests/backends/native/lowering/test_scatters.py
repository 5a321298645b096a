"""Scatters through all stages of the compiler, against eager mode: what the samples of OpInfo leave out."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from capture.backends.native.evaluate import evaluate
from capture.backends.native.ir import Kernel, Nest
from tests.backends.native.lowering.checks import calls, check
from tests.backends.native.stages import Stages, compare, compiled, finished, recorded

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:.*scatter with Tensor src is deprecated", "ignore:.*index_reduce.. is in beta")


def checked(fn: Callable[..., Any], *inputs: torch.Tensor, extern: tuple[str, ...] = ()) -> Stages:
    """Checks the compiled graph of `fn`, and that it calls no operators of ATen but `extern`."""
    gm, tensors = recorded(fn, inputs)
    stages = Stages(gm, tensors)
    assert [op for program in stages.lowered for op in calls(program)] == list(extern)
    compare(gm, stages.callable(compiled(stages.fused())), tensors)
    finished()
    return stages


def randint(high: int, *sizes: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, sizes, generator=torch.Generator().manual_seed(7), dtype=dtype)


def randn(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(3)).to(dtype)


ALONG = {
    "scatter": lambda x, i, y: x.scatter(0, i, y),
    "scatter value": lambda x, i, y: x.scatter(1, i[:5] % 6, 7),
    "scatter_add": lambda x, i, y: x.scatter_add(0, i, y),
    "scatter multiply": lambda x, i, y: x.scatter(0, i, y, reduce="multiply"),
    "index_add": lambda x, i, y: x.index_add(0, i[:, 0], y),
    "index_add columns": lambda x, i, y: x.index_add(1, i[0] % 6, y.new_ones(5, 6)),
    "index_copy": lambda x, i, y: x.index_copy(0, i[:, 1], y),
    "index_fill": lambda x, i, y: x.index_fill(1, i[1] % 6 - 2, 3),
    "index_put": lambda x, i, y: x.index_put((i[:, 0] - 5,), y),
    "index_put add": lambda x, i, y: x.index_put((i[:, 0], i[:, 1] % 6), y[:, 0], accumulate=True),
    "index_put column": lambda x, i, y: aten.index_put(x, [None, i[:, 1] % 6], y[:5, :1], accumulate=True),
    "put": lambda x, i, y: x.put(i * 7 - 15, y.view(6, 9)),
    "put add": lambda x, i, y: x.t().put(i * 7, y, accumulate=True),
    "scatter amax": lambda x, i, y: x.scatter_reduce(0, i, y, "amax", include_self=False),
    "scatter mean": lambda x, i, y: x.scatter_reduce(0, i, y, "mean", include_self=False),
    "index mean": lambda x, i, y: x.index_reduce(0, i[:, 0], y, "mean"),
    "index prod": lambda x, i, y: x.index_reduce(0, i[:, 0], y, "prod", include_self=False),
}
IN_RANGE = {"scatter value", "index_add columns", "index_fill", "index_put column"}     # whatever the indices are


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32])
def test_along_a_dimension(dtype: torch.dtype) -> None:
    """With elements that several values go to: of plain ones the last stays."""
    x, y, i = (randn(5, 6) * 8).to(dtype), (randn(9, 6) * 8).to(dtype), randint(5, 9, 6)
    names = [name for name in ALONG if not (name == "index mean" and dtype == torch.bfloat16)]      # eager rounds each sum
    checked(lambda x, i, y: [ALONG[name](x * 2, i, y + 1) for name in names], x, i, y)


def test_sums_are_eagers_bit_for_bit() -> None:
    x, i, y = torch.zeros(4, 33), randint(4, 500), randn(500, 33) * 1e4
    gm, inputs = recorded(lambda x, i, y: [x.index_add(0, i, y), x.scatter_add(0, i[:, None].expand(500, 33), y)], (x, i, y))
    stages = Stages(gm, inputs)
    compare(gm, stages.callable(compiled(stages.fused())), inputs, {"rtol": 0, "atol": 0})
    finished()


def test_results_do_not_depend_on_threads() -> None:
    i, y = randint(40, 3000), randn(3000, 48) * 1e4
    stages = Stages(*recorded(lambda i, y: torch.zeros(40, 48).index_add(0, i, y), (i, y)))
    plan, = compiled(stages.fused())
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results += plan(i, y)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)
    finished()


def test_a_scatter_runs_in_parallel_over_what_it_does_not_scatter() -> None:
    i, y = randint(40, 300), randn(300, 48)
    program, = Stages(*recorded(lambda i, y: torch.zeros(40, 48).index_add(0, i, y), (i, y))).fused()
    clear, add = program.body
    assert isinstance(add, Kernel) and [variable.extent for variable in add.outer] == [48] and add.parallel == 1
    assert add.vectorized and [variable.extent for variable in add.stages[0].inner] == [300]
    finished()


@pytest.mark.parametrize("padding", [None, 2, -1])
def test_embeddings_learn(padding: int | None) -> None:
    weight, i = randn(5, 7).requires_grad_(), randint(5, 3, 4)
    stages = checked(lambda weight, i: F.embedding(i, weight * 2, padding).exp(), weight, i)
    assert len(stages.lowered) == 2


def test_the_frequency_of_words_is_atens() -> None:
    weight, i = randn(5, 7).requires_grad_(), randint(5, 3, 4)
    called = ("aten::embedding_dense_backward",)
    checked(lambda weight, i: F.embedding(i, weight, scale_grad_by_freq=True), weight, i, extern=called)


def test_gathers_learn() -> None:
    x, i = randn(5, 6).requires_grad_(), randint(5, 4, 6)
    checked(lambda x, i: [x.gather(0, i).exp(), x[i[0]].sin(), x.index_select(0, i[0]).cos(), x[:, i[0]]], x, i)


def test_masks_choose() -> None:
    x, mask = randn(5, 6), randn(5, 6) > 0

    def fn(x, mask):
        y = x * 2
        y[mask] = 1.5
        y[mask[:, 0]] = x[0, 0]
        return y
    assert sum(isinstance(s, Nest) for s in checked(fn, x, mask).lowered[0].body) == 1


def test_values_that_eager_mode_puts_in_another_order_are_atens() -> None:
    checked(lambda x, i, y: x.put(i, y.t()), randn(5, 6), randint(30, 9, 6), randn(9, 6), extern=("aten::put",))


def test_other_integers_and_no_elements() -> None:
    x, y = randn(5, 6), randn(9, 6)
    i = randint(5, 9, dtype=torch.int32)
    checked(lambda x, i, y: [x.index_add(0, i, y), x.index_put((i.long(),), y[:, 0][:, None])], x, i, y)
    empty = torch.empty(0, dtype=torch.int64)
    checked(lambda x, i, y: [x.index_add(0, i, y), x.index_copy(0, i, y), x.index_put((i,), y)], x, empty, y[:0])


def test_strides_are_eagers() -> None:
    x, i, y = randn(6, 5).t(), randint(5, 9, 6), randn(6, 9).t()
    checked(lambda x, i, y: [x.scatter_add(0, i, y), x.index_put((i[:, 0],), y), x.index_add(0, i[:, 0], y)], x, i, y)


def test_what_the_program_reads_after_a_scatter() -> None:
    """The scattered tensor, the one before and the values, each used again; an input is written to in place."""
    def fn(x, i, y):
        before = x.sin()
        x.index_put_((i,), y * 2)
        after = x.cos()
        x.index_add_(0, i, y)
        return before, after, x.exp() + before
    checked(fn, randn(5, 6), randint(5, 9), randn(9, 6))


def test_symbolic_sizes() -> None:
    def fn(x, i, y):
        return [aten.index_put(x, [i], y, True), aten.scatter_add(x, 0, i[:, None] + x.new_zeros(x.shape[1], dtype=torch.int64), y)]
    first = randn(5, 6), randint(5, 9), randn(9, 6)
    check(fn, *first, dynamic=True, others=[(randn(3, 2), randint(3, 4), randn(4, 2))])


@pytest.mark.parametrize("name", [name for name in ALONG if name not in IN_RANGE])
def test_an_index_out_of_range_is_eagers_error(name: str) -> None:
    x, i, y = randn(5, 6), randint(5, 9, 6), randn(9, 6)
    program = Stages(*recorded(ALONG[name], (x, i, y))).lowered[0]
    finished()
    i[3, :2] = 11
    with pytest.raises((IndexError, RuntimeError)) as eager:
        ALONG[name](x, i, y)
    with pytest.raises(eager.type):
        evaluate(program, [x, i, y])
