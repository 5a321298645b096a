"""Transforms of torch.func, and functional calls of modules."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

import capture
from tests.helpers import call, check
from tests.programs import Programs

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
Y = torch.randn(2, 3, generator=torch.Generator().manual_seed(2))
LEAF = X.clone().requires_grad_()
plain, trained = Programs(), Programs()


# --- vmap

@trained.add(LEAF)
def mapped(x):
    return vmap(lambda row: row.sin().sum())(x)


@trained.add(LEAF, Y)
def mapped_over_two(x, y):
    return vmap(torch.dot)(x, y), vmap(lambda a, b: a * b.sum(), in_dims=(0, None))(x, y)


@plain.add(X)
def mapped_over_the_last_dimension(x):
    return vmap(lambda column: column * 2, in_dims=1, out_dims=1)(x)


@plain.add(X, Y)
def mapped_twice(x, y):
    return vmap(vmap(lambda a, b: a * b + 1))(x, y), torch.vmap(lambda a: torch.vmap(lambda b: (a * b).sum())(y))(x)


@plain.add(X)
def mapped_over_containers(x):
    return vmap(lambda d: {"sum": d["a"].sum(), "all": (d["a"], d["b"] * 2)})({"a": x, "b": x + 1})


@plain.add(X)
def mapped_random_numbers(x):
    return vmap(lambda row: row + torch.rand(3), randomness="different")(x)


@plain.make(X)
def a_mapped_function_from_outside():
    function = vmap(lambda row: row.tanh().sum())
    return lambda x: function(x) * 2


# --- grad

@plain.add(X)
def a_function_of_gradients(x):
    return grad(lambda t: (t ** 3).sum())(x)


@plain.add(X, Y)
def gradients_of_arguments(x, y):
    return grad(lambda a, b: (a * b).sin().sum(), argnums=(0, 1))(x, y), grad_and_value(lambda a: a.exp().sum())(x)


@plain.add(X)
def gradients_with_extras(x):
    return grad(lambda t: ((t ** 2).sum(), t * 2), has_aux=True)(x)


@plain.add(X)
def gradients_of_gradients(x):
    return grad(lambda t: grad(lambda s: (s ** 3).sum())(t).sum())(x)


@plain.make(X)
def gradients_per_sample():
    weight = torch.linspace(-1, 1, 3)
    return lambda x: vmap(grad(lambda w, row: (w * row).sin().sum()), in_dims=(None, 0))(weight, x)


@plain.add(X)
def a_vector_product(x):
    value, pullback = vjp(lambda t: t.sin(), x)
    return value, pullback(torch.ones_like(x))


@plain.add(X, Y)
def a_forward_product(x, y):
    return jvp(lambda t: t.sin() * 2, (x,), (y,))


@plain.add(X[0])
def jacobians(x):
    return jacrev(lambda t: t ** 2)(x), jacfwd(lambda t: t ** 2)(x)


@plain.add(X[0])
def a_hessian(x):
    return torch.func.hessian(lambda t: (t ** 3).sum())(x)


# --- functional calls

@trained.make(X)
def a_functional_call():
    model = nn.Linear(3, 3)

    def program(x):
        params = {name: p * 2 for name, p in model.named_parameters()}
        return functional_call(model, params, (x,)) + model(x)
    return program, model


@trained.make(X)
def a_functional_call_of_a_network():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    def program(x):
        state = {**dict(model.named_parameters()), **{k: v.clone() for k, v in model.named_buffers()}}
        return functional_call(model, state, (x,))
    return program, model


@plain.make(X)
def gradients_of_a_functional_call():
    model = nn.Linear(3, 1)

    def program(x):
        params = {name: p.detach() for name, p in model.named_parameters()}
        return grad(lambda p: functional_call(model, p, (x,)).pow(2).mean())(params)
    return program, model


@plain.make(X)
def an_ensemble():
    models = [nn.Linear(3, 2) for _ in range(3)]
    params, buffers = stack_module_state(models)
    base = models[0]
    return lambda x: vmap(lambda p, b: functional_call(base, (p, b), (x,)))(params, buffers), SimpleNamespace(params=params)


test_values = plain.test()
test_gradients = trained.test(backward=True)


def test_a_mapped_function_changes() -> None:
    def make():
        state = SimpleNamespace(factor=2.0)
        return (lambda x: vmap(lambda row: row * state.factor)(x)), state
    check(make, call(X), call(X), lambda state: setattr(state, "factor", 3.0), call(X), call(Y), captures=2)


def test_an_error_inside_of_a_mapped_function_leaves_no_level() -> None:
    """Whether an index is in range is known on a hit only."""
    def program(x, index):
        return vmap(lambda row: torch.index_select(row, 0, index))(x)
    good, bad = torch.tensor([0, 2]), torch.tensor([0, 7])
    check(lambda: program, call(X, good), call(X, good), call(X, bad), call(X, good), captures=None)
    assert torch._C._functorch.peek_interpreter_stack() is None


def test_an_error_beside_a_mapped_function_after_a_write() -> None:
    """… which the call cannot take back: the exception has the program's own traceback."""
    def make():
        state = SimpleNamespace(total=torch.zeros(2))

        def program(x, index):
            state.total.add_(1)
            return vmap(lambda row: row.sum())(x).index_select(0, index), state.total.clone()
        return program, state
    good, bad = torch.tensor([0]), torch.tensor([7])
    check(make, call(X, good), call(X, good), call(X, bad), call(X, good), captures=None)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_gradients_under_no_grad(backend: str) -> None:
    """The graph turns gradients on, and is written anew with them off to begin with."""
    def program(x):
        gradient = grad(lambda u: u.sin().sum())(x.T)
        return gradient.softmax(-1), gradient
    compiled = capture.compile(program, backend=backend)
    for gradients in (False, False, True, True):
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(compiled(X), program(X))
