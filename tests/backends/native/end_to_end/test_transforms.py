"""Kernels of graphs with transforms of torch.func, and of graphs that compute gradients: values, gradients of these, strides and
random numbers are eager mode's."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import capture
from tests.backends.native.end_to_end.autograd_functions import Swish
from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401
from tests.helpers import seed

KERNELS: dict[str, Any] = {"backend": "native", "options": {"background": False}}
torch.manual_seed(0)
WEIGHT = torch.randn(6, 6)
NET = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
PARAMETERS = dict(NET.named_parameters())
MODELS = [nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 2)) for _ in range(3)]
STACKED, BUFFERS = stack_module_state(MODELS)
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {}


def program(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    PROGRAMS[function.__name__] = function
    return function


def scalar(x: Tensor) -> Tensor:
    return torch.tanh(x @ WEIGHT).square().sum()


def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
    return functional_call(NET, parameters, (row,)).square().mean()


# --- transforms

@program
def mapped(x):
    return vmap(lambda row: torch.softmax(row @ WEIGHT, 0) * row)(x)


@program
def mapped_along_other_dims(x):
    return vmap(lambda a, b: (a * b.sum(), a - b), in_dims=(1, None), out_dims=(1, 0))(x, x[:, 0])


@program
def mapped_twice(x):
    return vmap(vmap(lambda a, b: a * b + a.exp(), in_dims=(0, None)), in_dims=(None, 0))(x[0], x[1])


@program
def mapped_in_chunks(x):
    return vmap(lambda row: row.cumsum(0) * 2, chunk_size=2)(x)


@program
def written_to_while_mapped(x):
    def body(row):
        made = row * 2
        made[1] = 0
        made.add_(1)
        return made
    return vmap(body)(x)


@program
def reshaped_while_mapped(x):
    return vmap(lambda row: (row * 2).unsqueeze_(0))(x)


@program
def indexed(x):
    return vmap(lambda row, place: row[place] * row)(x, torch.arange(4))


@program
def drawn_while_mapped(x):
    return vmap(lambda row: F.dropout(row, 0.5) + torch.rand_like(row), randomness="different")(x)


@program
def drawn_alike(x):
    return vmap(lambda row: F.dropout(row, 0.5) + torch.randn(6), randomness="same")(x)


@program
def gradient(x):
    return grad(scalar)(x) * 2


@program
def gradient_and_value(x):
    return grad_and_value(lambda t: (scalar(t), t * 2), has_aux=True)(x)


@program
def gradient_of_a_gradient(x):
    return grad(lambda t: grad(scalar)(t).square().sum())(x)


@program
def without_gradients_inside(x):
    def body(t):
        with torch.no_grad():
            kept = t.exp()
        return (t * kept + t.detach().sin()).sum()
    return grad(body)(x), x * 2


@program
def by_vector(x):
    value, pull = vjp(lambda t: torch.tanh(t @ WEIGHT), x)
    return value, pull(x)[0] + pull(torch.ones_like(x))[0]


@program
def forwards(x):
    return jvp(lambda t: torch.tanh(t @ WEIGHT) * t.sin(), (x,), (x.cos(),))


@program
def jacobians(x):
    row = x[0]
    return jacrev(lambda t: torch.tanh(t @ WEIGHT))(row), jacfwd(lambda t: torch.tanh(t @ WEIGHT))(row), hessian(scalar)(row)


@program
def of_each_sample(x):
    return vmap(grad(loss), in_dims=(None, 0))(PARAMETERS, x)


@program
def ensemble(x):
    return vmap(lambda parameters, buffers: functional_call(MODELS[0], (parameters, buffers), (x,)))(STACKED, BUFFERS)


@program
def one_after_another(x):
    y = vmap(lambda row: row * row.sum())(x).sin()
    return grad(scalar)(y) + x, y


@program
def with_a_pass_inside(x):
    (inner,) = torch.autograd.grad(scalar(x * 1.5), x, create_graph=True)
    return vmap(lambda row: row.sin())(inner)


# --- gradients that a graph computes

@program
def penalty(x):
    (found,) = torch.autograd.grad(NET(x).sum(), x, create_graph=True)
    return (found.norm(2, dim=1) - 1).square().mean()


@program
def equation(x):
    points = x.detach().clone().requires_grad_()
    value = NET(points)
    (first,) = torch.autograd.grad(value, points, torch.ones_like(value), create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)
    return (second[:, 0] + first[:, 1] * value[:, 0]).square().mean()


@program
def of_one_after_another(x):
    y = x * 3
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    points = x.detach().sin().requires_grad_()
    (second,) = torch.autograd.grad(NET(points).sum(), points, create_graph=True)
    return first.sum() * second


@program
def constant(x):
    y = x * 2
    (found,) = torch.autograd.grad((y * y.sin()).sum(), y)
    return found * y, found


@program
def several(x):
    y, z = x.exp(), x.sin()
    found = torch.autograd.grad([(y * z).sum(), z.sum() * 2], [y, z, x], retain_graph=True)
    more = torch.autograd.grad(y.sum(), [x, z], allow_unused=True)
    return *found, more[0], more[1] is None


@program
def zeros_for_what_is_not_used(x):
    y, z = x * 2, x * 3
    return torch.autograd.grad(y.square().sum(), [y, z], materialize_grads=True)


@program
def of_parameters(x):
    return torch.autograd.grad(NET(x).sum(), tuple(NET.parameters()), create_graph=True)


@program
def partly_without_gradients(x):
    with torch.no_grad():
        scale = x.abs().mean()
    (found,) = torch.autograd.grad((x * scale).sin().sum(), x, create_graph=True)
    return found * scale


@program
def written_to(x):
    y = x * 2
    y += x.sin()
    (found,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return found, y


@program
def drawn(x):
    (found,) = torch.autograd.grad(F.dropout(x.exp(), 0.5).sum(), x, create_graph=True)
    return found * torch.rand_like(found)


def outcome(function: Callable[[Tensor], Any], rows: int, requires_grad: bool) -> list[Any]:
    """What a call leaves: results, gradients of inputs and parameters, the next random number."""
    x = torch.linspace(-1, 2, rows * 6).reshape(rows, 6).requires_grad_(requires_grad)
    NET.zero_grad()
    seed(3)
    results = pytree.tree_leaves(function(x))
    tensors = [result for result in results if isinstance(result, Tensor)]
    wanted = [tensor.double().square().sum() for tensor in tensors if tensor.requires_grad]
    leaves = [leaf for leaf in (x, *NET.parameters(), *STACKED.values()) if leaf.requires_grad]
    gradients = torch.autograd.grad(sum(wanted), leaves, allow_unused=True) if wanted else ()
    facts = [(tensor.dtype, tensor.stride(), tensor.requires_grad, tensor.is_leaf, tensor._is_view())
             for tensor in tensors]
    return [[result for result in results if not isinstance(result, Tensor)], facts, torch.rand(1), x, *tensors, *gradients]


def same(ours: list[Any], theirs: list[Any]) -> None:
    assert ours[:2] == theirs[:2]
    assert [one is None for one in ours] == [one is None for one in theirs]
    for one, other in zip(ours[2:], theirs[2:], strict=True):
        if one is not None:
            torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-5, atol=1e-5)


def needs_gradients(name: str) -> bool:
    """Whether a program raises where its input requires none."""
    after = list(PROGRAMS).index("with_a_pass_inside")
    return list(PROGRAMS).index(name) >= after and name not in ("equation", "of_parameters")


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, requires_grad: bool) -> None:
    if needs_gradients(name) and not requires_grad:
        return
    function = PROGRAMS[name]
    expected = outcome(function, 4, requires_grad)         # what torch imports at first is there
    compiled = capture.compile(function, **KERNELS)
    for _ in range(3):
        same(outcome(compiled, 4, requires_grad), expected)
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits, stats.breaks, stats.compiled) == (1, 2, 0, 1), stats


@pytest.mark.parametrize("name", ["mapped", "of_each_sample", "gradient", "forwards", "equation", "penalty"])
def test_sizes_that_change(name: str) -> None:
    function = PROGRAMS[name]
    compiled = capture.compile(function, **KERNELS)
    for rows in (4, 7, 5, 7, 9, 5, 9):
        expected = outcome(function, rows, True)
        same(outcome(compiled, rows, True), expected)
    stats = capture.stats(compiled)
    assert stats.captures <= 2 and stats.compiled and not stats.compile_errors, stats


@pytest.mark.parametrize("name", ["mapped", "gradient", "of_each_sample", "forwards", "jacobians"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_around(name: str, mode: Callable[[], Any]) -> None:
    """Results of gradients are no inference tensors in inference mode."""
    compiled = capture.compile(PROGRAMS[name], **KERNELS)
    with mode():
        x = torch.linspace(-1, 2, 24).reshape(4, 6)
        expected = pytree.tree_leaves(PROGRAMS[name](x))
        for _ in range(3):
            for one, other in zip(pytree.tree_leaves(compiled(x)), expected, strict=True):
                assert (one.is_inference(), one.requires_grad) == (other.is_inference(), other.requires_grad)
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert capture.stats(compiled).compiled == (name == "mapped" or mode is torch.no_grad)


def returned_leaf(x):
    own = x.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(own.exp().sum(), own, create_graph=True)
    return found, own


def drawn_as_memory_lies(x):
    y = (x * 2).t()
    return torch.autograd.grad(F.dropout(y, 0.5).sum(), x, create_graph=True)


def fails_where_traced(x):
    return vmap(lambda row: row[row.sum().long() * 0 + 1:].sum() if False else torch.linalg.inv(row.outer(row) + torch.eye(6)))(x)


def hessian_of_each_sample(x):
    return vmap(hessian(lambda t: (t * WEIGHT[0]).sin().sum()))(x)


LEFT = {returned_leaf: "a tensor of its own that requires gradients",
        hessian_of_each_sample: "a tensor that the graph does not make", drawn_as_memory_lies: "drawn as memory lies",
        fails_where_traced: "side effects"}


@pytest.mark.parametrize("function", LEFT, ids=lambda function: function.__name__)
def test_what_is_left_to_eager_mode(function: Callable[[Tensor], Any]) -> None:
    """It says why, and the compiling process compiles the next graph, in no level."""
    expected = outcome(function, 4, True)
    compiled = capture.compile(function, **KERNELS)
    for _ in range(3):
        same(outcome(compiled, 4, True), expected)
    assert LEFT[function] in str(capture.stats(compiled).compile_errors) + capture.explain(compiled)
    test_programs("penalty", True)


def loss_and_gradient(x):
    total = (x @ WEIGHT).square().mean()
    return total, *torch.autograd.grad(total, x)


def view_and_gradient(x):
    y = x.exp()
    view = y.view(-1)
    return view, *torch.autograd.grad(y.sum(), x), x * 3


def gradient_that_was_used_up(x):
    (first,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
    return first, *torch.autograd.grad(first.sin().sum(), x)


@pytest.mark.parametrize("function", [loss_and_gradient, view_and_gradient, gradient_that_was_used_up])
def test_results_whose_history_was_freed(function: Callable[[Tensor], Any]) -> None:
    """A backward pass from what gradients were computed of raises, and one from other results does not."""
    compiled = capture.compile(function, **KERNELS)
    for rows in (4, 4, 5, 4, 6):
        x = torch.randn(rows, 6, requires_grad=True)
        spent, *ours = compiled(x)
        theirs = function(x)
        assert (spent.requires_grad, spent._is_view()) == (True, theirs[0]._is_view())
        torch.testing.assert_close((spent, *ours), theirs)
        with pytest.raises(RuntimeError, match="second time"):
            spent.sum().backward()
        assert x.grad is None
        if len(ours) > 1:
            ours[1].sum().backward()
            torch.testing.assert_close(x.grad, torch.full_like(x, 3))
    stats = capture.stats(compiled)
    assert stats.compiled and not stats.breaks and not stats.compile_errors, stats


def used_further(x):
    y = x.exp()
    found = torch.autograd.grad(y.sum(), x)
    return y.sin(), *found


def freed_in_part(x):
    y = x.exp()
    found = torch.autograd.grad((y * 2).sin().sum(), y)
    return y * 3, (y * 2).sum(), *found


def partly_freed_result(x):
    y = x.exp()
    z = y.sin()
    return z, *torch.autograd.grad(z.sum(), y)


@pytest.mark.parametrize("function", [used_further, freed_in_part, partly_freed_result])
def test_operations_on_freed_history(function: Callable[[Tensor], Any]) -> None:
    """Passes raise as eager mode's do, or do not."""
    compiled = capture.compile(function, **KERNELS)
    for _ in range(3):
        outcomes = []
        for run in (function, compiled):
            x = torch.ones(4, 6, requires_grad=True)
            result, *_ = run(x)
            try:
                result.sum().backward()
                outcomes.append(x.grad)
            except RuntimeError as error:
                outcomes.append(str(error))
        assert isinstance(outcomes[1], str) == isinstance(outcomes[0], str)
        assert outcomes[1] == outcomes[0] if isinstance(outcomes[0], str) else torch.equal(*outcomes)


@pytest.mark.parametrize("name", ["gradient", "gradient_of_a_gradient", "by_vector", "jacobians", "of_each_sample"])
def test_of_inputs_with_a_history(name: str) -> None:
    """The passes of transforms end at the inputs of their levels: what these were computed from they do not come to."""
    function = PROGRAMS[name]

    def run(called: Callable[[Tensor], Any]) -> list[Any]:
        x = torch.linspace(-1, 2, 24).reshape(4, 6).requires_grad_()
        hooked: list[Tensor] = []
        y = x * 1.5
        y.register_hook(hooked.append)
        results = [one for one in pytree.tree_leaves(called(y)) if one.requires_grad]
        assert not hooked
        return [*results, torch.autograd.grad(sum(one.square().sum() for one in results), x)[0], *hooked]
    expected = run(function)
    compiled = capture.compile(function, **KERNELS)
    for _ in range(3):
        torch.testing.assert_close(run(compiled), expected, rtol=1e-5, atol=1e-5)
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits, stats.breaks, stats.compiled) == (1, 2, 0, 1), stats


def test_batches_of_gradients() -> None:
    """Captured for each size: results have one more dimension than what they are for."""
    def function(x):
        y = x.sin() * x
        many = torch.stack([torch.ones_like(y), y.detach()])
        return torch.autograd.grad(y, x, many, is_grads_batched=True)
    compiled = capture.compile(function, **KERNELS)
    for rows in (4, 4, 5, 5):
        same(outcome(compiled, rows, True), outcome(function, rows, True))
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits, stats.breaks) == (2, 2, 0), stats


def test_autograd_functions_beside_gradients() -> None:
    """The trace is cut at a pass that may come to one: both graphs are compiled."""
    def function(x):
        (found,) = torch.autograd.grad(Swish.apply(x.sin() * 2).exp().sum(), x, create_graph=True)
        return found.cos() * 2 + 1
    expected = outcome(function, 4, True)
    compiled = capture.compile(function, **KERNELS)
    for _ in range(3):
        same(outcome(compiled, 4, True), expected)
    stats = capture.stats(compiled)
    assert stats.breaks and stats.compiled, stats


def test_whole_steps() -> None:
    """A training step with a gradient penalty, its backward pass and the optimizer inside."""
    def trained(wrap: Callable[[Any], Any]) -> list[Tensor]:
        seed(5)
        critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9)

        def step(real, fake):
            optimizer.zero_grad()
            mixed = (real * 0.3 + fake * 0.7).requires_grad_()
            (found,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
            total = critic(fake).mean() - critic(real).mean() + 10 * (found.norm(2, 1) - 1).square().mean()
            total.backward()
            optimizer.step()
            return total.detach()
        stepping = wrap(step)
        values = [stepping(torch.randn(5, 6), torch.randn(5, 6)) for _ in range(6)]
        if stepping is not step:
            stats = capture.stats(stepping)
            assert stats.hits >= 3 and not stats.breaks and not stats.compile_errors and stats.compiled, stats
        return [*values, *critic.parameters(), *(parameter.grad for parameter in critic.parameters())]
    for ours, theirs in zip(trained(lambda step: capture.compile(step, **KERNELS)), trained(lambda step: step), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"backend": "eager"}, KERNELS], ids=["eager", "native"])
def test_hits_that_raise_within_forward_mode(options: dict[str, Any]) -> None:
    """They leave the level that the graph has entered, of which there is one in a process: others can enter it."""
    def function(x):
        return vmap(jacfwd(lambda t: t.sin() * t.sum()))(x)
    compiled = capture.compile(function, **options)
    for rows in (2, 3):
        compiled(torch.rand(rows, 6))
    with pytest.raises(IndexError) as expected:
        function(torch.rand(0, 6))
    for _ in range(2):
        with pytest.raises(IndexError) as raised:
            compiled(torch.rand(0, 6))
        assert str(raised.value) == str(expected.value)
        function(torch.rand(2, 6))
