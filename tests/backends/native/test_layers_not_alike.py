"""Graphs whose layers could be taken for others, or counted wrongly: compiled as a whole, or put in as they should be."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capture.backends.native.layers import without_layers
from tests.backends.native.layered_programs import captured, check, inputs
from tests.backends.native.test_layers import LOOP, model


class TwoLoops(nn.Module):
    """Two loops of different lengths, neither of which has weights for each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(30):
            x = torch.tanh(self.one(F.layer_norm(x, (8,))))
        x = x.cumsum(1)
        for _ in range(36):
            x = torch.sigmoid(self.other(F.gelu(F.layer_norm(x, (8,)))))
        return x


class Nest(nn.Module):
    """A layer that is a stack of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(nn.Linear(8, 8) for _ in range(18)), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        for layer in self.layers:
            y = torch.tanh(layer(y))
        return x + y


def given(grad: bool) -> list[Tensor]:
    found = inputs(Random(0))
    return [found[0].requires_grad_(grad), found[1], found[2].requires_grad_(False)]


def frozen(net: nn.Module) -> nn.Module:
    return net.requires_grad_(False)


def layer(*steps: str) -> str:
    return "\n".join(["def layer(self, h, c, mask, bias, seen):", *(f"    {step}" for step in steps), "    return h, c"])


SHIFTED = layer("h = h.cumsum(1) / 4 + self.scale")


@pytest.mark.parametrize(("build", "reason"), [
    (lambda: frozen(model(f"{LOOP}return h", SHIFTED, ("scale",))), "each layer may check the same"),
    (lambda: frozen(model(f"{LOOP}loss = h.square().mean(); return loss, h", SHIFTED, ("scale",))),
     "each layer may check the same"),
    (lambda: model(f"{LOOP}return h * c", layer("h, c = torch.tanh(self.linear(F.layer_norm(h.detach(), (8,)))), h")),
     "gradients get to some"),
    (lambda: model(f"{LOOP}return h", layer("h = h + torch.tanh(self.linear(h))", "with torch.no_grad(): mask.add_(1)")),
     "no layers"),
    (lambda: model("h = x\nwith torch.autocast('cpu', torch.bfloat16):\n    for layer in self.layers: h = layer.linear(h) * bias\n"
                   "return h"),
     "each layer may check the same"),
])
def test_what_is_not_certain_is_compiled_as_a_whole(build: Callable[[], nn.Module], reason):
    assert check(build(), given(True), "eval").startswith(reason)


@pytest.mark.parametrize(("build", "outcome"), [
    (TwoLoops, "no layers"),
    (lambda: nn.Sequential(*(Nest() for _ in range(9))), "layers"),
])
def test_several_repetitions(build: Callable[[], nn.Module], outcome):
    torch.manual_seed(0)
    assert check(build(), [torch.randn(2, 4, 8)], "infer") == outcome


LINEAR = "h = h + torch.tanh(self.linear(h))"


@pytest.mark.parametrize("step", ["c = c + 1", "c = c * 0.5", "c = c.roll(1, 1)", "c = torch.maximum(c, bias) * 0.9",
                                  "c = c + torch.ones_like(h)", "c = c * h.new_full(h.shape, 0.5)",
                                  "c = c + h.clone().fill_(1)"])
def test_what_layers_do_with_nothing_of_their_own(step):
    """Fusion would compute it in one kernel behind the layers that were not left out, as often as there are of these."""
    assert check(model(f"{LOOP}return h, c", layer(step, LINEAR)), given(True), "infer") == "no layers"


@pytest.mark.parametrize("step", ["c = (c + self.linear(h)).roll(1, 1)", "c = c * 0.5 + self.linear(h)"])
def test_gradients_that_take_nothing_of_a_layer(step):
    assert check(model(f"{LOOP}return h * c", layer(step, LINEAR)), given(True), "eval") != "layers"


def test_inputs_of_layers_whose_sizes_vary_are_not_taken_for_alike():
    """Nothing would ask for the sizes of those that are left out."""
    _, _, job = captured(model(f"{LOOP}return h"), inputs(Random(0)), "eval")
    assert without_layers(job)
    job = replace(job, inputs=tuple(replace(spec, free=((-1, *spec.shape[1:]), spec.stride)) for spec in job.inputs))
    assert not without_layers(job)
