"""Tensors that are given another layout, memory or history after a call that a hit makes when the graph has run: it sees them as
they were in eager mode."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.helpers import call, call_with, check

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
LEAF = X.clone().requires_grad_()

CHANGES = {
    "requires gradients": lambda v: v.requires_grad_(),
    "is assigned to require gradients": lambda v: setattr(v, "requires_grad", True),
    "has other data": lambda v: setattr(v, "data", torch.zeros(2, 3)),
    "has another storage": lambda v: v.set_(torch.zeros(2, 3)),
    "is transposed": lambda v: v.t_(),
    "has another dimension": lambda v: v.unsqueeze_(0),
    "is smaller": lambda v: v.resize_(1, 2),
}


def of_tensor(v, change):
    array = v.numpy()
    change(v)
    return array.mean(0), v


def of_row(v, change):
    array, row = v[0].numpy(), v[1]
    change(v)
    return array.sum(), row, v


def of_tensor_and_row(v, change):
    row = v[0]
    array, other = v.numpy(), row.numpy()
    change(v)
    return array.sum() + other.sum(), v


@pytest.mark.parametrize("program", [of_tensor, of_row, of_tensor_and_row], ids=lambda program: program.__name__)
@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("made", [True, False], ids=["made", "from outside"])
def test_an_array(program, change, made) -> None:
    def make():
        return lambda x: program(x * 2 if made else x, CHANGES[change])
    check(make, call(X), call(X + 1), call(X - 1), call(X * 3), captures=None, fullgraph=False)


def a_leaf_that_no_longer_requires_gradients(x):
    seen = []
    x.register_hook(seen.append)
    x.requires_grad_(False)
    return x, seen


def a_result_that_is_detached(x):
    y = x * 2
    y.register_hook(lambda g: g * 2)
    return y.detach_()


def a_hook_of_what_is_written_to(x):
    seen = []
    y = x.sin()
    y.register_hook(seen.append)
    y.mul_(2)
    y.sum().backward()
    return y, seen, x.grad


def a_leaf_that_is_written_to(x):
    seen = []
    x.register_hook(seen.append)
    with torch.no_grad():
        x.mul_(2)
    (x * 3).sum().backward()
    return x, seen, x.grad


@pytest.mark.parametrize("program", [a_leaf_that_no_longer_requires_gradients, a_result_that_is_detached,
                                     a_hook_of_what_is_written_to, a_leaf_that_is_written_to], ids=lambda program: program.__name__)
def test_a_hook(program) -> None:
    check(lambda: program, call(LEAF), call(LEAF), call(LEAF), captures=None, fullgraph=False)


def test_a_hook_of_a_result_from_outside() -> None:
    """It is called with the gradient of what the tensor was before it was written to."""
    def make():
        state = SimpleNamespace(seen=[], leaf=LEAF.detach().clone().requires_grad_())

        def program(x):
            x.register_hook(state.seen.append)
            x.mul_(2)
            x.sum().backward()
            return x
        return program, state
    calls = [call_with(lambda state: (state.leaf.sin(),))] * 3
    check(make, *calls, captures=None, fullgraph=False)
