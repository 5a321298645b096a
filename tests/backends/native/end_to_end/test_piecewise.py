"""Graphs with operations that cannot be compiled: these run as they are, and the pieces between them are compiled."""
from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import capture
from capture import _C
from capture.backends.native.piecewise import Piece
from capture.backends.native.tiers import Stage
from tests import helpers
from tests.backends.native import cuts, random_programs
from tests.backends.native.end_to_end.engine import AT_ONCE, check, compile, no_trial, tiers  # noqa: F401
from tests.helpers import call

LIBRARY = torch.library.Library("piecewise_tests", "DEF")
LIBRARY.define("waved(Tensor x) -> Tensor")
LIBRARY.impl("waved", lambda x: x.sin() + 1, "CompositeExplicitAutograd")
LIBRARY.define("in_turn(Tensor x) -> Tensor")


class Squared(torch.autograd.Function):
    """An operation whose code only the program's own process knows: what it asks of autograd is left to torch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, = ctx.saved_tensors
        return 2 * x * gradient


def masked(x: Tensor) -> Any:
    kept = (x * 2).tanh()[x > 0]
    return (kept * 3 + 1).sigmoid().sum(), kept


def selected(x: Tensor) -> Any:
    places = (x.abs() + 0.5).round().nonzero()
    return (places.float() * 0.5).exp(), places + 1


def routed(x: Tensor) -> Any:
    result = torch.zeros_like(x)
    chosen = (x @ x.T).argmax(-1) % 2
    for expert in range(2):
        rows, = torch.where(chosen == expert)
        result = result.index_add(0, rows, (x[rows] * (expert + 1)).tanh() * 2)
    return (result + x).relu()


def repeated(x: Tensor) -> Any:
    times = (x[:, 0] > 0).long() + 1
    return (torch.repeat_interleave(x, times, dim=0) * 2).sin() + 1


def of_autograd(x: Tensor) -> Any:
    return (Squared.apply((x * 2).tanh() + 1) * 0.5).sin().sum()


def of_a_library(x: Tensor) -> Any:
    return (torch.ops.piecewise_tests.waved((x * 2).tanh() + 1) * 3).sin() + x


def aligned(x: Tensor) -> Any:
    scores = ((x * 2).tanh() + 1).log_softmax(-1)
    return (F.ctc_loss(scores, torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([2])) * 2).tanh() + 1


def with_a_view_across(x: Tensor) -> Any:
    made = x * 2 + 1
    row = made[0]
    squared = Squared.apply(x)
    row.mul_(3)
    return made, row, squared.sin() + made.sum()


def with_writes_across(x: Tensor) -> Any:
    made = (x * 2).tanh()
    squared = Squared.apply(x * 1)
    made = (made * 1).add_(squared).mul_(2)
    squared.mul_(2)
    return made, squared, (made + squared).exp()


def writing_to_what_it_reads(x: Tensor) -> Any:
    made = ((x[:4, :4] * 2).tanh() + 1).clone()
    made.add_(made.diagonal())
    return (made * 3).sin() + 1, made


def drawing(x: Tensor) -> Any:
    noise = torch.rand_like(x) * 2 - 1
    kept = x[noise > 0]
    return torch.nn.functional.dropout(kept * 2 + 1, 0.5).sum(), torch.rand(3) + noise.sum()


def without_gradients(x: Tensor) -> Any:
    made = (x * 2).tanh() + 1
    with torch.no_grad():
        size = (made * 2).tanh()[x > 0].mean() + 1
    return (made * size).sin() * 2


def in_inference_mode(x: Tensor) -> Any:
    made = (x * 2).tanh() + 1
    with torch.inference_mode():
        ready = (made * 2).relu() + x
        with torch.inference_mode(False):
            other = torch.ones(3).mul_(2) + 1
        ready = ready.mul_(3) + 1
    return made.sin() * 2, ready, other


def under_autocast(x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        made = (x @ x.T).relu() + 1
        kept = made[made > 1]
        made = (x @ x.T) * 2
    return made.float() + 1, kept.float().sum() * 2


def gathering(x: Tensor) -> Any:
    """In the manner of mixtures of experts: what all write to comes to require gradients by that."""
    result = torch.zeros_like(x)
    chosen = (x.detach() @ x.detach().T).argmax(-1) % 2
    for expert in range(2):
        rows, = torch.where(chosen == expert)
        result.index_add_(0, rows, (x[rows] * (expert + 1)).tanh() * 2)
    return (result + x).relu() * 2


def with_lists(x: Tensor) -> Any:
    first, second = (x * 2).tanh().chunk(2)
    squared = Squared.apply(first)
    return (squared + second).sin() * 2, torch.stack([squared, second]).sum(0)


def pooled(x: Tensor) -> Any:
    """As in graph networks: how many graphs there are is read out of the number of each node's."""
    of = (x.detach()[:, 0].abs() * 3).long()
    count = int(of.max()) + 1
    result = torch.zeros(count, 6).index_add(0, of, (x * 2).tanh())
    return (result * torch.ones(count, 1).cumsum(0)).sin() * 2


def with_lengths(x: Tensor) -> Any:
    """What a list holds is picked from it where it is needed."""
    first, second, third = (x.detach().abs()[:3, 0] * 3 + 1).long().clamp(max=5).tolist()
    return [(x[:, :first] * 2).tanh().mean(0), (x[:, :second] * 2).tanh().mean(0), (x[:, :third] * 2).tanh().mean(0)]


# How many pieces are compiled: without gradients, and with.
PIECES: dict[Callable[..., Any], tuple[int, int]] = {
    masked: (2, 2), selected: (2, 2), routed: (3, 3), repeated: (2, 2), of_autograd: (2, 2), of_a_library: (2, 2), aligned: (2, 2),
    with_writes_across: (2, 3), drawing: (2, 2), without_gradients: (4, 4), in_inference_mode: (5, 5), under_autocast: (3, 3),
    with_lists: (2, 2), gathering: (3, 4), writing_to_what_it_reads: (2, 2), pooled: (2, 2), with_lengths: (3, 3)}
# Captured for all sizes.
SIZED = [masked, selected, routed, repeated, of_autograd, aligned, drawing, without_gradients, in_inference_mode, under_autocast,
         pooled]


def tolerance(program: Callable[..., Any]) -> float:
    return 0.1 if program is under_autocast else 2e-5


def calls(rows: Callable[[int], int] = lambda number: 6, gradients: bool = False) -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    return [call(torch.randn(rows(number), 6, generator=generator, requires_grad=gradients)) for number in range(7)]


@pytest.mark.parametrize("program", PIECES)
@pytest.mark.parametrize("gradients", [False, True])
def test_what_is_between_is_compiled(program: Callable[..., Any], gradients: bool) -> None:
    check(lambda: program, *calls(gradients=gradients), compiled=PIECES[program][gradients],
          backward=gradients and program is not selected, tolerance=tolerance(program))


@pytest.mark.parametrize("program", SIZED)
@pytest.mark.parametrize("gradients", [False, True])
def test_sizes_that_change(program: Callable[..., Any], gradients: bool) -> None:
    """They come from outside as well as from values."""
    stats = helpers.check(lambda: program, *calls(lambda number: 4 + number, gradients), captures=2,
                          tolerance=tolerance(program), backward=gradients and program is not selected, **AT_ONCE)
    assert stats.compiled >= 2, stats


def test_a_number_read_for_which_a_piece_has_code_of_its_own() -> None:
    """Code for all sizes has none of 0."""
    def program(x: Tensor, chosen: Tensor) -> Tensor:
        count = int(chosen.sum())
        return ((x * 2).tanh()[:count] * 3).exp() + 1
    steps = [call(torch.randn(7, 6), torch.arange(7) < count) for count in (3, 4, 5, 0, 0, 0, 0, 1, 1, 1, 6)]
    stats = helpers.check(lambda: program, *steps, tolerance=1e-4, **AT_ONCE)
    assert not stats.compile_errors, stats


@pytest.mark.parametrize("sized", [False, True])
def test_modes_are_left_when_an_operation_raises(sized: bool) -> None:
    """On a hit, in the call that divides the graph, and later, with sizes that are numbers as well."""
    def program(x: Tensor, places: Tensor) -> Tensor:
        with torch.inference_mode():
            made = (x * 2).tanh() + x.shape[0]
            return (made[places] * 2).exp() + 1
    steps = [call(torch.randn(5 + sized * number, 3), torch.tensor([0, 9 if number in (1, 2, 4, 6) else 1])) for number in range(8)]
    helpers.check(lambda: program, *steps, captures=None, tolerance=2e-5, **AT_ONCE)


@pytest.mark.parametrize("gradients", [False, True])
def test_called_in_inference_mode_with_all_sizes(gradients: bool) -> None:
    """torch's dispatch of Python code began before its modes and ended within: no graph for all sizes could be traced."""
    def program(x: Tensor) -> Tensor:
        return (x * 2).tanh().softmax(-1) + x.shape[0]
    function = compile(program)
    with torch.inference_mode():
        for rows in (5, 7, 9, 5, 12):
            x = torch.randn(rows, 4, requires_grad=gradients)
            torch.testing.assert_close(function(x), program(x))
    tier, first = tiers(function)
    assert first.stage is Stage.WAITING     # not called again
    assert tier.stage is Stage.BY_SIZE and [what for what, _ in tier.each()] == ["for all sizes"], tier.describe()


def test_a_piece_that_cannot_be_compiled_runs_as_it_is() -> None:
    """Two of its inputs are one memory, and it writes to one of them."""
    stats = helpers.check(lambda: with_a_view_across, *calls(), tolerance=2e-5, **AT_ONCE)
    assert stats.compiled == 1 and stats.compile_errors == ["an input is written to that shares its memory with another one"]


def test_what_a_piece_is_given_is_compared() -> None:
    """An operation that no guard knows gives another dtype, another layout, or a tensor that requires gradients."""
    kinds = [lambda x: x, lambda x: x, lambda x: x, lambda x: x.double(), lambda x: x.T, lambda x: x, lambda x: x[:2],
             lambda x: x[:, :3], lambda x: x[:0], lambda x: x]

    def make() -> Any:
        state = {"calls": 0}

        class Changing(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                state["calls"] += 1
                return kinds[state["calls"] - 1](x).clone()
        return (lambda x: (Changing.apply(x * 2) * 3 + 1).sin()), None
    helpers.check(make, *[call(torch.randn(4, 4)) for _ in kinds], captures=None, fullgraph=False, tolerance=2e-5, **AT_ONCE)


def test_layouts_that_change() -> None:
    """A tensor without strides comes where one with strides did, of the same size and of another."""
    kinds: list[Callable[[Tensor], Tensor]] = [
        *[Tensor.clone] * 4, Tensor.to_sparse, lambda x: x[:2].to_sparse(), lambda x: x[:2].clone(),
        lambda x: x[:3].to_sparse(), Tensor.clone]
    operator = torch.ops.piecewise_tests.in_turn        # looked up for the first time, it would be a break

    def program(x: Tensor) -> Tensor:
        return (operator(x * 2) * 3).sin() * 2
    LIBRARY.impl("in_turn", lambda x: kind(x), "CompositeExplicitAutograd", allow_override=True)
    function = compile(program)
    for kind in kinds:
        x = torch.randn(4, 4)
        torch.testing.assert_close(function(x), program(x))
    tier, = tiers(function)
    assert tier.stage is Stage.PIECES


def test_calls_while_a_piece_is_compiled() -> None:
    """Another thread calls with sizes that the code which is being made is for, and the code that there is is not."""
    graph = fx.Graph()
    graph.output((graph.call_function(torch.mul, (graph.placeholder("x"), 2)),))
    seen: list[list[int]] = []

    def code(gm: fx.GraphModule, inputs: Sequence[Any]) -> _C.Switch:
        sizes = [int(inputs[0].shape[0])]
        if seen:                        # the sizes are any now
            other = threading.Thread(target=piece, args=(torch.ones(7),))
            other.start()
            other.join()
            sizes = list(range(100))
        seen.append(sizes)

        def run(x: Tensor) -> Any:
            assert x.shape[0] in sizes
            ran.append(x.shape[0])
            return gm.forward(x)
        return _C.Switch(run)
    ran: list[int] = []
    failed: list[Any] = []
    piece = Piece(fx.GraphModule({}, graph), 0, [0], code)
    with mock.patch.object(threading, "excepthook", failed.append):
        for size in (5, 5, 5, 6, 7):
            result, = piece(torch.ones(size))
            assert torch.equal(result, torch.full((size,), 2.0))
    assert not failed and len(seen) == 2 and ran == [5, 5, 6, 7]


def test_explain() -> None:
    function = compile(of_autograd)
    for _ in range(2):
        function(torch.ones(3, 3))
    reason = "the graph calls the autograd function Squared, which is Python code of the program's"
    assert f"the graph runs in pieces, which are compiled by themselves ({reason})" in capture.explain(function)
    apart, (tier,) = reason.removeprefix("the graph "), tiers(function)
    assert tier.uncompiled() == {apart: 1, "in pieces that were not called twice yet": 6}
    for _ in range(2):
        function(torch.ones(3, 3))
    assert tier.uncompiled() == {apart: 1} and tier.operations() == (6, 0, 1)
    text = capture.explain(function)
    assert "piece 1: runs compiled (1 kernel)" in text and "piece 2: runs compiled (" in text


def test_operations_that_leave_nothing_between_them() -> None:
    function = compile(lambda x: Squared.apply(Squared.apply(x)))
    for _ in range(3):
        function(torch.ones(3, 3))
    error, = capture.stats(function).compile_errors
    assert error == "the graph calls the autograd function Squared, which is Python code of the program's"


@pytest.mark.parametrize("program", [lambda x: torch.func.vmap(lambda row: (row * 2).sin().sum())(x) * 2 + 1,
                                     lambda x: ((y := (x * 2).tanh()).grad_fn is None, (y * 3 + 1).sin())])
def test_where_what_is_around_would_be_another(program: Callable[..., Any]) -> None:
    """What is within a transform, or looks at nodes of autograd, is not divided."""
    function = capture.compile(program, **AT_ONCE)
    x = torch.randn(4, 4, requires_grad=True)
    for _ in range(4):
        torch.testing.assert_close(function(x), program(x))
    assert not any(tier.stage is Stage.PIECES for tier in tiers(function))


def moving_average() -> Any:
    """In the manner of a momentum encoder."""
    torch.manual_seed(0)
    query, key = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def program(x: Tensor) -> Tensor:
        with torch.no_grad():
            for ours, theirs in zip(key.parameters(), query.parameters()):
                ours.data = ours.data * 0.9 + theirs.data * 0.1
        return (query(x).relu() * key(x)).tanh() * 2 + key.bias
    return program, [*query.parameters(), *key.parameters()]


def assigned_after_use() -> Any:
    """A backward pass takes what a leaf holds when it runs."""
    weight = torch.nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)))

    def program(x: Tensor) -> Any:
        before = (x @ weight).tanh() * 2
        view = weight.view(-1)
        weight.data = weight.data * 0.5 + 1
        return before + (x @ weight).sin() * weight, view, weight.data
    return program, [weight]


def of_another_shape() -> Any:
    """It is what it was before when the call ends."""
    held = torch.ones(6)

    def program(x: Tensor) -> Any:
        before = held.data
        held.data = x.detach()[:2] * 2 + 1
        found = (held * 2).exp() + 1
        held.data = before
        return found, (held * 2).sin() + 1, (x * 2).sin() + x
    return program, [held]


def clipped() -> Any:
    """In the manner of the first Wasserstein GAN."""
    torch.manual_seed(0)
    critic = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))

    def program(x: Tensor) -> Tensor:
        for parameter in critic.parameters():
            parameter.data = parameter.data.clamp(-0.1, 0.1)
        return critic(x).sigmoid().log().mean()
    return program, list(critic.parameters())


@pytest.mark.parametrize("make", [moving_average, assigned_after_use, of_another_shape, clipped])
@pytest.mark.parametrize("gradients", [False, True])
def test_memory_that_is_exchanged(make: Callable[[], Any], gradients: bool) -> None:
    stats = helpers.check(make, *calls(gradients=gradients), captures=None, tolerance=2e-5, backward=gradients, **AT_ONCE)
    assert stats.compiled and not stats.compile_errors, stats


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.Adamax])
def test_optimizers_on_lists_that_read_how_often_they_have_stepped(kind: Any) -> None:
    """Lists of numbers that are calculated from what was read: pieces take the numbers."""
    def weights_after(compiled: bool) -> list[Tensor]:
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(4, 3)) for _ in range(3)]
        optimizer = kind(weights, lr=0.05, foreach=True)
        step = capture.compile(lambda: optimizer.step(), **AT_ONCE) if compiled else optimizer.step
        for number in range(7):
            for weight in weights:
                weight.grad = weight.detach() * 0.3 + number
            step()
        if compiled:
            stats = capture.stats(step)
            assert stats.captures == 2 and stats.compiled >= 2 and not stats.compile_errors, stats
        return weights
    torch.testing.assert_close(weights_after(True), weights_after(False), rtol=1e-4, atol=1e-5)


def test_lists_of_numbers_that_change() -> None:
    def program(tensors: list[Tensor], first: float, second: float) -> Any:
        return torch._foreach_div(torch._foreach_mul(tensors, 2), [first * 0.5, first + second]), torch._foreach_add(
            tensors, [first, second])
    steps = [call([torch.arange(3.0), torch.ones(4) * number], 1.5 + number, 2.5 * number + 1) for number in range(7)]
    stats = helpers.check(lambda: program, *steps, captures=2, tolerance=2e-5, **AT_ONCE)
    assert stats.compiled == 1 and not stats.compile_errors, stats


def sparse_product() -> Any:
    places = torch.tensor([[0, 1, 2, 3, 5], [1, 0, 3, 2, 4]])
    graph = torch.sparse_coo_tensor(places, torch.arange(5.0) + 1, (6, 6))
    return lambda x: (torch.sparse.mm(graph, (x * 2).tanh() + 1) * 3).relu() + x


def sparse_results() -> Any:
    def program(x: Tensor) -> Any:
        dense = (x * 2).relu() + 1
        sparse = (dense * (dense > 2)).to_sparse()
        return (torch.sparse.sum(sparse, 0).to_dense() * 2).sin() + 1, torch.sparse.mm(sparse, dense).exp() * 2
    return program


def compressed() -> Any:
    graph = torch.eye(6).to_sparse_csr()
    return lambda x: ((graph @ ((x * 2).tanh() + 1)) * 3).relu() + x


def conjugates() -> Any:
    held = torch.randn(6, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(2)).conj()
    return lambda x: (((held * x).real * 2).tanh() + 1, (held.imag + x).sin() * 2)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("make", [sparse_product, sparse_results, compressed, conjugates])
@pytest.mark.parametrize("gradients", [False, True])
def test_tensors_that_no_compiled_code_takes(make: Callable[[], Any], gradients: bool) -> None:
    stats = helpers.check(make, *calls(gradients=gradients), tolerance=2e-5, backward=gradients, **AT_ONCE)
    assert stats.compiled and not stats.compile_errors, stats


@pytest.mark.parametrize("seed", range(12))
def test_programs_divided_at_random(seed: int) -> None:
    """As if operations drawn by lot could not be compiled."""
    program = random_programs.draw(Random(seed), mutations=True)
    with cuts.by_lot(seed):
        function = capture.compile(program.function, **AT_ONCE)
        for _ in range(5):
            theirs, ours = copy.deepcopy(program.inputs), copy.deepcopy(program.inputs)
            torch.testing.assert_close(function(*ours), program.function(*theirs), rtol=5e-2, atol=5e-2)
            torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-2)


def test_an_input_that_an_autograd_function_resizes() -> None:
    class Resizing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            y.resize_(8).fill_(1)
            return x * 1

    def program(x: Tensor, y: Tensor) -> Any:
        made = (x * 2).tanh()
        copied = Resizing.apply(made, y)
        return (y * 2).sin() + 1, copied * 2 + 1
    helpers.check(lambda: program, *[call(torch.randn(4), torch.randn(4)) for _ in range(7)], captures=None, fullgraph=False,
                  tolerance=2e-5, **AT_ONCE)
