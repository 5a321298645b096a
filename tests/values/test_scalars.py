"""Numbers that change from call to call become inputs of the graph: a sweep over twenty values costs two captures."""
from __future__ import annotations

import enum
import math
import types

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import capture
from capture.config import TRIAL_CALLS
from tests.helpers import call, check

X = torch.linspace(-2.0, 2.0, 12).reshape(3, 4)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -0.5, -2.0, math.nan, math.inf, -math.inf, 1e-45, 1e30, 0.1, 1 / 3]
TENSORS = [X, X.half(), X.bfloat16(), X.double(), X.to(torch.int32), X.to(torch.int8), X > 0, torch.tensor(1.5), torch.tensor(3),
           torch.tensor(2.0).half()]
FLOATS = [0.1 * step for step in range(20)]
INTS = list(range(20))


def sweep(program, values, tensor=X, captures=2, **options):
    """Calls `program(tensor, value)` for each of the values."""
    return check(lambda: program, *(call(tensor, value) for value in values), captures=captures, **options)


# -- what becomes an input -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}{t.dim()}".removeprefix("torch."))
@pytest.mark.parametrize("values", [SPECIAL, [3, -1, 0, 7, 100, 2]], ids=["float", "int"])
def test_arithmetic_promotes_types_as_in_eager(tensor, values) -> None:
    def program(x, s):
        return x * s, s + x, x == s, torch.where(x > 0, x, s)
    sweep(program, values, tensor)


@pytest.mark.parametrize("program", [
    lambda x, s: x - s, lambda x, s: s - x, lambda x, s: x / s, lambda x, s: s / x, lambda x, s: x ** s, lambda x, s: x // s,
    lambda x, s: x % s, lambda x, s: x < s, lambda x, s: torch.add(x, x, alpha=s), lambda x, s: x.addcmul(x, x, value=s),
    lambda x, s: torch.addcdiv(x, x, x, value=s), lambda x, s: x.lerp(x.exp(), s), lambda x, s: x.clamp(min=s),
    lambda x, s: x.clamp(-1, s), lambda x, s: x.masked_fill(x > 0, s), lambda x, s: torch.full((2, 3), s),
    lambda x, s: torch.full_like(x, s),
    lambda x, s: torch.tensor(s) * x, lambda x, s: x.clone().fill_(s), lambda x, s: F.softmax(x / s, -1),
    lambda x, s: F.leaky_relu(x, s),
    lambda x, s: F.softplus(x, beta=s), lambda x, s: F.layer_norm(x, (4,), eps=s), lambda x, s: F.huber_loss(x, x * 2, delta=s),
    lambda x, s: torch.tensor([s, 1.0]) + x[0, 0], lambda x, s: torch._foreach_mul([x, x], s),
], ids=lambda f: None)
def test_a_sweep_costs_two_captures(program) -> None:
    sweep(program, [0.5, 0.75, 1.0, 2.0, 0.1, 1.5])


def test_integers_become_inputs_too() -> None:
    sweep(lambda x, n: (x * n, x + n, x ** n, torch.tensor(n), x.to(torch.int64) // (n + 1)), INTS)


def test_expressions_over_several_numbers() -> None:
    def program(x, config):
        rate = config.base * 0.5 ** (config.step // 10)
        correction = 1 - 0.9 ** (config.step + 1)
        return x - rate / correction * x.sign()

    def program_of(inner):
        config = types.SimpleNamespace(base=0.1, step=0)

        def program(x):
            config.step += 1
            return inner(x, config)
        return program
    check(lambda: program_of(program), *[call(X)] * 30, captures=2)


def test_a_counter_that_enters_arithmetic() -> None:
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.step = 0

        def forward(self, x):
            self.step += 1
            return x * 0.99 ** self.step + self.step
    check(Net, *[call(X)] * 20, captures=2)


def test_an_optimizer_written_out() -> None:
    class Adam(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lr, self.step = 0.1, 0
            self.m, self.v = torch.zeros(3, 4), torch.zeros(3, 4)

        @torch.no_grad()
        def forward(self, p, g):
            self.step += 1
            self.m.lerp_(g, 0.1)
            self.v.mul_(0.999).addcmul_(g, g, value=0.001)
            size = self.lr / (1 - 0.9 ** self.step)
            bias = (1 - 0.999 ** self.step) ** 0.5
            p.addcdiv_(self.m, (self.v.sqrt() / bias).add_(1e-8), value=-size)
            self.lr *= 0.97
            return p
    check(Adam, *[call(X, X * 0.5)] * 20, captures=2)


def test_gradients_flow_through_arithmetic_with_numbers() -> None:
    sweep(lambda x, s: ((x * s).sin() / s).pow(2).add(x, alpha=s).sum(), FLOATS[1:], X.clone().requires_grad_(), backward=True)


def test_numbers_beside_those_that_were_read_out_of_tensors() -> None:
    def program(x, rate):
        total = x.sum().item()
        return x * (rate * total), x.addcdiv(x, x, value=-rate / (total + 1)), x - (1 - rate * 0.5) * total
    sweep(program, FLOATS, X + 3)
    Untimed().sweep(lambda x, rate: x * (rate * x.sum().item()), FLOATS, X + 3)


def test_a_row_of_a_tensor() -> None:
    def program(x, i):
        row = x[i]
        return row * 2, x[i, 1:], x[:, i], row
    sweep(program, [0, 1, 2, -1, 1, -3, 0])


@pytest.mark.parametrize("program", [
    lambda x, n: x.roll(n), lambda x, n: x.roll((n, n + 1), (0, 1)), lambda x, n: torch.triu(x, n - 1),
    lambda x, n: x.clone().tril_(n), lambda x, n: x.select(0, n % 3), lambda x, n: x.narrow(0, n % 2, 2) + 1,
    lambda x, n: (divmod(n, 3), x * divmod(n, 7)[1]),
], ids=lambda f: None)
def test_integers_that_move_elements(program) -> None:
    sweep(program, INTS)


def test_a_row_that_is_written_to() -> None:
    def program(x, i):
        x[i] = i
        x[i, 1] += 0.5
        return x
    sweep(program, [0, 1, 2, -1, 1])


def test_an_index_out_of_range_raises_as_in_eager() -> None:
    sweep(lambda x, i: x[i] + 1, [0, 1, 7, 2], hits=2)


# -- slices ----------------------------------------------------------------------------------------------------------------

ROWS = torch.arange(40.0).reshape(20, 2)


@pytest.mark.parametrize("program", [
    lambda x, i: x[i:i + 2] * 2, lambda x, i: x[i * 2 % 18:i * 2 % 18 + 2].sum(0), lambda x, i: x[i:i + 2, 1],
    lambda x, i: x[..., None, i % 2:i % 2 + 1],
    lambda x, i: x[-i - 3:-i - 1:2], lambda x, i: x.t()[:, i:i + 1], lambda x, i: (x[i:i + 2], x[i + 1:i + 3].storage_offset()),
], ids=lambda f: None)
def test_a_slice_that_moves(program) -> None:
    sweep(program, range(17), ROWS)


def test_a_slice_that_moves_is_written_to() -> None:
    def program(x, i):
        x[i:i + 2] = x[i + 1:i + 3] * 2
        x[:i, 0] = i
        x[i:i + 1].add_(1)
        return x
    sweep(program, range(1, 12), ROWS)


@pytest.mark.parametrize("program", [
    lambda x, n: x[:n] * 2, lambda x, n: x[:n].sum(), lambda x, n: (x[n:] + 1, x[n:].shape), lambda x, n: x[:, :n % 2 + 1].mean(0),
    lambda x, n: x[-n:].relu(), lambda x, n: x[::n + 1] - 1, lambda x, n: (x[:n], f"{x[:n].shape[0]} rows"),
], ids=lambda f: None)
def test_a_slice_whose_length_changes(program) -> None:
    sweep(program, range(1, 20), ROWS)


def test_a_slice_that_moves_and_is_cut_short_at_the_end() -> None:
    sweep(lambda x, i: x[i * 6:i * 6 + 6].exp(), [0, 1, 2, 3, 0, 3, 1, 4, 2], ROWS, captures=3)


def test_a_length_on_which_the_program_decides() -> None:
    def program(x, n):
        y = x[:n]
        return y * 2 if y.shape[0] > 3 else y + 1
    stats = sweep(program, [5, 6, 5, 2, 6, 2], ROWS, captures=None, fullgraph=False, dynamic=False)
    assert stats.breaks and stats.hits and not stats.native_calls       # what follows the decision has one graph for each shape
    assert sweep(program, [5, 6, 5, 2, 6, 2], ROWS, captures=3).hits == 3       # any number of rows, once for each way


def test_bounds_of_other_types() -> None:
    sweep(lambda x, n: x[:n], [1, 2, None, 3, -1, None], ROWS, captures=4)        # a bound from the end is another way
    sweep(lambda x, n: x[n:4], [1, 2, True, False, 3], ROWS, captures=None)


def test_gradients_of_slices() -> None:
    sweep(lambda x, i: x[i:i + 2].sin() + x[:i].sum(), range(1, 10), ROWS.clone().requires_grad_(), backward=True)


def test_a_list_of_rows() -> None:
    sweep(lambda x, i: x[[i, 0, i + 1]], range(10), ROWS)


def test_slices_in_compiled_programs() -> None:
    sweep(lambda x, i: x[i:i + 2].exp() + 1, range(8), ROWS, backend="native", options={"background": False}, tolerance=1e-6)
    sweep(lambda x, n: x[:n].exp() + 1, range(8), ROWS, backend="native", options={"background": False})


# -- what decides something ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("program", [
    lambda x, n: x.sum(n), lambda x, n: torch.zeros(n + 1), lambda x, n: x.repeat(1, n + 1),
    lambda x, n: torch.arange(n), lambda x, n: x * len(range(n)), lambda x, n: x * [1.0, 2.0][n],
    lambda x, n: x.unsqueeze(n),
], ids=lambda f: None)
def test_numbers_that_decide_stay_guarded(program) -> None:
    sweep(program, [0, 1, 0, 1])


def test_a_branch_guards_the_condition_alone() -> None:
    def program(x, s):
        return x * s if s > 1.0 else x + s
    sweep(program, [0.1, 0.2, 0.3, 1.5, 1.7, 0.4, 1.9], captures=3)


@pytest.mark.parametrize("program", [
    lambda x, p: F.dropout(x, p), lambda x, p: F.dropout(x.clone(), p, True, True) + 1, lambda x, p: torch.dropout(x, p, True),
    lambda x, p: F.alpha_dropout(x, p, True), lambda x, p: F.dropout1d(x, p), lambda x, p: F.dropout(x, p, False),
    lambda x, p: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=p)], ids=lambda f: None)
def test_a_sweep_of_the_probability_of_dropout(program) -> None:
    sweep(program, [0.1, 0.2, 0.3, 0.5, 0.9, 0.7])


def test_no_dropout_returns_its_argument_itself() -> None:
    sweep(lambda x, p: F.dropout(x, p), [0.0, 0.5, 0.0, 0.3, 0.0, 1.0, 0.7, 1.0], captures=3)


def test_the_offset_of_a_row_is_no_constant() -> None:
    def program(x, i):
        return x[i].storage_offset()
    sweep(program, [0, 1, 2, 1])


def test_booleans_and_subclasses_stay_guarded() -> None:
    class Level(enum.IntEnum):
        LOW, HIGH = 1, 2
    sweep(lambda x, s: x * s, [True, False, True, False])
    sweep(lambda x, s: x * s, [Level.LOW, Level.HIGH, Level.LOW])


# -- types -----------------------------------------------------------------------------------------------------------------

def test_integers_and_floats_are_different_inputs() -> None:
    sweep(lambda x, s: x.to(torch.int64) * s, [1, 2.0, 3, 4.0, 5, 6.5, 1, True], captures=4)


def test_integers_beyond_64_bits_raise_as_in_eager() -> None:
    sweep(lambda x, n: x.to(torch.int64) + n, [1, 2, 2**62, -2**63], hits=2)
    sweep(lambda x, n: x + n, [1, 2, 2**70, 3], captures=2, hits=2)


def test_a_constant_stays_a_constant() -> None:
    compiled = capture.compile(lambda x, s: x * s, backend="eager")
    for _ in range(3):
        compiled(X, 0.5)
    assert "x * 0.5" in str(capture.explain(compiled))


def test_reset_forgets_what_changed() -> None:
    compiled = capture.compile(lambda x, s: x * s, backend="eager")
    for s in (1.0, 2.0):
        compiled(X, s)
    capture.reset()
    compiled(X, 3.0)
    assert "s: is 3.0" in capture.explain(compiled)


# -- loops and continuations -------------------------------------------------------------------------------------------------

def test_a_loop_with_a_break_captures_alike_rounds_once() -> None:
    @capture.disable
    def note(i):
        seen.append(i)
    seen: list[int] = []

    def program(x, n):
        for i in range(n):
            x = x * 0.5 + i
            note(i)
        return x
    compiled = capture.compile(program, backend="eager")
    for n in (20, 20):
        assert torch.equal(compiled(X, n), program(X, n))
    assert seen == [*range(20)] * 4
    assert capture.stats(compiled).captures <= 6


# -- backends ------------------------------------------------------------------------------------------------------------------

def test_a_backend_that_knows_no_numbers_is_not_given_any() -> None:
    def backend(gm, inputs):
        assert all(isinstance(value, torch.Tensor) for value in inputs)
        return gm.forward
    sweep(lambda x, s: x * s, FLOATS, backend=backend)
    compiled = capture.compile(lambda x, s: x * s, backend=backend)
    for s in (1.0, 2.0, 3.0):
        compiled(X, s)
    assert "numbers that change from call to call are among its inputs" in str(capture.explain(compiled))


class Untimed:
    """The native backend, whose compiled code serves every call after the first hit."""

    def __init__(self, compiled: int = 1) -> None:
        self.compiled = compiled

    def sweep(self, program, values, tensor=X, **options):
        with TRIAL_CALLS.set(0):
            stats = sweep(program, values, tensor, backend="native", options={"background": False}, **options)
        assert stats.compiled == self.compiled and bool(stats.compile_errors) is (self.compiled == 0), stats
        return stats


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}{t.dim()}".removeprefix("torch."))
@pytest.mark.parametrize("values", [SPECIAL, [3, -1, 1, 7, 100, 2, 2**40]], ids=["float", "int"])
def test_compiled_arithmetic_promotes_types_as_in_eager(tensor, values) -> None:
    def program(x, s):
        return x * s, s + x, x / s
    Untimed().sweep(program, values, tensor)


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}{t.dim()}".removeprefix("torch."))
@pytest.mark.parametrize("values", [SPECIAL, [3, -1, 1, 7, 100, 2, 2**40]], ids=["float", "int"])
def test_compiled_choices_convert_as_in_eager(tensor, values) -> None:
    def program(x, s):
        return x == s, torch.where(x > 0, x, s), x > s
    short = type(values[0]) is int and tensor.dtype in (torch.int32, torch.int8)        # where numbers may overflow
    Untimed(0 if short else 1).sweep(program, values, tensor, hits=5 if short else None)


@pytest.mark.parametrize("program", [
    lambda x, s: (x - s, s - x, x / s, s / x, x < s), lambda x, s: x.clone().mul_(s).sub_(s),
    lambda x, s: (x.clamp(min=s), x.clamp(-1, s), x.masked_fill(x > 0, s), torch.full((2, 3), s), torch.full_like(x, s)),
    lambda x, s: (torch.tensor(s) * x, torch.scalar_tensor(s)),
], ids=lambda f: None)
def test_compiled_operations(program) -> None:
    Untimed().sweep(program, [0.5, 0.75, -1.0, 2.0, math.nan, 1 / 3, math.inf])


def test_compiled_operations_whose_last_bit_depends_on_the_kernel() -> None:
    def program(x, s):
        return (x // s, x % s, s ** x, torch.add(x, x, alpha=s), x.addcmul(x, x, value=s), x.addcdiv(x, x.exp(), value=s),
                x.lerp(x.exp(), s), F.softmax(x / s, -1))
    Untimed().sweep(program, [0.5, 0.75, 1.0, 2.0, 1 / 3], tolerance=1e-6)


def test_compiled_gradients() -> None:
    def program(x, s):
        return ((x * s).sin() / s).mul(s).add(x, alpha=s).sum()
    Untimed().sweep(program, FLOATS[1:], X.clone().requires_grad_(), backward=True, tolerance=1e-6)


def test_a_compiled_checkpoint() -> None:
    def program(x, s):
        return checkpoint(lambda x: (x * s).sin() * s, x, use_reentrant=False) + s
    Untimed().sweep(program, FLOATS[1:8], X.clone().requires_grad_(), backward=True, tolerance=1e-6)


def test_compiled_gradients_of_gradients() -> None:
    def program(x, s):
        with torch.enable_grad():
            return (x * s).sin() * s
    with TRIAL_CALLS.set(0):
        compiled = capture.compile(program, backend="native", options={"background": False})
        for s in (0.5, 0.7, 0.9, 1.1):
            x = X.clone().requires_grad_()
            results = []
            for function in (program, compiled):
                first, = torch.autograd.grad(function(x, s).sum(), x, create_graph=True)
                results.append(torch.autograd.grad(first.sum(), x)[0])
            torch.testing.assert_close(*results)


def test_a_number_too_great_for_compiled_code_runs_uncompiled() -> None:
    Untimed().sweep(lambda x, s: x.clone().fill_(s) + 1, [1.0, 2.0, 3.0, 1e300, 4.0], hits=3)
    Untimed().sweep(lambda x, s: x * s, [1.0, 2.0, 3.0, 1e300, -1e300])
    Untimed().sweep(lambda x, n: x * n, [1, 2, 3, 2**63, 5])


def test_what_cannot_be_compiled_says_why() -> None:
    stats = Untimed(0).sweep(lambda x, s: torch.addmm(x[:, :3], x, x.t(), alpha=s), [1.0, 2.0, 0.5, 3.0])
    assert stats.compile_errors == ["addmm with a number that changes from call to call"]


def test_compiled_functions() -> None:
    def program(x, s):
        y = F.layer_norm(F.leaky_relu(x, s), (4,), eps=s)
        a, b = torch._foreach_mul([y, x], s)
        return a, torch._foreach_add([b], [y], alpha=s)[0], x.abs() ** s
    Untimed().sweep(program, [0.5, 0.75, 2.0, 0.1, 3.0, 0.3], tolerance=1e-6)


def test_modules_of_one_class_that_differ_in_a_number() -> None:
    class Norm(torch.nn.Module):
        def __init__(self, eps):
            super().__init__()
            self.eps = eps

        def forward(self, x):
            return F.layer_norm(x, (4,), eps=self.eps)
    with TRIAL_CALLS.set(0):
        modules = [Norm(eps) for eps in (1e-5, 1e-2, 1e-3)]
        compiled = [capture.compile(module, backend="native", options={"background": False}) for module in modules]
        for _ in range(3):
            for module, fast in zip(modules, compiled, strict=True):
                torch.testing.assert_close(fast(X), module(X), rtol=1e-6, atol=1e-6)
        assert [capture.stats(fast).compile_errors for fast in compiled] == [[]] * 3


def test_a_loop_that_asks_a_tensor_of_many_elements_in_each_round() -> None:
    """No guard computes all rounds again: the trace ends where the program asks, and rounds are alike."""
    def emptied(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        rounds = 0
        while (x > 0).any():
            x = x - 1
            rounds += 1
        return x * 2, rounds
    sizes = 3, 5, 2, 9, 4, 12, 7, 3, 6, 1, 8
    stats = check(lambda: emptied, *(call(torch.arange(size)) for size in sizes), captures=None, fullgraph=False)
    assert stats.captures < len(sizes) and not stats.native_calls
