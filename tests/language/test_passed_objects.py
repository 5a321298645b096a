"""Modules and other objects that are passed to autograd functions: one graph, and what the function reads of them is guarded."""
from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import capture
from capture.errors import GraphBreakError


class Through(torch.autograd.Function):
    """Applies modules, and has a gradient that they decide."""

    @staticmethod
    def forward(ctx: Any, x: Any, modules: Any, times: Any) -> Any:
        ctx.modules, ctx.times = modules, times
        for module in modules:
            x = module(x)
        return x * times

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        for module in ctx.modules:
            for parameter in module.parameters():
                parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad + 1
        return gradient * ctx.times * ctx.modules[0].weight.sum(), None, None


class Sized(torch.autograd.Function):
    """Reads data of an object and of a dict with a module."""

    @staticmethod
    def forward(ctx: Any, x: Any, options: Any, held: Any) -> Any:
        ctx.options = options
        return x[:, :options.width] * options.scale + held["module"].weight.sum() + held["bias"]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.nn.functional.pad(gradient, (0, 3 - ctx.options.width)), None, None


class Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, options: Any) -> Any:
        options.scale += 1
        return x * options.scale

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None


class Options:
    def __init__(self) -> None:
        self.scale, self.width, self.steps = 2.0, 2, 0


class Counter(nn.Module):
    """A module that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.weight = 0, nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Plain(nn.Module):
    """A module of the program's that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.weight = 3.0, nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.scale if self.training else x


class World:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.modules = nn.ModuleList([nn.Linear(3, 3), nn.BatchNorm1d(3), Plain()])
        self.options = Options()


def by_list(world: World, x: torch.Tensor) -> Any:
    y = Through.apply(x, world.modules, 2.0)
    return Through.apply(y + 1, [world.modules[0], world.modules[2]], 3.0)


def by_object(world: World, x: torch.Tensor) -> Any:
    y = Sized.apply(x, world.options, {"module": world.modules[0], "bias": x[0, 0].detach() + 1})
    world.options.steps += 1
    return y * y.shape[1] + world.options.steps


def set_item(world: World) -> None:
    world.modules[1] = nn.Identity()


CHANGES: list[Callable[[World], Any]] = [
    lambda world: None,
    lambda world: world.modules[0].weight.data.mul_(2),
    lambda world: world.modules.eval(),
    lambda world: setattr(world.modules[2], "scale", 5.0),
    lambda world: world.modules.append(Plain()),
    set_item,
    lambda world: setattr(world, "modules", nn.ModuleList([nn.Linear(3, 3)] * 3)),
    lambda world: setattr(world.options, "scale", 7.0),
    lambda world: setattr(world.options, "width", 1),
    lambda world: setattr(world.options, "other", 1),
    lambda world: world.modules[0].register_forward_hook(lambda module, args, result: result * 2),
]


def outcome(function: Any, world: World, x: torch.Tensor) -> Any:
    x = x.clone().requires_grad_()
    y = function(world, x)
    y.sum().backward()
    gradients = [None if p.grad is None else p.grad.tolist() for p in world.modules.parameters()]
    state = {name: value.tolist() for name, value in world.modules.state_dict().items()}
    return y.tolist(), x.grad.tolist(), gradients, world.options.__dict__, state


@pytest.mark.parametrize("number", range(len(CHANGES)))
@pytest.mark.parametrize("function", [by_list, by_object])
@pytest.mark.parametrize("options", [{}, {"backend": "native", "options": {"background": False}}], ids=["eager", "native"])
def test_one_graph_with_objects(function: Any, number: int, options: Any) -> None:
    eager, captured = World(), World()
    compiled = capture.compile(function, fullgraph=True, **options)
    for step in range(6):
        if step == 3:
            CHANGES[number](eager)
            torch.manual_seed(0)
            CHANGES[number](captured)
            captured.modules.load_state_dict(eager.modules.state_dict())
        x = torch.arange(6.0).view(2, 3) + step
        assert outcome(compiled, captured, x) == copy.deepcopy(outcome(function, eager, x)), step
    stats = capture.stats(compiled)
    assert stats.breaks == stats.bailouts == 0 and stats.hits >= (0 if function is by_object else 3), stats


def changed_by_function(options: Options, module: Counter, x: torch.Tensor) -> Any:
    return Counting.apply(x, options) + options.scale


def changed_by_module(options: Options, module: Counter, x: torch.Tensor) -> Any:
    return Through.apply(x, [module], 1.0) + module.calls


def changed_before(options: Options, module: Counter, x: torch.Tensor) -> Any:
    options.scale *= 2
    return Sized.apply(x, options, {"module": module, "bias": 1.0})


@pytest.mark.parametrize("function", [changed_by_function, changed_by_module, changed_before])
def test_objects_that_change_break(function: Any) -> None:
    def seen(called: Any) -> Any:
        options, module = Options(), Counter()
        return [(called(options, module, torch.ones(2, 3) * step).tolist(), dict(options.__dict__), module.calls)
                for step in range(4)]
    compiled = capture.compile(function)
    assert seen(compiled) == seen(function)
    assert capture.stats(compiled).breaks
    with pytest.raises(GraphBreakError):
        capture.compile(function, fullgraph=True)(Options(), Counter(), torch.ones(2, 3))


def test_no_model_is_kept_alive() -> None:
    world = World()
    compiled = capture.compile(by_list, fullgraph=True)
    for _ in range(3):
        outcome(compiled, world, torch.ones(2, 3))
    reference = weakref.ref(world.modules)
    world.modules = nn.ModuleList()
    assert reference() is None
