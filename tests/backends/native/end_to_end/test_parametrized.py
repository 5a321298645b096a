"""Weights that modules compute at each call, of parameters: in training, with weights of every number of dimensions."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.backends.native.end_to_end.engine import check, no_trial  # noqa: F401
from tests.helpers import call

X = torch.linspace(-1, 1, 24).view(2, 4, 3)
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "vector": lambda: nn.PReLU(4), "one element": lambda: nn.PReLU(), "matrix": lambda: nn.Linear(3, 5),
    "three dimensions": lambda: nn.Conv1d(4, 2, 2), "normalization": lambda: nn.GroupNorm(2, 4)}


@pytest.mark.parametrize("dim", [0, -1, None])
@pytest.mark.parametrize("layer", LAYERS)
def test_weight_norm(layer: str, dim: int | None) -> None:
    def make() -> nn.Module:
        torch.manual_seed(3)
        return parametrizations.weight_norm(LAYERS[layer](), dim=dim)
    check(make, call(X), call(X * 2), call(X), backward=True)
