"""Leaves: those that a graph itself makes, and the gradients of those that it is given."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import helpers
from tests.backends.native.end_to_end.engine import AT_ONCE, check, no_trial  # noqa: F401
from tests.helpers import call
from tests.snapshot import tensors


def assigned(x):
    y = torch.zeros(3)
    y.requires_grad = True
    return y, x * 2


def view_without_gradients(x):
    y = (x * 2).detach().requires_grad_() * 2
    with torch.no_grad():
        return y[0]


def view_of_both_without_gradients(x):
    y = torch.ones(3, requires_grad=True) * x.sum()
    with torch.no_grad():
        return y[0]


PROGRAMS: dict[str, Callable[..., Any]] = {
    "made": lambda x: torch.ones(x.shape[0], 2, requires_grad=True),
    "made so later": lambda x: torch.zeros(3).requires_grad_(),
    "beside another": lambda x: (torch.ones(3, requires_grad=True), x * 2),
    "assigned": assigned,
    "of an input": lambda x: (x.detach().requires_grad_(), x * 2),
    "of a copy": lambda x: (x.detach().clone().requires_grad_(), x * 2),
    "computed of one": lambda x: torch.ones(3, requires_grad=True) * x.detach().sum(),
    "computed of both": lambda x: torch.ones(3, requires_grad=True) * x.sum(),
    "view without gradients": view_without_gradients,
    "view of both without gradients": view_of_both_without_gradients,
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


PARTS: dict[str, Callable[..., Any]] = {
    "chunks": lambda x, p, q: x * torch.cat([p, q]).chunk(2)[0] + torch.cat([p, q]).chunk(2)[1],
    "one split": lambda x, p, q: sum(part * x for part in torch.cat([p, q]).split(3)),
    "rows": lambda x, p, q: x * torch.stack([p, q])[0] + torch.stack([p, q])[1],
    "biases": lambda x, p, q: torch.nn.functional.linear(x, torch.eye(3), torch.cat([p, q]).chunk(2)[1]),
}


@pytest.mark.parametrize("name", PARTS)
def test_gradients_that_are_parts_of_one_buffer(name: str) -> None:
    """From the second pass on leaves have gradients, to which theirs are added."""
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.q = (torch.nn.Parameter(torch.tensor([0.5, 1.0, 2.0]) * factor) for factor in (1, 2))

        def forward(self, x):
            return PARTS[name](x, self.p, self.q)
    check(Net, *[call(torch.arange(6.0).view(2, 3) + n) for n in range(4)], backward=True)
