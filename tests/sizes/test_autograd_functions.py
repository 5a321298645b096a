"""Autograd functions of the program's, called with sizes that change."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import capture

SIZES = (4, 6, 3, 5, 8, 2, 1, 7, 0, 9, 11, 12, 4, 6)
WEIGHT = torch.randn(4, requires_grad=True)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient


class Weighted(torch.autograd.Function):
    """One of its results is as large as no argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        return x * weight, x.t() * 1

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return weight * first + second.t(), (x * first).sum(0)


class Cropped(torch.autograd.Function):
    """Its result is as large as its argument if that is small."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x[:5] * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        result = gradient.new_zeros(ctx.shape)
        result[:5] = gradient
        return result


class LaidOut(torch.autograd.Function):
    """Its result lies in memory as values say."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2 if float(x.detach().sum()) > 0 else x.t().contiguous().t() * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def squared(x: Tensor) -> Any:
    made = (x * 2).tanh()
    return (Squared.apply(made) * 0.3).sin() + made.shape[0], made.shape


def weighted(x: Tensor) -> Any:
    first, second = Weighted.apply(x * 1, WEIGHT)
    return (first.sum() + second * 2).relu(), second.shape


def cropped(x: Tensor) -> Any:
    made = Cropped.apply(x * 2).sin() * 2
    return made.sum(0) + made.numel(), made.shape


def laid_out(x: Tensor) -> Any:
    made = LaidOut.apply(x * 2)
    return made.sin() * 2, made.stride()


@pytest.mark.parametrize("program", [squared, weighted, cropped, laid_out])
@pytest.mark.parametrize("compile", [{"backend": "eager"}, {"backend": "native", "options": {"background": False}}],
                         ids=lambda compile: compile["backend"])
def test_calls_of_other_sizes(program: Callable[..., Any], compile: dict[str, Any]) -> None:
    function = capture.compile(program, **compile)
    for number, size in enumerate(SIZES):
        worlds = []
        for one in (program, function):
            x = torch.randn(size, 4, generator=torch.Generator().manual_seed(number), requires_grad=True)
            result, told = one(x)
            gradients = torch.autograd.grad(result.sum(), (x, WEIGHT), allow_unused=True)
            worlds.append((result.detach(), gradients, told, result.stride()))
        torch.testing.assert_close(worlds[1], worlds[0])
    stats = capture.stats(function)
    if program is squared:
        assert stats.captures == 2 and stats.hits == len(SIZES) - 2
        # around the function, the two pieces of the graph for all sizes; and that of the first size, which comes again
        assert stats.compiled == (0 if compile["backend"] == "eager" else 3)
