"""Lowering: what programs mean, and what they consist of."""
from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from capture.backends import decompositions
from capture.backends.native.evaluate import evaluate
from capture.backends.native.ir import Load, Nest, Symbol
from capture.backends.native.lowering import lower, registry
from capture.backends.native.rewrite import loads_of
from capture.backends.native.signature import Unsupported
from tests.backends.native.lowering.checks import aten, calls, check, check_graph, nests, traced


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


# What becomes a loop.

def test_a_chain_of_pointwise_operations_is_one_nest() -> None:
    program = check(lambda x, y: torch.relu(x * 2 + y).exp() - 1, randn(4, 5), randn(5))
    assert nests(program) == 1 and not calls(program)


def test_views_are_no_nests() -> None:
    program = check(lambda x: x.view(2, 3, 4).permute(2, 0, 1)[1:, :, ::2].unsqueeze(1).expand(3, 5, 2, 2), randn(6, 4))
    assert nests(program) == 0 and not calls(program)


def test_softmax_stores_what_it_uses_twice() -> None:
    program = check(lambda x: torch.softmax(x, -1), randn(4, 5))
    assert nests(program) == 4          # maximum, exponential, sum, quotient


def test_layer_norm() -> None:
    program = check(lambda x, w, b: F.layer_norm(x, (5,), w, b), randn(4, 5), randn(5), randn(5))
    assert nests(program) == 4          # sum, squares, reciprocal root, result
    assert all(isinstance(statement, Nest) and len(statement.space) in (1, 2) for statement in program.body)


def test_a_cheap_value_is_computed_again_by_each_user() -> None:
    program = check(lambda x: ((x + 1).sum(0), (x + 1).amax(1)), randn(4, 5))
    assert nests(program) == 3          # sum, the same in float32, maximum


def test_a_dear_value_is_stored_for_its_users() -> None:
    program = check(lambda x: (lambda y: (y.sum(0), y.amax(1)))(torch.exp(x)), randn(4, 5))
    assert nests(program) == 4          # exponential, sum, the same in float32, maximum


def test_work_is_not_repeated_over_a_broadcast() -> None:
    program = check(lambda x, y: torch.exp(x)[:, None] * y, randn(4), randn(4, 5))
    assert nests(program) == 2


def test_long_chains_are_cut() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = torch.sin(x)
        return x
    assert 2 <= nests(check(chain, randn(3))) < 10


def test_loops_run_over_the_dimensions_in_order() -> None:
    program = check(lambda x: x.sum(1, keepdim=True), randn(2, 3, 1, 4))
    nest = program.body[0]
    assert isinstance(nest, Nest)
    assert [v.extent for v in nest.space] == [2, 4] and [v.extent for v in nest.reduced] == [3]


def test_matrix_products_get_views_of_what_is_in_memory() -> None:
    program = check(lambda x, w: x @ w.t(), randn(3, 4), randn(5, 4))
    assert nests(program) == 0 and calls(program) == ["aten::mm.out"]


def test_a_linear_layer_and_its_activation() -> None:
    program = check(lambda x, w, b: F.gelu(F.linear(x, w, b)), randn(2, 3, 4), randn(5, 4), randn(5))
    assert nests(program) == 1 and calls(program) == ["aten::addmm.out"]


def test_a_concatenation_that_is_stored_is_a_nest_per_part() -> None:
    assert nests(check(lambda x, y: torch.cat([x * 2, y.relu()], 1), randn(3, 4), randn(3, 2))) == 2
    assert nests(check(lambda x, y: torch.cat([x * 2, y.relu()], 1) + 1, randn(3, 4), randn(3, 2))) == 1


def test_ranges_are_positions() -> None:
    program = check(lambda w: F.embedding(torch.arange(2, 5), w), randn(7, 4))
    assert "[" not in repr(next(iter(program.body)).stores[0].value.index)


# Layouts.

def test_results_have_the_strides_of_eager() -> None:
    check(lambda x: torch.relu(x), randn(2, 4, 4, 3).permute(0, 3, 1, 2))
    check(lambda x: x.transpose(0, 1) + 1, randn(3, 4))
    check(lambda x, y: (x + 1, y.t().contiguous()), randn(5, 3)[:, ::2], randn(3, 4))


def test_results_that_repeat_or_skip_elements() -> None:
    check(lambda x: ((x + 1).expand(3, 4), (x * 2)[::2]), randn(4))


def test_a_copy_is_memory_of_its_own() -> None:
    x = randn(3)
    first, second = evaluate(check(lambda x: (x.view(3), x.clone()), x), [x])
    assert first.data_ptr() == x.data_ptr() and second.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (1, 5, 1)])
def test_shapes(shape: tuple[int, ...]) -> None:
    check(lambda x: (x + 1, x.sum(), x.cumsum(-1) if x.dim() else x, torch.cat([x, x]) if x.dim() else x, x.reshape(-1), x.prod()),
          randn(*shape))


# Types.

@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool])
def test_promotion(dtype: torch.dtype) -> None:
    def operations(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x + y, x * 2, x * 1.5, x / 2, x > 0.5, torch.where(x > 0, x, y), x.sum(), x.amax(0), torch.sqrt(x),
                F.pad(x, (1, 1)), x.to(torch.float32) + 1]
    x = (torch.rand(3, 4) * 4 + 1).to(dtype)
    tolerance = 2e-2 if dtype in (torch.bfloat16, torch.float16) else None
    check(operations, x, x.flip(0), rtol=tolerance, atol=tolerance)


def test_zero_dimensional_tensors_do_not_promote() -> None:
    check(lambda x, s: (x + s, x * 2.0, s + 1), randn(3, dtype=torch.bfloat16), torch.tensor(1.5, dtype=torch.float64))


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1, -2, 1, 0, 2.5])
def test_constant_powers(exponent: float) -> None:
    check(lambda x: (x ** exponent, exponent ** x), torch.rand(5) + 0.1)


def test_other_types_are_left_to_aten() -> None:
    program = check(lambda x: x.mT.to(torch.float32) + 1, randn(3, 4).to(torch.float8_e4m3fn))
    assert "aten::_to_copy" in calls(program)


# Moved elements.

def test_moved_elements() -> None:
    check(lambda x: [x.flip(0, 1), x.roll(3, 1), x.roll((1, -1), (0, 1)), x.repeat(2, 1, 3)], randn(3, 4))
    check(lambda x: [x.unfold(1, 2, 1), x.diagonal(1), (x + 1).diagonal(-1)], randn(3, 4))
    check(lambda x: [x.tril(), x.triu(1), x.tril(-1), torch.eye(3, 4) * x], randn(3, 4))
    check(lambda x: [*x.split(2, 1), *x.unbind(0), *x.chunk(3, 1)], randn(3, 5))


def test_padding() -> None:
    check(lambda x: [F.pad(x + 1, (1, 2, 0, -1), value=3.0), F.pad(x, (-1, -1)), F.pad(x, (0, 0, 2, 2))], randn(3, 4))


def test_padding_that_is_stored_tests_no_element() -> None:
    program = check(lambda x: F.pad(torch.sigmoid(x), (1, 2, 0, 3), value=1.5), randn(2, 4, 5))
    assert not any(isinstance(node, Load) and node.mask for nest in program.body if isinstance(nest, Nest)
               for node in loads_of(nest.stores))


@pytest.mark.parametrize("divide",
                         [torch.floor_divide, torch.remainder, torch.fmod, lambda x, y: torch.div(x, y, rounding_mode="trunc")])
def test_integers_are_divided_by_what_may_be_zero_in_aten(divide: Any) -> None:
    x, y = torch.tensor([5, -7]), torch.tensor([2, 3])
    program = check(divide, x, y)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        evaluate(program, [x, torch.tensor([1, 0])])
    assert not calls(check(lambda x: divide(x, 3), x)), "a divisor that is known is no reason"
    assert not calls(check(divide, x / 2, y / 2))


def test_nothing_is_read_out_of_bounds_where_a_part_is_absent() -> None:
    check(lambda x, i, d: torch.cat([x[i], x[i] * 2], 0) + torch.cat([i // d, i % d])[:, None],
          randn(4, 2), torch.tensor([3, 0]), torch.tensor([2, 3]))


def test_scattered_parts() -> None:
    check(lambda x, y: [torch.slice_scatter(x, y, 1, 1, 5, 2), torch.select_scatter(x, y[:, 0], 1, -1),
                        torch.diagonal_scatter(x, y[:, 0], 1)], randn(3, 5), randn(3, 2))


def test_gathers() -> None:
    x, i, j = randn(3, 4, 5), torch.tensor([0, -1]), torch.tensor([[1], [2]])
    check(lambda x, i, j: [x[i], x[:, i, j], x[i, :, j], x[..., i], x.index_select(1, i + 1)], x, i, j)
    check(lambda x, i: [x.gather(1, i), x.scatter(1, i[:, :1], 9.0), x.scatter(1, i[:, :1], x[:, 1:2])],
          randn(3, 4), torch.tensor([[0, 3], [2, 2], [1, 0]]))


@pytest.mark.parametrize("fn", [
    lambda x, i: x[i], lambda x, i: F.embedding(i, x), lambda x, i: x.scatter(0, i[None], 1.0), lambda x, i: x.gather(0, i[None])])
def test_an_index_out_of_range_is_eagers_error(fn: Any) -> None:
    x, good, bad = randn(4, 2), torch.tensor([1, 2]), torch.tensor([1, 4])
    program = check(fn, x, good)
    with pytest.raises((IndexError, RuntimeError)) as eager:
        fn(x, bad)
    with pytest.raises(eager.type):
        evaluate(program, [x, bad])


# Reductions.

def test_reductions() -> None:
    check(lambda x: [x.mean((0, 2)), x.var(1), x.std(), x.argmax(1), x.argmin(), *x.max(1), *x.min(2, keepdim=True), x.amin((0, 1)),
                     x.any(1), x.all(), x.prod(1), x.norm(), x.norm(1, dim=0), x.norm(float("inf")), x.logsumexp(1), x.cumsum(1),
                     x.cumprod(0)], randn(3, 4, 5))


def test_reductions_see_nan() -> None:
    x = randn(3, 4)
    x[1, 2] = float("nan")
    check(lambda x: [x.amax(1), x.argmax(1), x.argmin(), *x.max(0), x.sum(0), torch.relu(x), x.clamp(-1, 1)], x)


def test_variance_of_a_single_element() -> None:
    check(lambda x: [*torch.var_mean(x, 1), *torch.var_mean(x, 1, correction=0)], randn(3, 1))


def test_pooling() -> None:
    x = randn(2, 3, 8, 8)
    program = check(lambda x: [F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 1, 1),
                               F.adaptive_avg_pool2d(x, 2), F.interpolate(x, scale_factor=2), F.interpolate(x, (16, 24))], x)
    assert not calls(program)
    program = check(lambda x: [*F.max_pool2d(x, 3, 2, 1, return_indices=True), *F.max_pool2d(x, 8, return_indices=True),
                               F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)], x)
    assert calls(program) == ["aten::max_pool2d_with_indices.out"]      # of windows of 64 elements


# Sizes that are known when the program runs.

def test_symbolic_sizes() -> None:
    program = check(lambda x, w: (F.gelu(x @ w), torch.softmax(x, -1), x.view(-1), torch.arange(x.shape[0])),
                    randn(5, 3), randn(3, 4), dynamic=True, others=[(randn(9, 6), randn(6, 7))])
    assert len(program.symbols) == 3 and all(place[1] is not None for place in program.symbols.values())


def test_symbolic_shapes_are_split_and_joined() -> None:
    def heads(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        b, t, d = x.shape
        y = x.view(b, t, 2, d // 2).transpose(1, 2)
        joined = (y * 2).transpose(1, 2).reshape(b, t, d)
        return joined, y.sum(-1), torch.cat([x, x + 1], 1), x[:, 1:], F.pad(x, (0, 1)), x.mean((0, 1))
    check(heads, randn(2, 3, 4), dynamic=True, others=[(randn(3, 5, 8),)])


def test_sizes_are_arguments_and_results() -> None:
    def sized(x: torch.Tensor, n: int) -> tuple[Any, ...]:
        return x.sum() * n, x.shape[0] * 2 + n
    gm = traced(sized, randn(3, 2), 5, dynamic=True)
    program = check_graph(gm, [(randn(3, 2), 5), (randn(7, 2), 5)])
    assert isinstance(program.inputs[1], Symbol)


def test_sizes_that_depend_on_data_are_unsupported() -> None:
    with pytest.raises(Unsupported):
        lower(traced(lambda x: x.nonzero(), randn(3)))


# Writes to inputs.

def test_other_devices_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="on meta"):
        lower(traced(lambda x: x + torch.zeros(3, device="meta").to("cpu"), randn(3)))


def write(*statements: Any) -> Any:
    """A graph that ends in writes: functions of the inputs, each stored to the input of its number; returns an input's double."""
    def fn(*inputs: torch.Tensor) -> list[torch.Tensor]:
        before = inputs[0] * 2
        values = [(inputs[number], function(*inputs)) for number, function in statements]
        for target, value in values:
            aten.copy_(target, value)
        return [before]
    return fn


def test_an_input_is_written_to() -> None:
    program = check(write((0, lambda x: x + 1)), randn(3, 4))
    assert nests(program) == 2


def test_what_reads_the_old_value_comes_first() -> None:
    check(write((0, lambda x, y: y), (1, lambda x, y: x)), randn(3), randn(3))
    check(write((0, lambda x: x.flip(0))), randn(3, 4))
    check(write((0, lambda x: x.t() + 1)), randn(3, 3))
    check(write((0, lambda x: torch.cat([x[1:], x[:1]]))), randn(5))
    check(write((0, lambda x, y: y.to(torch.float64))), randn(2, 3).t(), randn(3, 2))


# Calls of ATen.

def test_random_numbers_are_drawn_in_order() -> None:
    program = check(lambda x: (torch.rand(3, 4) + torch.randn(3, 4), torch.native_dropout(x, 0.5, True)[0],
                               torch.bernoulli(x.sigmoid())), randn(3, 4))
    assert [op.split(".")[0] for op in calls(program)] == ["aten::rand", "aten::randn", "aten::bernoulli_", "aten::bernoulli"]
    assert nests(program) == 3          # and none for the memory that dropout's mask is drawn into


def test_calls_with_several_results() -> None:
    program = check(lambda x: (*x.sort(1), x.topk(2).indices, x.median(1).values), randn(3, 4))
    assert calls(program) == ["aten::sort.values", "aten::topk.values", "aten::median.dim_values"]


def test_operators_without_a_form_that_writes_into_given_memory() -> None:
    program = check(lambda x, w: F.relu(F.conv2d(x, w, padding=1)), randn(2, 3, 8, 8), randn(4, 3, 3, 3))
    assert calls(program) == ["aten::convolution"] and nests(program) == 1


def test_channels_last_convolution() -> None:
    check(lambda x, w: F.relu(F.conv2d(x, w)) + 1, randn(2, 3, 8, 8).to(memory_format=torch.channels_last), randn(4, 3, 3, 3))


def test_operators_with_a_lowering_are_not_taken_apart_before() -> None:
    names = {op._overloadpacket.__name__ for op in registry.TABLE if op in decompositions.decompositions()}
    assert names == decompositions.TAKEN_APART
