"""Programs that compute derivatives: capture, and torch.compile, divided by eager mode.

    python -m benchmarks.derivatives [--pairs N] [--json FILE] [program …]

Gradients of each sample, a Hessian, an ensemble and tangents by torch.func; training steps with a gradient penalty and with the
residual of a differential equation, both by `torch.autograd.grad(…, create_graph=True)`. torch.compile has no gradients of
gradients: where its first call raises, its row is missing. Inputs are new in each call, and the same for both sides of a pair.
"""
from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vmap
from torch.nn import functional as F

import capture
from benchmarks.common import Ratio, arguments, paired, report, seconds

Step = Callable[[Tensor], Any]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for taken, given in itertools.pairwise(widths):
        layers += [nn.Linear(taken, given), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def of_each_sample(wrap: Wrap) -> Step:
    network = perceptron(32, 64, 64, 10)
    weights = {name: weight.detach() for name, weight in network.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(network, weights, (x[None],)), torch.zeros(1, dtype=torch.long))
    return wrap(lambda x: vmap(grad(loss), (None, 0))(weights, x[:, :32]))


def curvature(wrap: Wrap) -> Step:
    network = perceptron(32, 64, 1).requires_grad_(False)
    return wrap(lambda x: vmap(hessian(lambda row: network(row)[0]))(x[:16, :32]))


def ensemble(wrap: Wrap) -> Step:
    models = [perceptron(64, 128, 10) for _ in range(8)]
    weights, buffers = stack_module_state(models)
    weights = {name: weight.detach() for name, weight in weights.items()}
    return wrap(lambda x: vmap(lambda w, b: functional_call(models[0], (w, b), (x,)).softmax(-1))(weights, buffers).mean(0))


def tangents(wrap: Wrap) -> Step:
    network = perceptron(64, 128, 128, 10).requires_grad_(False)
    return wrap(lambda x: jvp(lambda t: torch.log_softmax(network(t), -1), (x,), (x.cos(),)))


def penalty(wrap: Wrap) -> Step:
    critic = perceptron(64, 128, 128, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=1e-4)

    def loss(x: Tensor) -> Tensor:
        mixed = x.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        return critic(x).mean() + 10 * (found.norm(2, 1) - 1).square().mean()
    return trained(wrap(loss), optimizer)


def equation(wrap: Wrap) -> Step:
    """Burgers' equation, u_t + u u_x = 0.01 u_xx, as a physics-informed network takes it."""
    network = perceptron(2, 64, 64, 64, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)

    def loss(x: Tensor) -> Tensor:
        points = x[:, :2].clone().requires_grad_()
        value = network(points)
        (first,) = torch.autograd.grad(value.sum(), points, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)
        return (first[:, 1:] + value * first[:, :1] - 0.01 * second[:, :1]).square().mean()
    return trained(wrap(loss), optimizer)


def trained(loss: Callable[..., Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()
    return step


PROGRAMS = {"gradients of each sample": of_each_sample, "Hessians": curvature, "ensemble": ensemble, "tangents": tangents,
            "gradient penalty": penalty, "differential equation": equation}
ENGINES: dict[str, Wrap] = {"capture": capture.compile, "torch.compile": torch.compile}
ROWS, CALLS = 256, 60           # of an input; before the measurement


def call(step: Step, state: Tensor) -> None:
    torch.set_rng_state(state)
    step(torch.randn(ROWS, 64))


def measured(name: str, pairs: int, failures: dict[str, str]) -> list[Ratio]:
    torch.manual_seed(0)
    state, eager = torch.get_rng_state(), PROGRAMS[name](lambda function: function)
    rows = []
    for title, wrap in ENGINES.items():
        engine = PROGRAMS[name](wrap)
        try:
            for number in range(CALLS):
                call(eager, state)
                call(engine, state)
                if number % 20 == 10:
                    capture.wait()
        except Exception as error:
            failures[f"{name}, {title}"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        ours, theirs = (functools.partial(seconds, functools.partial(call, side, state), 5) for side in (engine, eager))
        rows.append(paired(f"{name}, {title}", ours, theirs, pairs, 1.0))
    return rows


def main() -> None:
    options = arguments(__doc__, PROGRAMS)
    failures: dict[str, str] = {}
    ratios = [row for name in options.names for row in measured(name, options.pairs, failures)]
    report("Programs that compute derivatives: engine / eager mode", ratios, failures, options.json)


if __name__ == "__main__":
    main()
