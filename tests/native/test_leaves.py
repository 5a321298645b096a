"""Tensors that a graph itself makes require gradients: returned, they are leaves, and what follows from them has a gradient."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import helpers
from tests.helpers import call
from tests.native.engine import AT_ONCE, no_trial  # noqa: F401
from tests.snapshot import tensors


def assigned(x):
    y = torch.zeros(3)
    y.requires_grad = True
    return y, x * 2


PROGRAMS: dict[str, Callable[..., Any]] = {
    "made": lambda x: torch.ones(x.shape[0], 2, requires_grad=True),
    "made so later": lambda x: torch.zeros(3).requires_grad_(),
    "beside another": lambda x: (torch.ones(3, requires_grad=True), x * 2),
    "assigned": assigned,
    "of an input": lambda x: (x.detach().requires_grad_(), x * 2),
    "of a copy": lambda x: (x.detach().clone().requires_grad_(), x * 2),
    "computed of one": lambda x: torch.ones(3, requires_grad=True) * x.detach().sum(),
    "computed of both": lambda x: torch.ones(3, requires_grad=True) * x.sum(),
    "unseen": lambda x: (torch.ones(3, requires_grad=True) * 2).detach() + x,
    "an input": lambda x: x.requires_grad_() * 2,
    "an input returned": lambda x: (x.requires_grad_(), x * 2),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_leaves_of_a_graph(name: str, grad: bool) -> None:
    x = torch.tensor([1.0, -2.0, 3.0]).requires_grad_(grad)
    results = tensors(PROGRAMS[name](copy.deepcopy(x)))
    helpers.check(lambda: PROGRAMS[name], *[call(x)] * 3, captures=None, fullgraph=False, tolerance=1e-6,
                  backward=any(result.grad_fn is not None for result in results), **AT_ONCE)
