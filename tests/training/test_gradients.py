"""Gradients of what was captured: leaves, views, in-place changes, autograd functions, activation checkpoints."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import capture
from tests.helpers import call, check
from tests.programs import Programs

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
Y = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
LEAF = X.clone().requires_grad_()
programs = Programs()


@programs.add(LEAF, Y)
def a_product(x, y):
    return (x * y).tanh() @ x.T


@programs.make(X)
def gradients_of_a_captured_leaf():
    weight = torch.ones(3, requires_grad=True)
    return lambda x: x * weight * weight, SimpleNamespace(weight=weight)


@programs.add(LEAF)
def requires_grad_inside(x):
    y = torch.ones(3, requires_grad=True)
    return x * y


@programs.make(X)
def in_place_on_an_intermediate():
    linear = nn.Linear(3, 3)

    def program(x):
        h = linear(x)
        h[:, 0] = 0
        h.relu_()
        return h
    return program, linear


@programs.add(LEAF)
def a_branch_without_gradients(x):
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale, scale


@programs.add(LEAF)
def the_input_and_a_view_returned(x):
    return x, x * 2, x[0] * 3


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad * 2 * x + 1         # not the true gradient: ours must be used


class ScaledPair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, y, flag=True):
        ctx.factor, ctx.flag = factor, flag
        ctx.mark_non_differentiable(mask := x > 0)
        return x * factor, y + factor if flag else y * 1, mask

    @staticmethod
    def backward(ctx, grad_x, grad_y, _):
        return grad_x * ctx.factor * 10, None, grad_y * 100 if ctx.flag else None, None


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, grad):
        return grad.reshape(ctx.shape)


@programs.add(LEAF)
def an_autograd_function(x):
    return Square.apply(x) + Square.apply(x * 2)


@programs.add(LEAF, Y.clone().requires_grad_())
def an_autograd_function_with_options(x, y):
    a, b, mask = ScaledPair.apply(x, 2.5, y)
    c, d, _ = ScaledPair.apply(x, 3, y, False)
    return a, b, c, d * mask


@programs.add(LEAF)
def an_autograd_function_with_setup_context(x):
    return StraightThrough.apply(x * 3)


@programs.add(X, backward=False)
def an_autograd_function_without_gradients(x):
    return Square.apply(x)


# --- checkpoints

@programs.make(LEAF)
def a_checkpoint():
    first, second = nn.Linear(3, 4), nn.Linear(4, 3)

    def body(x, scale):
        return second(torch.sin(first(x))) * scale

    def program(x):
        return checkpoint(body, x, 2.0, use_reentrant=False) + checkpoint(body, x, scale=3.0, use_reentrant=False)
    return program, nn.ModuleList([first, second])


@programs.make(LEAF)
def a_checkpoint_with_dropout():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 3))
    return lambda x: checkpoint(model, x, use_reentrant=False), model


@programs.make(LEAF)
def checkpointed_segments():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh())
    return lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False), model


@programs.make(LEAF)
def nested_checkpoints():
    linear = nn.Linear(3, 3)

    def inner(x):
        return linear(x).sin()

    def outer(x):
        return checkpoint(inner, x * 2, use_reentrant=False).cos()
    return lambda x: checkpoint(outer, x, use_reentrant=False), linear


class Counted(TorchDispatchMode):
    """How often an operation ran."""

    def __init__(self, operation) -> None:
        super().__init__()
        self.operation, self.count = operation, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is self.operation
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("native", [False, True], ids=["eager", "native"])
def test_a_checkpoint_of_a_compiled_module(native: bool) -> None:
    def gradients(compile):
        torch.manual_seed(0)
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Dropout(0.2)) for _ in range(3))
        compiled, found = [compile(block) for block in blocks], []
        for _ in range(4):
            h = X
            for block in compiled:
                h = checkpoint(block, h, use_reentrant=False)
            h.square().sum().backward()
            found += [p.grad.clone() for p in blocks.parameters()]
        with torch.autograd.graph.save_on_cpu():
            found.append(compiled[0](X).detach())
        return found
    arguments = {"backend": "native", "options": {"background": False}} if native else {"backend": "eager"}
    captured, eager = gradients(lambda block: capture.compile(block, **arguments)), gradients(lambda block: block)
    for ours, theirs in zip(captured, eager, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("checkpointed", [True, False], ids=["checkpointed", "plain"])
def test_a_hit_recomputes_the_activations_of_a_checkpoint(checkpointed: bool) -> None:
    def body(x):
        return torch.sin(x * 2).cos()

    @capture.compile(fullgraph=True)
    def program(x):
        return checkpoint(body, x, use_reentrant=False) if checkpointed else body(x)
    for _ in range(3):
        x = LEAF.detach().clone().requires_grad_()
        y = program(x)
        with Counted(torch.ops.aten.sin.default) as counted:
            y.sum().backward()
        # the derivative of cos needs a sine of its own
        assert counted.count == (2 if checkpointed else 1)
        torch.testing.assert_close(x.grad, -torch.sin(torch.sin(2 * X)) * torch.cos(2 * X) * 2)
    assert (capture.stats(program).captures, capture.stats(program).hits) == (1, 2)


test_gradients = programs.test(backward=True)


class Noted(torch.autograd.Function):
    """Doubles, and notes in a list of the program's that it does."""

    @staticmethod
    def forward(ctx, x):
        NOTES.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        NOTES.append("backward")
        if FAILING:
            raise ValueError("no gradient")
        return grad * 2


NOTES: list[str] = []
FAILING: list[bool] = []


def test_a_pass_from_what_was_computed_before_a_break_and_is_gone() -> None:
    """The trace behind the break knows no leaf: what their gradients are afterwards it would take for what they were before."""
    def make():
        weight = torch.ones(3, requires_grad=True)
        weight.register_hook(lambda grad: state.hooked.append(1))

        def f(x):
            (Noted.apply(weight) * x).sum().backward()
            grad, weight.grad = weight.grad, None
            return grad * len(state.hooked)
        state = SimpleNamespace(hooked=[], weight=weight, notes=NOTES)
        NOTES.clear()
        return f, state
    stats = check(make, *[call(X)] * 4, captures=None, fullgraph=False)
    assert stats.captures <= 4


def test_the_program_takes_exceptions_of_a_pass() -> None:
    def make():
        def f(x):
            leaf = x.detach().requires_grad_()
            try:
                Noted.apply(leaf).sum().backward()
            except ValueError as error:
                return x + 1, str(error)
            return x + 1, leaf.grad
        NOTES.clear()
        FAILING.clear()
        return f, SimpleNamespace(notes=NOTES)
    check(make, call(X), call(X), lambda state: FAILING.append(True), call(X), call(X), lambda state: FAILING.clear(), call(X),
          captures=None, fullgraph=False)


def test_a_hook_refers_to_a_number_that_often_changes() -> None:
    """What the trace would have to know of hooks, to hold the pass, no trace can hold."""
    def f(x, n):
        leaf, seen = nn.Parameter(x.clone()), []
        leaf.register_post_accumulate_grad_hook(lambda _: seen.append(n))
        (leaf * x).sum().backward()
        return leaf.grad, seen
    check(lambda: f, *(call(X, n) for n in (1., 1., 2., 2., 3., 4.)), captures=None, fullgraph=False)


@pytest.mark.parametrize("run", [torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad])
def test_a_pass_is_given_what_it_does_not_take(run) -> None:
    def f(x):
        try:
            run((x * 2).sum(), unknown=1)
        except TypeError as error:
            return x + 1, str(error)
    check(lambda: f, *[call(LEAF)] * 3, captures=None, fullgraph=False)
