"""Random numbers that a program draws and does not use: the generators go on as in eager mode, compiled or not."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import capture

CALLS = 8


def overwritten(x: Tensor, b: Tensor) -> Tensor:
    b.add_(torch.rand(4, 6))
    b.copy_(x * 0.5)
    return x + torch.rand(6)


def overwritten_in_part(x: Tensor, b: Tensor) -> Tensor:
    b[1:] += F.dropout(x[1:], 0.5)
    b.zero_()
    return x + torch.rand(6)


def times_nothing(x: Tensor, b: Tensor) -> Tensor:
    b.mul_(torch.rand_like(b)).fill_(2.0)
    return (x + b) * torch.rand(())


def unused(x: Tensor, b: Tensor) -> Tensor:
    F.dropout(x, 0.5)
    return x + torch.randn(6)


def shape_alone(x: Tensor, b: Tensor) -> Tensor:
    return torch.ones_like(torch.rand_like(x)) + torch.randn(6)


def masked(x: Tensor, b: Tensor) -> Tensor:
    return torch.where(torch.zeros(6, dtype=torch.bool), torch.rand(6), x) + torch.randperm(6)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    "program", [overwritten, overwritten_in_part, times_nothing, unused, shape_alone, masked], ids=lambda program: program.__name__)
def test_generators_go_on(program: Callable[..., Any], grad: bool) -> None:
    compiled = capture.compile(program, backend="native", options={"background": False})
    for call in range(CALLS):
        seen = []
        for run in program, compiled:
            torch.manual_seed(call)
            x, b = torch.randn(4, 6, requires_grad=grad), torch.zeros(4, 6)
            with torch.no_grad() if program in (overwritten, overwritten_in_part) else torch.enable_grad():
                result = run(x, b)
            if result.requires_grad:
                result.sum().backward()
            seen.append([result, b, x.grad, torch.rand(3)])
        torch.testing.assert_close(*seen)
