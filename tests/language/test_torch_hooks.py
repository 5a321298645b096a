"""Hooks of autograd's nodes, and of modules for the backward pass, which are made of these, in one graph."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from tests.helpers import call, check
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
LEAF = X.clone().requires_grad_()
programs = Programs()


@programs.add(LEAF)
def a_hook_of_a_node(x):
    y = x * 2
    y.grad_fn.register_hook(lambda inputs, outputs: tuple(None if g is None else g * 3 for g in inputs))
    return y.sin()


@programs.add(LEAF)
def a_hook_before_a_node(x):
    y = x * 2
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 5,))
    return y.sin(), y.grad_fn.name()


@programs.add(LEAF)
def a_hook_that_is_removed(x):
    y = x * 2
    kept, removed = y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 3, *inputs[1:])), y.grad_fn.register_hook(
        lambda inputs, outputs: (inputs[0] * 7, *inputs[1:]))
    removed.remove()
    return y.sin()


@programs.add(LEAF)
def a_hook_of_a_node_that_is_written_over(x):
    y = x * 2
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 3, *inputs[1:]))
    y.add_(1)
    return y.sin()


@programs.make(LEAF)
def a_hook_that_tells():
    state = SimpleNamespace(seen=[], factor=2.0)

    def program(x):
        y, scale = x.exp(), x.detach().sum()
        y.grad_fn.register_hook(lambda inputs, outputs: state.seen.append((inputs[0] * scale, outputs)))
        return y.sum() * state.factor
    return program, state


test_hooks_of_nodes = programs.test(backward=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.seen, self.scale = [], 2.0

    def forward(self, x):
        return self.last(torch.tanh(self.first(x))) * 3

    def scaled(self, module, inputs, outputs):
        self.seen.append([None if g is None else g.clone() for g in (*inputs, *outputs)])
        return tuple(None if g is None else g * self.scale for g in inputs)

    def scaled_before(self, module, outputs):
        self.seen.append(outputs[0].clone())
        return (outputs[0] * self.scale,)


HOOKS = {
    "full": lambda net: net.last.register_full_backward_hook(net.scaled),
    "full, of the first": lambda net: net.first.register_full_backward_hook(net.scaled),
    "full, of the model": lambda net: net.register_full_backward_hook(net.scaled),
    "before": lambda net: net.last.register_full_backward_pre_hook(net.scaled_before),
    "both": lambda net: (net.last.register_full_backward_pre_hook(net.scaled_before),
                         net.first.register_full_backward_hook(net.scaled))[1],
    "of old": lambda net: net.last.register_backward_hook(net.scaled),
}


@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
def test_hooks_of_modules(register) -> None:
    """… registered before the first call and between calls, and what they read changes."""
    def make():
        torch.manual_seed(0)
        net = Net()
        return net, net

    def remove(net):
        net.handle.remove()

    def add(net):
        net.handle = register(net)

    def change(net):
        net.scale = 4.0
    steps = call(LEAF), change, call(LEAF), call(LEAF)
    def make_with_hooks():
        net, _ = make()
        add(net)
        return net, net
    check(make_with_hooks, *steps, remove, *steps[2:], backward=True, captures=2)
    check(make, *steps, add, *steps, backward=True, captures=2)


def test_a_backward_pass_after_a_hook_of_a_node() -> None:
    def make():
        state = SimpleNamespace(seen=[], weight=nn.Parameter(torch.ones(3)))

        def program(x):
            y = x * state.weight
            y.grad_fn.register_hook(lambda inputs, outputs: state.seen.append(outputs[0]))
            y.sum().backward()
            return y.detach(), len(state.seen)
        return program, state
    check(make, call(X), call(X), call(X + 1), captures=None, fullgraph=False)


def test_gradients_of_activations() -> None:
    """As programs that explain what a model looks at do: hooks keep what a layer gave, and its gradient."""
    def make():
        torch.manual_seed(0)
        net = Net()
        kept = SimpleNamespace()
        net.first.register_forward_hook(lambda module, inputs, output: setattr(kept, "given", output))
        net.first.register_full_backward_hook(lambda module, inputs, outputs: setattr(kept, "gradient", outputs[0]))
        compiled = capture.compile(net, backend="eager")

        def explain(model, x):
            scores = model(x)
            model.zero_grad()
            scores[0].max().backward()
            return (kept.gradient.mean(0) * kept.given).sum(1)
        return net, compiled, explain
    net, compiled, explain = make()
    expected = [explain(net, x) for x in (LEAF, LEAF * 2, LEAF + 1)]
    for x, value in zip((LEAF, LEAF * 2, LEAF + 1), expected):
        assert torch.equal(explain(compiled, x), value)
