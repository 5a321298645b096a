"""What is said to be linear is: measured on programs that are drawn at random."""
from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from capture.operators.linearity import are_linear

F = torch.nn.functional
PLACES, MASK = torch.tensor([[2, 0, 1, 1]]), torch.tensor([True, False, True, False])


def written(g: Tensor, value: Tensor | float) -> Tensor:
    made = torch.zeros(3, 4, dtype=g.dtype)
    made[1:] = g[1:]
    made[0] = value
    return made


def scaled_in_place(g: Tensor, s: Tensor) -> Tensor:
    made = g * 2
    made[0].mul_(s[0])
    return made


LINEAR: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda g, s: -g, lambda g, s: g * s, lambda g, s: s * g / 3, lambda g, s: g / s, lambda g, s: g + g * s, lambda g, s: g - 2 * g,
    lambda g, s: g.sum(0, keepdim=True).expand(3, 4), lambda g, s: g.mean(1, keepdim=True) * s,
    lambda g, s: g @ s.new_ones(4, 4),
    lambda g, s: torch.where(s > 0, g, 0), lambda g, s: g.masked_fill(s > 0, 0),
    lambda g, s: torch.where(s > 0, g, torch.zeros_like(g)),
    lambda g, s: torch.cat([g[:1], g[1:]]), lambda g, s: torch.stack([g, g * s]).sum(0), lambda g, s: F.pad(g[:, :3], (0, 1)),
    lambda g, s: g.roll(1, 0).flip(1).cumsum(0), lambda g, s: g[:, [1, 1, 0, 2]], lambda g, s: g.tril(1),
    lambda g, s: torch.zeros_like(g).scatter(0, PLACES, g), lambda g, s: torch.zeros_like(g).index_add(0, PLACES[0, :3], g),
    lambda g, s: written(g, g[2]), scaled_in_place, lambda g, s: torch.zeros_like(g),
    lambda g, s: torch.ops.aten.threshold_backward(g, s, 0), lambda g, s: torch.ops.aten.tanh_backward(g, s),
    lambda g, s: g.float().double(), lambda g, s: g * g.shape[0], lambda g, s: g * torch.ones_like(g).exp()]
OTHERS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda g, s: g + 1, lambda g, s: g + s, lambda g, s: g * g, lambda g, s: g.clamp(-0.1, 0.1), lambda g, s: g.sign(),
    lambda g, s: g.exp(),
    lambda g, s: torch.ones_like(g), lambda g, s: s * 2, lambda g, s: s / g, lambda g, s: g / g.norm(), lambda g, s: g.abs(),
    lambda g, s: torch.where(g > 0, g, 0), lambda g, s: torch.where(s > 0, g, 1), lambda g, s: torch.where(s > 0, 1, g),
    lambda g, s: g.masked_fill(s > 0, 1), lambda g, s: F.pad(g[:, :3], (0, 1), value=1.0), lambda g, s: g.round(),
    lambda g, s: written(g, 1.0), lambda g, s: written(g, s[0]), lambda g, s: written(g, g[0].exp()),
    lambda g, s: torch.zeros_like(g).scatter(0, PLACES, 1.0), lambda g, s: g.scatter(0, PLACES, s, reduce="multiply"),
    lambda g, s: torch.div(g, s, rounding_mode="floor"), lambda g, s: g.long().double(),
    lambda g, s: g.view(torch.int64).view(torch.float64) + 1,
    lambda g, s: torch.ops.aten.threshold_backward(g, g, 0), lambda g, s: torch.ops.aten.tanh_backward(s, g),
    lambda g, s: g.relu(), lambda g, s: g.sort(0).values, lambda g, s: g.softmax(0), lambda g, s: g ** 2,
    lambda g, s: g.float().view(torch.int32).double(),
    lambda g, s: torch.zeros_like(g, dtype=torch.int32).copy_(g * 2).double(),
    lambda g, s: torch.zeros_like(s > 0).copy_(g).double()]


def composed(steps: list[Callable[[Tensor, Tensor], Tensor]], joined: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """One after the other, and what the last but one has made besides."""
    def program(g: Tensor, s: Tensor) -> Tensor:
        before = g
        for step in steps:
            before, g = g, step(g, s).expand(3, 4)
        return g + before if joined else g
    return program


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    a, b, s = torch.randn(3, 3, 4, dtype=torch.float64)
    return a, b, s


def traced(program: Callable[..., Tensor]) -> tuple[fx.GraphModule, bool]:
    """Its graph, and what is said of that."""
    a, _, s = drawn()
    made = make_fx(program)(a, s)
    for node in made.graph.nodes:
        if isinstance(node.meta.get("val"), Tensor):
            node.meta["dtype"] = node.meta["val"].dtype
    first = next(iter(made.graph.nodes))
    return made, are_linear([made.graph.output_node().args[0]], [first])


def is_linear(program: Callable[..., Tensor]) -> bool:
    """Whether it is, as far as can be measured."""
    for size in (1e-3, 1.0, 1e3):
        a, b, s = (x * size for x in drawn())
        parts = program(a, s) + program(b, s)
        if program(torch.zeros_like(a), s).any() or not torch.allclose(program(a + b, s), parts, rtol=1e-5, atol=1e-5 * size):
            return False
    return True


@pytest.mark.parametrize("number", range(len(LINEAR)))
def test_linear(number: int) -> None:
    made, said = traced(LINEAR[number])
    assert said, made.graph
    assert is_linear(made)


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_not_linear(number: int) -> None:
    made, said = traced(OTHERS[number])
    assert not said, made.graph


def test_compositions() -> None:
    """Of programs drawn at random, each that is said to be linear is."""
    draw, linear = random.Random(0), 0
    for _ in range(300):
        steps = [draw.choice(LINEAR if draw.random() < 0.8 else OTHERS) for _ in range(draw.randint(2, 4))]

        made, said = traced(composed(steps, draw.random() < 0.3))
        linear += said
        assert not said or is_linear(made), made.graph
    assert linear > 60
