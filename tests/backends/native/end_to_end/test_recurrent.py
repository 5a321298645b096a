"""Recurrent networks: their layers, dropout between these, gradients, and states, compiled as eager computes them."""
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.backends.native.end_to_end.engine import check, no_trial  # noqa: F401
from tests.helpers import call

KINDS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN,
                         "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs)}


def sequence(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


LAYERS: dict[str, Any] = {"num_layers": 3, "dropout": 0.5}
BOTH_WAYS: dict[str, Any] = {"num_layers": 2, "dropout": 0.3, "bidirectional": True, "batch_first": True}


@pytest.mark.parametrize("kind, settings, of_input", [
    ("lstm", LAYERS, True), ("lstm", BOTH_WAYS, True), ("gru", LAYERS, True), ("rnn", BOTH_WAYS, True), ("relu", LAYERS, True),
    ("lstm", LAYERS, False), ("rnn", BOTH_WAYS, False)])
def test_dropout_between_layers(kind: str, settings: dict[str, Any], of_input: bool) -> None:
    """Also where gradients are asked for of the weights alone."""
    x = sequence(3, 2, 4).requires_grad_(of_input)
    check(lambda: KINDS[kind](4, 6, **settings), *[call(x)] * 3, backward=True)


@pytest.mark.parametrize("kind, settings", [("lstm", {}), ("lstm", BOTH_WAYS), ("gru", {"bias": False, "bidirectional": True}),
                                            ("rnn", {"num_layers": 2, "dropout": 1.0})])
@pytest.mark.parametrize("grad", [False, True])
def test_recurrent_networks(kind: str, grad: bool, settings: dict[str, Any]) -> None:
    """Without gradients, and evaluated with them."""
    with torch.set_grad_enabled(grad):
        check(lambda: KINDS[kind](4, 6, **settings).train(not grad), *[call(sequence(3, 2, 4, seed=seed)) for seed in range(3)],
              backward=grad)


@pytest.mark.parametrize("grad", [False, True])
def test_states_and_projections(grad: bool) -> None:
    state = sequence(2, 2, 3).requires_grad_(grad), sequence(2, 2, 6).requires_grad_(grad)
    check(lambda: nn.LSTM(4, 6, num_layers=2, proj_size=3, dropout=0.2), *[call(sequence(3, 2, 4), state)] * 3, backward=grad)
    check(lambda: nn.GRU(4, 6, num_layers=2, dropout=0.2), *[call(sequence(3, 2, 4), sequence(2, 2, 6).requires_grad_(grad))] * 3,
          backward=grad)


def test_frozen_weights() -> None:
    """No gradient is asked for, though the mode would allow it; and then of some."""
    def make():
        return nn.LSTM(4, 6, num_layers=2, dropout=0.5).requires_grad_(False)
    x = sequence(3, 2, 4)
    check(make, call(x), call(x), lambda net: net.weight_hh_l1.requires_grad_(True), call(x), call(x), captures=2)
