"""The backward pass inside of the frame: gradients asked for, hooks, autograd functions, reentrant checkpoints, optimizers."""
from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import capture
from tests.helpers import call, check
from tests.programs import Programs

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
Y = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
LEAF = X.clone().requires_grad_()
plain, trained = Programs(), Programs()


def weights(*names, **more):
    return SimpleNamespace(**{name: nn.Parameter(torch.linspace(-1, 1, 3)) for name in names}, **more)


# --- autograd.grad

@plain.add(LEAF)
def a_gradient(x):
    y = (x ** 3).sum()
    g, = torch.autograd.grad(y, x)
    return g * 2, x.grad


@plain.add(LEAF)
def a_gradient_with_weights(x):
    y = x.sin()
    return torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y) * 2)[0]


@plain.add(LEAF, Y.clone().requires_grad_())
def gradients_of_some(x, y):
    loss = (x * 2).sum()
    return torch.autograd.grad(loss, [x, y], allow_unused=True)


@trained.add(LEAF)
def a_gradient_of_a_gradient(x):
    g, = torch.autograd.grad((x ** 3).sum(), x, create_graph=True)
    return ((g.norm(2, dim=1) - 1) ** 2).mean(), g


@trained.make(X, Y)
def a_gradient_penalty():
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def program(real, fake):
        mixed = (0.3 * real + 0.7 * fake).requires_grad_(True)
        score = critic(mixed)
        g = torch.autograd.grad(outputs=score, inputs=mixed, grad_outputs=torch.ones_like(score), create_graph=True,
                                retain_graph=True, only_inputs=True)[0]
        return ((g.norm(2, dim=1) - 1) ** 2).mean()
    return program, critic


@plain.make(X)
def an_inner_step():
    model = nn.Linear(3, 1)

    def program(x):
        loss = model(x).pow(2).mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        return [p - 0.1 * g for p, g in zip(model.parameters(), grads)]
    return program, model


@plain.add(X)
def a_gradient_of_what_is_made_inside(x):
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        energy = (x ** 2).sum()
    return -torch.autograd.grad(energy, x)[0], x.requires_grad


@plain.add(X)
def functions_of_autograd_functional(x):
    f = lambda t: (t ** 3).sum()
    return torch.autograd.functional.jacobian(lambda t: t * 2, x), torch.autograd.functional.hvp(f, x, torch.ones_like(x))


# --- backward

@plain.make(X, captures=2)          # without gradients, and with gradients to add to
def a_backward_pass():
    state = weights("w")

    def program(x):
        (state.w * x).sum().backward()
        return state.w.grad.clone()
    return program, state


@plain.make(X, captures=2)
def a_backward_pass_whose_gradients_are_not_read():
    state = weights("w", "unused")

    def program(x):
        loss = (state.w * x).sin().sum()
        torch.autograd.backward(loss)
        return loss.detach(), state.unused.grad
    return program, state


@plain.make(X)
def gradients_are_dropped_first():
    state = weights("w")

    def program(x):
        state.w.grad = None
        (state.w * x).sum().backward()
        return state.w.grad * 2, state.w.grad is None
    return program, state


@plain.make(X)
def two_backward_passes():
    state = weights("v", "w")

    def program(x):
        state.v.grad = state.w.grad = None
        loss = (state.w * x * state.v).sum()
        loss.backward(retain_graph=True)
        first = state.w.grad.clone()
        loss.backward()
        return first, state.w.grad, state.v.grad
    return program, state


@plain.add(X)
def a_backward_pass_to_what_is_made_inside(x):
    x = x.clone().requires_grad_()
    (x ** 2).sum().backward()
    return x.grad


@plain.add(LEAF)
def a_retained_gradient(x):
    y = x * 2
    y.retain_grad()
    (y ** 2).sum().backward()
    return y.grad, x.grad


@plain.make(X)
def a_step_of_training():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def program(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()
    program(X)
    return program, SimpleNamespace(model=model)


OPTIMIZERS = {
    "SGD_foreach": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "Adam_foreach": functools.partial(torch.optim.Adam, lr=0.1, foreach=True),
    "AdamW_foreach": functools.partial(torch.optim.AdamW, lr=0.1, foreach=True, weight_decay=0.1),
    "Adam_fused": functools.partial(torch.optim.Adam, lr=0.1, fused=True),
    "SGD_fused": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "RMSprop_foreach": functools.partial(torch.optim.RMSprop, lr=0.1, foreach=True),
    "Adagrad": functools.partial(torch.optim.Adagrad, lr=0.1),
    "Adam_amsgrad": functools.partial(torch.optim.Adam, lr=0.1, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_step_of_training(name: str) -> None:
    def make():
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        optimizer = OPTIMIZERS[name](model.parameters())

        def program(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()
        program(X)              # so that all state exists
        return program, SimpleNamespace(model=model, state=[optimizer.state[p] for p in model.parameters()])
    check(make, call(X), call(X), call(Y))


# --- hooks of tensors

@trained.add(LEAF)
def a_hook_on_a_result(x):
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y.sin()


@trained.add(LEAF)
def a_hook_on_what_is_returned(x):
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y


@trained.make(LEAF)
def a_hook_that_keeps_gradients():
    state = SimpleNamespace(seen=[])

    def program(x):
        y = x.exp()
        y.register_hook(lambda g: state.seen.append(g))
        return y.sum() * 2
    return program, state


@trained.add(LEAF)
def a_hook_that_uses_a_result(x):
    y = x.exp()
    scale = x.detach().sum()
    y.register_hook(lambda g: g * scale)
    return y * 3


@trained.make(LEAF)
def a_hook_with_a_number():
    factor = 3.0

    def program(x):
        y = x * factor
        y.register_hook(lambda g, f=factor: g * f)
        return y.cos()
    return program


@trained.add(LEAF)
def a_hook_is_removed(x):
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    handle.remove()
    return y.sin()


@trained.add(LEAF)
def a_hook_where_gradients_are_needed(x):
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return y ** 2


# --- what autograd tells

@trained.add(LEAF)
def nodes_of_autograd(x):
    y = x * 2
    return y.sin(), y.grad_fn is None, x.grad_fn is None, y.grad_fn.name(), type(y.grad_fn).__name__


@trained.add(LEAF)
def flags_of_autograd(x):
    y = x * 2
    return y, y.requires_grad, y.is_leaf, y.grad_fn is not None, x.is_leaf, x.retains_grad, y.detach().requires_grad


# --- autograd functions

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad * ctx.factor + 0 * x, None


@plain.add(LEAF)
def an_autograd_function_and_its_gradient(x):
    y = Scaled.apply(x, 3.0)
    return torch.autograd.grad(y.sum(), x)[0], y.detach()


@trained.make(LEAF)
def an_autograd_function_in_an_attribute():
    state = SimpleNamespace(apply=Scaled.apply)
    return lambda x: state.apply(x, 2.0) + Scaled.apply(x, 0.5), state


def test_an_autograd_function_that_is_passed_on_anew_is_a_hit() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            return x * factor * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None

    def program(x, function):
        return function(x, 3.0) + 1
    check(lambda: program, *(call(LEAF, cls.apply) for cls in (Scaled, Scaled, Doubled, Doubled, Scaled)), captures=2)


# --- reentrant checkpoints

@trained.make(LEAF)
def a_reentrant_checkpoint():
    linear = nn.Linear(3, 3)
    return lambda x: checkpoint(lambda t: linear(t).sin(), x, use_reentrant=True) * 2, linear


@trained.make(LEAF)
def a_reentrant_checkpoint_with_dropout():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    return lambda x: checkpoint(model, x, use_reentrant=True), model


@trained.make(LEAF)
def a_reentrant_checkpoint_of_several():
    linear = nn.Linear(3, 3)

    def body(x, scale, y):
        return linear(x) * scale, y + 1

    def program(x):
        a, b = checkpoint(body, x, 2.0, x * 3, use_reentrant=True)
        return a + b
    return program, linear


@plain.make(X)
def a_reentrant_checkpoint_without_gradients():
    linear = nn.Linear(3, 3)

    def program(x):
        y = checkpoint(lambda t: linear(t).sin(), x, use_reentrant=True)
        return y, y.requires_grad
    return program


test_values = plain.test()
test_gradients = trained.test(backward=True)


# --- what changes outside

def test_a_gradient_appears_before_the_backward_pass() -> None:
    """Gradients are added to what is there."""
    def make():
        state = weights("w")

        def program(x):
            (state.w * x).sum().backward()
            return state.w.grad * 2
        return program, state

    def drop(state):
        state.w.grad = None
    check(make, call(X), call(X), call(Y), drop, call(X), captures=None)


def test_a_hook_registered_later_runs_in_the_backward_pass() -> None:
    def make():
        state = weights("w", seen=[])

        def program(x):
            g, = torch.autograd.grad((state.w * x).sum(), state.w)
            return g + len(state.seen)
        return program, state

    def hook(state):
        state.w.register_hook(lambda g: state.seen.append(1))
    check(make, call(X), call(X), hook, call(X), call(X), captures=None, fullgraph=False)


def test_a_hook_changes_what_is_read_after_the_backward_pass() -> None:
    def make():
        state = weights("w", count=0)

        def seen(grad):
            state.count += 1
        state.w.register_hook(seen)

        def program(x):
            (state.w * x).sum().backward()
            return x + state.count
        return program, state
    check(make, call(X), call(X), call(Y), captures=None, fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "native", "aot_eager"])
@pytest.mark.parametrize("name", ["gradient", "backward", "hook", "seed", "vmap", "generator"])
def test_backends_leave_what_they_cannot_compile(name: str, backend: str) -> None:
    weight = nn.Parameter(torch.linspace(-1, 1, 3))

    def gradient(x):
        return torch.autograd.grad((weight * x).sin().sum(), weight)[0] * 2

    def backward(x):
        weight.grad = None
        (weight * x).sin().sum().backward()
        return weight.grad * 2

    def hook(x):
        y = weight * x
        y.register_hook(lambda g: g * 10)
        return y.sin()

    def seed(x):
        torch.manual_seed(3)
        return x + torch.rand(3)

    def vmap(x):
        return torch.vmap(lambda row: (row * weight).sum().sin())(x)

    def generator(x):
        return x + torch.rand(3, generator=torch.Generator().manual_seed(1))
    program = locals()[name]
    options = {"background": False} if backend == "native" else None
    compiled = capture.compile(program, fullgraph=True, backend=backend, options=options)
    for x in (X, X, Y, Y, X):
        grads = []
        for engine in (program, compiled):
            torch.manual_seed(0)
            y = engine(x)
            grads.append((y.detach(), torch.autograd.grad(y.sum(), weight)[0] if y.requires_grad else None, torch.get_rng_state()))
        torch.testing.assert_close(grads[1], grads[0])
    assert capture.stats(compiled).hits == 4
