"""In inference mode the capturing call computes as eager mode does, bit for bit: torch decides by `requires_grad` of views."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import call, check

TURNED = torch.linspace(-1, 1, 120).cos().view(3, 5, 8).transpose(0, 1)       # contiguous neither as it is nor as a matrix
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(8, 8), "linear without bias": lambda: nn.Linear(8, 6, bias=False), "GRU": lambda: nn.GRU(8, 4),
    "GRU, batch first": lambda: nn.GRU(8, 4, batch_first=True), "LSTM": lambda: nn.LSTM(8, 4, 2, bidirectional=True),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).eval(), "RNN": lambda: nn.RNN(8, 4),
    "bilinear": lambda: Twice(nn.Bilinear(8, 8, 4)), "convolution": lambda: nn.Conv1d(3, 4, 3, padding="same")}


class Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x, x)


class Inferring(nn.Module):
    """Computes in inference mode, of a tensor that was made there or before."""

    def __init__(self, layer: nn.Module, made: bool) -> None:
        super().__init__()
        self.layer, self.made = layer, made

    def forward(self, x):
        with torch.inference_mode():
            return self.layer(x * 1 if self.made else x)


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_bits(layer: str, made: bool) -> None:
    def make() -> nn.Module:
        torch.manual_seed(3)
        return Inferring(LAYERS[layer](), made)
    check(make, call(TURNED), call(TURNED), call(TURNED * 2))


def test_an_error() -> None:
    """The operator that raises, and so the text, is eager mode's."""
    check(lambda: Inferring(nn.Linear(5, 4), True), call(TURNED), call(TURNED), captures=None)


def product(x: torch.Tensor, weight: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: nn.functional.linear(x * 1, weight), lambda x: x * 1, (x,))


def test_in_a_branch_of_control_flow() -> None:
    def make() -> Any:
        torch.manual_seed(3)
        weight = nn.Parameter(torch.randn(8, 8))

        def program(x):
            with torch.inference_mode():
                return product(x, weight)
        return program
    check(make, call(TURNED), call(TURNED), call(TURNED - 5), captures=None, fullgraph=False)


@pytest.mark.parametrize("operation", [
    lambda x, table: table[:, :2].mul_(2) + x[0, 0, 0], lambda x, table: x.narrow(-1, 0, 2).view_as(x[..., :2]).clone(),
    lambda x, table: table.detach().add_(1), lambda x, table: torch.stack(x.unbind(0)).chunk(2)[0], lambda x, table: table.t()[0],
    lambda x, table: torch.add(x, 1, out=torch.empty(0)), lambda x, table: table.copy_(x[0, :4]).sum(), lambda x, table: x.mT])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_views_of_and_writes_to_what_was_made_before(operation: Callable[..., Any], requires_grad: bool) -> None:
    """They are dispatched once: they count one write, and make one view."""
    def make() -> Any:
        table = torch.linspace(0, 1, 32).view(4, 8) * torch.ones(1, requires_grad=requires_grad)

        def program(x):
            with torch.inference_mode():
                return operation(x, table), table
        return program
    check(make, call(TURNED), call(TURNED), call(TURNED * 2), captures=None)
