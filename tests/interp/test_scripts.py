"""TorchScript: scripted functions are operations; scripted modules run as they are."""
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from tests.helpers import call, check


@torch.jit.script
def scripted(x: torch.Tensor, n: int, scale: float = 2.0):
    first, second = x[:n], x[n:]
    if n > 1:
        first = first * scale
    return first, second.relu(), [x, first]


@torch.jit.script
def scripted_in_place(x: torch.Tensor):
    x.mul_(2)
    return x


@torch.jit.script
def scripted_twice(x: torch.Tensor):
    return x + x


@torch.jit.script
def scripted_decision(x: torch.Tensor):
    if bool(x.sum() > 0):
        return x[:1]
    return x


@torch.jit.script
def scripted_shape(x: torch.Tensor):
    return x.nonzero()


def test_a_scripted_function_is_one_operation() -> None:
    def make():
        return lambda x, n: [t * 2 for t in scripted(x.sin(), n, scale=3.0)[:2]]
    check(make, call(torch.ones(3, requires_grad=True), 1), call(torch.zeros(3, requires_grad=True), 1), captures=1, hits=1, backward=True)
    check(make, call(torch.ones(3), 1), call(torch.ones(3), 2), call(torch.zeros(3), 2), captures=2, hits=1)


def test_what_a_scripted_function_returns_may_be_its_argument() -> None:
    check(lambda: lambda x: scripted(x, 2), call(torch.ones(3)), call(torch.zeros(3)))


def test_a_scripted_function_may_write_to_its_arguments() -> None:
    def make():
        def program(x, y):
            z = x + 1
            return scripted_in_place(x) is x, scripted_in_place(z) + y, x * y
        return program
    check(make, call(torch.ones(3), torch.ones(3)), call(torch.ones(3), torch.zeros(3)))
    tensor = torch.ones(3)                      # the two may be one
    check(make, call(torch.ones(3), torch.ones(3)), call(tensor, tensor), call(tensor, tensor), captures=2, hits=1)


@pytest.mark.parametrize("function", [scripted_decision, scripted_shape])
def test_a_scripted_function_that_asks_for_values_breaks(function) -> None:
    check(lambda: lambda x: function(x * 2) + 1, call(torch.ones(3)), call(-torch.ones(3)), call(torch.zeros(3)), captures=None,
          fullgraph=False)


def test_another_scripted_function_is_another_capture() -> None:
    def make():
        state = SimpleNamespace(f=scripted_in_place)
        return lambda x: state.f(x.clone()), state
    check(make, call(torch.ones(3)), call(torch.zeros(3)), lambda s: setattr(s, "f", scripted_twice),
          call(-torch.ones(3)), call(torch.ones(3)), captures=2, hits=2)


class Scripted(torch.jit.ScriptModule):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @torch.jit.script_method
    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize("make", [Scripted, lambda: torch.jit.script(nn.Linear(3, 3)),
                                  lambda: torch.jit.trace(nn.Linear(3, 3), torch.ones(2, 3))])
def test_a_scripted_module_runs_as_it_is(make: Callable[[], nn.Module]) -> None:
    module = make()
    compiled = capture.compile(module, backend="eager")
    assert isinstance(compiled, torch.jit.ScriptModule)
    for _ in range(3):
        x = torch.randn(2, 3)
        assert torch.equal(compiled(x), module(x))
    with torch.no_grad():
        next(compiled.parameters()).zero_()
    assert torch.equal(compiled(x), module(x))
    assert not compiled.eval().training and not module.training
    assert capture.stats(compiled).bailouts == 0


def test_a_scripted_module_inside_of_a_model_breaks_locally() -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scripted = torch.jit.script(nn.Linear(3, 3))

        def forward(self, x):
            return self.scripted(x.relu()) * 2
    check(Net, call(torch.ones(2, 3)), call(torch.randn(2, 3)), captures=None, fullgraph=False)
