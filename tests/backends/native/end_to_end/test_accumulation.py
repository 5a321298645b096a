"""Gradients that are added to those which are there: while the backward pass still runs, and as eager mode adds them."""
from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

import capture
from capture import _C
from tests.backends.native.end_to_end.engine import compile, no_trial, runs_compiled  # noqa: F401
from tests.peak import peak

WIDTH, LAYERS = 64, 8


class Deep(nn.Module):
    """Layers whose weights are larger than all that is computed; returns a vector."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.sum(1)


class World:
    """A model and what runs it: itself, or its compiled code."""

    def __init__(self, compiled: bool, module: Callable[[], nn.Module] = Deep) -> None:
        self.model = module()
        self.run = compile(self.model) if compiled else self.model
        torch.manual_seed(1)
        self.x = torch.randn(3, WIDTH)
        if compiled:
            for _ in range(2):
                self.loss().backward()
            assert runs_compiled(self.run)
            self.model.zero_grad()

    @property
    def weights(self) -> list[Tensor]:
        return list(self.model.parameters())

    def loss(self) -> Tensor:
        return self.run(self.x).sum()

    def gradients(self) -> list[Tensor | None]:
        return [weight.grad for weight in self.weights]


def agree(program: Callable[[World], Any], module: Callable[[], nn.Module] = Deep) -> None:
    """What a program returns, and the gradients that it leaves, are the same in both worlds."""
    seen = []
    for compiled in (True, False):
        world = World(compiled, module)
        seen.append((program(world), world.gradients()))
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-5)


def twice(world: World) -> None:
    for _ in range(2):
        world.loss().backward()


# That they are.

def test_gradients_do_not_wait_for_each_other() -> None:
    """All of them at once are several times what a call needs besides."""
    world, eager = World(True), World(False)
    for one in (world, eager):
        one.loss().backward()
        one.loss().backward()
    _C.release_workspaces()
    ours, theirs = (peak(lambda one=one: one.loss().backward()) for one in (world, eager))
    assert 0 < ours <= theirs < LAYERS * WIDTH * WIDTH * 4


def test_values_and_identity() -> None:
    def program(world: World) -> list[bool]:
        world.loss().backward()
        before, versions = world.gradients(), [gradient._version for gradient in world.gradients()]
        world.loss().backward()
        return [a is b and b._version == version + 1 for a, b, version in zip(before, world.gradients(), versions, strict=True)]
    agree(program)


@pytest.mark.parametrize("prepare", [
    lambda world: world.model.zero_grad(),
    lambda world: world.model.zero_grad(set_to_none=False),
    lambda world: setattr(world.weights[3], "grad", None),
    lambda world: setattr(world.weights[2], "grad", torch.zeros(WIDTH, WIDTH).t()),
    lambda world: setattr(world.weights[2], "grad", torch.zeros(WIDTH, WIDTH).to_sparse()),
    lambda world: setattr(world.weights[2], "grad", torch.zeros(WIDTH, WIDTH, requires_grad=True)),
    lambda world: world.weights[4].requires_grad_(False),
    lambda world: world.weights[0].retain_grad(),
], ids=["none", "zeros", "one is missing", "strided", "sparse", "requires gradients", "frozen", "retained"])
def test_whatever_gradients_are_there(prepare: Callable[[World], Any]) -> None:
    def program(world: World) -> None:
        twice(world)
        prepare(world)
        twice(world)
    agree(program)


# What else reads or changes gradients.

def test_gradients_that_are_asked_for_are_not_added() -> None:
    def program(world: World) -> Any:
        twice(world)
        return torch.autograd.grad(world.loss(), world.weights[:3])
    agree(program)


def test_only_the_chosen_ones_are_added() -> None:
    def program(world: World) -> None:
        twice(world)
        world.loss().backward(inputs=world.weights[1:3])
    agree(program)


def test_a_graph_that_is_kept() -> None:
    def program(world: World) -> None:
        twice(world)
        loss = world.loss()
        loss.backward(retain_graph=True)
        loss.backward()
    agree(program)


def test_gradients_of_gradients() -> None:
    def program(world: World) -> Any:
        twice(world)
        world.loss().backward(create_graph=True)
        second = torch.autograd.grad(sum(gradient.square().sum() for gradient in world.gradients()), world.weights[:2])
        for weight in world.weights:        # else they are a circle, which dies late
            weight.grad = None
        return second
    agree(program)


def hooks(world: World) -> list[Any]:
    """A hook of each kind on a weight of its own; what they saw."""
    seen: list[Any] = []
    first, second, third, fourth = world.weights[:4]
    first.register_hook(lambda gradient: seen.append(gradient.sum()) or gradient * 2)
    second.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.sum().clone()))
    world.nodes = [get_gradient_edge(weight).node for weight in (third, fourth)]
    world.nodes[0].register_prehook(lambda gradients: seen.append(gradients[0].sum()))
    world.nodes[1].register_hook(lambda results, gradients: seen.append(gradients[0].sum()))
    return seen


def test_hooks_see_each_gradient() -> None:
    def program(world: World) -> list[Any]:
        twice(world)
        seen = hooks(world)
        twice(world)
        assert len(seen) == 8
        return sorted(seen)
    agree(program)


def test_weights_may_change_as_soon_as_their_gradient_is_there() -> None:
    """An optimiser that runs in hooks: the values of the pass are those of its beginning, as in eager mode."""
    def program(world: World) -> list[Tensor]:
        twice(world)

        def descend(weight: Tensor) -> None:
            with torch.no_grad():
                weight -= 0.01 * weight.grad
            weight.grad = None
        for weight in world.weights:
            weight.register_post_accumulate_grad_hook(descend)
        twice(world)
        return world.weights
    agree(program)


def test_a_weight_that_others_use_too() -> None:
    def program(world: World) -> None:
        for _ in range(3):
            (world.loss() + (world.weights[0] ** 2).sum()).backward()
    agree(program)


def test_two_calls_in_one_pass() -> None:
    def program(world: World) -> None:
        for _ in range(3):
            (world.loss() + world.run(world.x * 2).sum()).backward()
    agree(program)


def test_anomalies_are_found() -> None:
    world = World(True)
    twice(world)
    result = world.run(world.x)
    before = [gradient.clone() for gradient in world.gradients()]
    with warnings.catch_warnings(), torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan"):
        warnings.simplefilter("ignore")
        result.backward(torch.full((3,), torch.inf))
    torch.testing.assert_close(world.gradients(), before)


class Mixed(nn.Module):
    """Reads a tensor that may lie in the memory of a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x, scale = x
        for layer in self.layers:
            x = layer(x).tanh() * scale
        return x.sum(1)


def test_gradients_that_the_graph_reads_stay_what_they_are_until_its_end() -> None:
    world = World(False, Mixed)
    run = compile(world.model)
    scale = torch.randn(WIDTH)
    for _ in range(2):
        run((world.x, scale)).sum().backward()
    assert runs_compiled(run)
    captures, seen = capture.stats(run).captures, []
    for shared in (False, True):
        world.model.zero_grad()
        given = scale.clone()
        world.model.layers[2].bias.grad = given if shared else given.clone()
        run((world.x, given)).sum().backward()
        seen.append([parameter.grad.clone() for parameter in world.weights])
    assert capture.stats(run).captures == captures
    torch.testing.assert_close(*seen)


def test_gradients_of_results_may_have_any_strides() -> None:
    """Those of a sum have memory for one element; some results have none."""
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.layer(x)
            return x.tanh(), x.sigmoid()

    model = Parts()
    run, x = compile(model), torch.randn(3, WIDTH)
    for _ in range(2):
        sum(result.sum() for result in run(x)).backward()
    assert runs_compiled(run)
    for gradients in ((torch.ones(()).expand(3, WIDTH), torch.randn(WIDTH, 3).t()), (torch.randn(3, 2 * WIDTH)[:, ::2], None),
                      (None, torch.randn(3, WIDTH)), (torch._neg_view(torch.randn(3, WIDTH)), torch.ones(3, WIDTH))):
        seen = []
        for program in (run, model):
            chosen = [(result, gradient) for result, gradient in zip(program(x), gradients, strict=True) if gradient is not None]
            model.zero_grad()
            torch.autograd.backward(*zip(*chosen, strict=True))
            seen.append([weight.grad for weight in model.parameters()])
        torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-5)


def test_threads_add_to_the_same_gradients() -> None:
    world = World(True)
    world.loss().backward()
    once = [gradient.clone() for gradient in world.gradients()]

    def work() -> None:
        for _ in range(5):
            world.loss().backward()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    torch.testing.assert_close(world.gradients(), [gradient * 11 for gradient in once], rtol=1e-4, atol=1e-4)
