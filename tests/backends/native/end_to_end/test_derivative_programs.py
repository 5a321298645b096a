"""Programs as people write them that compute derivatives of networks in a training step: one graph each, with kernels."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import capture
from tests.backends.native.end_to_end.engine import AT_ONCE, no_trial  # noqa: F401
from tests.helpers import seed


def perceptron(*widths: int) -> nn.Sequential:
    first, hidden, last = widths
    return nn.Sequential(nn.Linear(first, hidden), nn.SiLU(), nn.Linear(hidden, last))


def meta_learning(network: nn.Module) -> Callable[..., Tensor]:
    """Second order: each task takes two steps from the shared weights (MAML)."""
    def program(x, y, later_x, later_y):
        total = 0.0
        for task in range(x.shape[0]):
            weights = dict(network.named_parameters())
            for _ in range(2):
                loss = F.mse_loss(functional_call(network, weights, (x[task],)), y[task])
                found = torch.autograd.grad(loss, weights.values(), create_graph=True)
                weights = {name: weight - 0.1 * grad for (name, weight), grad in zip(weights.items(), found)}
            total = total + F.mse_loss(functional_call(network, weights, (later_x[task],)), later_y[task])
        return total / x.shape[0]
    return program


def langevin(network: nn.Module) -> Callable[..., Tensor]:
    """Samples of an energy-based model: each round begins with a leaf of its own."""
    def program(x):
        for _ in range(3):
            x = x.detach().requires_grad_()
            found = torch.autograd.grad(network(x).sum(), x)[0]
            x = x - 0.1 * found + 0.01 * torch.randn_like(x)
        return x.detach()
    return program


def hamiltonian(network: nn.Module) -> Callable[..., Tensor]:
    def program(x):
        with torch.enable_grad():
            x = x if x.requires_grad else x.requires_grad_()
            slope = torch.autograd.grad(network(x).sum(), x, create_graph=True)[0]
        place, momentum = slope.chunk(2, -1)
        return torch.cat([momentum, -place], -1)
    return program


def force_field(network: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """Energies and forces of particles."""
    def program(places):
        places.requires_grad_(True)
        distances = (places[:, None] - places[None]).square().sum(-1).add(1e-3).sqrt()
        energy = network(distances[..., None].expand(*distances.shape, 4)).sum()
        return energy, -torch.autograd.grad(energy, places, create_graph=True, retain_graph=True)[0]
    return program


def penalty_on_real_data(network: nn.Module) -> Callable[..., Tensor]:
    def program(real):
        real = real.detach().requires_grad_(True)
        out = network(real)
        (found,) = torch.autograd.grad(outputs=out.sum(), inputs=real, create_graph=True)
        return F.softplus(-out).mean() + found.square().flatten(1).sum(1).mean()
    return program


def gradients_as_values(network: nn.Module) -> Callable[..., Any]:
    def program(x):
        return torch.autograd.grad(network(x).square().mean(), network.parameters())
    return program


PROGRAMS: dict[Callable[[nn.Module], Callable[..., Any]], tuple[tuple[int, ...], ...]] = {
    meta_learning: ((2, 5, 4), (2, 5, 1), (2, 5, 4), (2, 5, 1)), langevin: ((8, 4),), hamiltonian: ((8, 4),),
    force_field: ((6, 3),), penalty_on_real_data: ((8, 4),), gradients_as_values: ((8, 4),)}


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_trained(make: Callable[[nn.Module], Callable[..., Any]]) -> None:
    """Four steps, with the gradients of weights that results give where they have any."""
    def trained(engine: dict[str, Any] | None) -> list[Tensor]:
        seed(1)
        network = perceptron(4, 16, 1)
        program = make(network) if engine is None else capture.compile(make(network), fullgraph=True, **engine)
        seen: list[Tensor] = []
        for _ in range(4):
            results = program(*map(torch.randn, PROGRAMS[make]))
            results = results if isinstance(results, tuple) else (results,)
            wanted = [result.square().sum() for result in results if result.requires_grad]
            if wanted:
                sum(wanted).backward()
                with torch.no_grad():
                    for weight in network.parameters():
                        if weight.grad is not None:
                            weight -= 0.01 * weight.grad / (1 + weight.grad.norm())
                        weight.grad = None
            seen += [result.detach() for result in results]
        if engine is not None:
            stats = capture.stats(program)
            assert (stats.captures, stats.hits, stats.graphs, stats.compiled) == (1, 3, 1, 1), stats
        return [*seen, *network.parameters()]
    for ours, theirs in zip(trained(AT_ONCE), trained(None), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
