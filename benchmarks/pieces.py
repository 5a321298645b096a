"""Graphs with operations that cannot be compiled: capture, and torch.compile, divided by eager mode.

    python -m benchmarks.pieces [--pairs N] [--json FILE]

A network with an autograd function of its own, a mixture of experts, and a graph network whose edges are found by `nonzero`; each
in inference and in training. Inputs are new in each call, and the same for both sides of a pair.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import capture
from benchmarks.common import Ratio, arguments, paired, report, seconds

Inputs = Callable[[], tuple[Tensor, ...]]


class OwnMish(torch.autograd.Function):
    """An activation as programs write it themselves, to save one tensor instead of three."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, = ctx.saved_tensors
        gate = torch.tanh(F.softplus(x))
        return gradient * (gate + x * torch.sigmoid(x) * (1 - gate * gate))


class OwnActivation(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.widen = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(4))
        self.narrow = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for norm, widen, narrow in zip(self.norms, self.widen, self.narrow, strict=True):
            x = x + torch.sigmoid(narrow(OwnMish.apply(widen(norm(x))))) * 0.1 + torch.sin(x) * 0.01
        return x


class Experts(nn.Module):
    """Each token goes to two of four experts."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x)
        weights, chosen = torch.topk(torch.softmax(self.gate(tokens), -1), 2, -1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            result.index_add_(0, rows, expert(tokens[rows]) * weights[rows, places, None])
        return x + result


class Messages(nn.Module):
    """Two rounds of gated messages along the edges of a graph."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.rounds = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        source, target = (adjacency > 0).nonzero().T
        for layer in self.rounds:
            values = layer(x)
            messages = values[source] * torch.sigmoid(values[target])
            x = torch.zeros_like(values).index_add(0, target, messages).relu() + x
        return x


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "own activation": (OwnActivation, lambda: (torch.randn(64, 256),)),
    "experts": (Experts, lambda: (torch.randn(256, 256),)),
    "messages": (Messages, lambda: (torch.randn(256, 64), (torch.rand(256, 256) < 0.02).float())),
}
CALLS = 60          # before the measurement: pieces are compiled at their second calls, and timed


def step(engine: Callable[..., Any], inputs: Inputs, training: bool, state: Tensor) -> None:
    torch.set_rng_state(state)
    with torch.set_grad_enabled(training):
        result = engine(*inputs())
        if training:
            result.square().mean().backward()


def measured(name: str, training: bool, pairs: int) -> list[Ratio]:
    make, inputs = PROGRAMS[name]
    model, state = make(), torch.get_rng_state()
    engines = {"capture": capture.compile(model), "torch.compile": torch.compile(model)}
    for number in range(CALLS):
        for engine in engines.values():
            step(engine, inputs, training, state)
        state = torch.get_rng_state()
        if number % 20 == 10:
            capture.wait()
    rows = []
    for title, engine in engines.items():
        ours, theirs = (functools.partial(seconds, functools.partial(step, side, inputs, training, state), 3)
                        for side in (engine, model))
        rows.append(paired(f"{name}, {'training' if training else 'inference'}, {title}", ours, theirs, pairs, 1.0))
    return rows


def main() -> None:
    options = arguments(__doc__)
    torch.manual_seed(0)
    ratios = [row for training in (False, True) for name in PROGRAMS for row in measured(name, training, options.pairs)]
    report("Graphs with operations that cannot be compiled: engine / eager mode", ratios, {}, options.json)


if __name__ == "__main__":
    main()
