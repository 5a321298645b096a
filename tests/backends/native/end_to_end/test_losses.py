"""Losses of as many elements as real ones have, whose loops take several vectors in turn: values and gradients."""
from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.backends.native.end_to_end.engine import check, no_trial  # noqa: F401
from tests.helpers import call

CLASSES = 5
WEIGHTS = torch.tensor([1.0, 3.5, 0.25, 9.0, 2.0])
LOSSES: dict[str, Callable[..., Tensor]] = {
    "nll_loss": lambda x, target, **options: F.nll_loss(x.log_softmax(1), target, **options),
    "cross_entropy": F.cross_entropy,
    "cross_entropy, smoothed": functools.partial(F.cross_entropy, label_smoothing=0.1),
    "multi_margin_loss": lambda x, target, ignore_index, **options: F.multi_margin_loss(
        x.movedim(1, -1).flatten(0, -2), target.clamp(0).flatten(), **options),
}


@pytest.mark.parametrize("shape", [(300,), (3, 12, 11)], ids=["rows", "images"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_classes(name: str, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(4)
    values = torch.rand(shape[0], CLASSES, *shape[1:], generator=generator).mul_(4)
    target = torch.randint(0, CLASSES, shape, generator=generator)
    for weight, (reduction, ignored) in itertools.product((None, WEIGHTS), (("mean", -100), ("mean", 2), ("none", 2))):
        def make(**options: Any) -> Callable[..., Tensor]:
            return lambda x, target: LOSSES[name](x, target, **options)

        check(functools.partial(make, weight=weight, reduction=reduction, ignore_index=ignored),
              call(values.clone().requires_grad_(), target), call(values.sin().requires_grad_(), target.flip(0)), backward=True)
