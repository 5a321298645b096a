"""Autograd functions of the program's that are left to torch: those which do more than to compute, or ask more of autograd."""
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests import helpers
from tests.backends.native.end_to_end.autograd_functions import X, differentiable
from tests.backends.native.end_to_end.engine import AT_ONCE, compile, no_trial  # noqa: F401
from tests.helpers import call

LOG: list[str] = []


class Left:
    class Dirty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    class KeepsUnsaved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.x * gradient

    class NoGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return None

    class AsksForLayout(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (2 if gradient.is_contiguous() else 3)

    class LooksAtValues(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * (2 if x.sum() > 0 else 3)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (2 if gradient.sum() > 0 else 3)

    class Draws(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * torch.rand(3, 4)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * torch.rand(3, 4)

    class WritesToItsGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.mul_(2)

    class WritesBehindAutograd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            x, = ctx.saved_tensors
            x.data.mul_(2)
            return gradient * x

    class Tells(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            LOG.append("backward")
            return gradient * len(LOG)

    class Unmaterialised(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, first, second):
            return (first if second is None else second) * 2

    class AddsToItsGradient(torch.autograd.Function):
        """Its gradient is not zero where that of its result is."""

        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            y, = ctx.saved_tensors
            return gradient + y

    class HasAConstantGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return torch.ones(3, 4)

    class Clips(torch.autograd.Function):
        """Its gradient for a sum is not the sum of its gradients."""

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.clamp(-0.1, 0.1)

    class Counts(torch.autograd.Function):
        """Its second backward pass is another one than its first."""

        @staticmethod
        def forward(ctx, x):
            ctx.factors = [5, 3, 2]
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.factors.pop()

    class Replaces(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.factor = x.exp()
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            ctx.factor = ctx.factor * 2
            return gradient * ctx.factor

    class Walks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.factors = enumerate([5, 3, 2])
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            for _, factor in ctx.factors:
                return gradient * factor

    class GradientsInside(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, gradient):
            x, = ctx.saved_tensors
            with torch.enable_grad():
                y = x.detach().requires_grad_().sin()
            return torch.autograd.grad(y, x, gradient, allow_unused=True)[0]


def of_a_library(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, as if an installed package had defined it."""
    return staticmethod(type(differentiable)(function.__code__.replace(co_filename=nn.__file__), globals()))


class OfALibrary(torch.autograd.Function):
    forward = of_a_library(lambda ctx, x: x * 2)
    backward = of_a_library(lambda ctx, gradient: (LOG.append("backward"), gradient * len(LOG))[1])


Left.OfALibrary = OfALibrary


@pytest.mark.parametrize("name", [name for name in vars(Left) if name[0] != "_"])
def test_left_to_torch(name: str) -> None:
    function = getattr(Left, name)

    def program(x: Tensor) -> Any:
        y = function.apply(x * 2)
        return y[0] + 1 if isinstance(y, tuple) else y + 1

    def make() -> Any:
        LOG.clear()
        return program, SimpleNamespace(log=LOG)
    calls = [call(differentiable(X + n)) for n in range(4)]
    stats = helpers.check(make, *calls, captures=None, fullgraph=False, breaks=None, backward=True, tolerance=2e-5, **AT_ONCE)
    assert not stats.compiled, stats


@pytest.mark.parametrize("name", ["AddsToItsGradient", "HasAConstantGradient", "Clips", "Counts", "Replaces", "Walks"])
def test_backward_passes_of_all_kinds(name: str) -> None:
    """From a result that does not come from the function; from two results one after the other; gradients of gradients."""
    function = getattr(Left, name)

    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = function.apply(x)
        return y + 1, x * 3, function.apply(y).sin()

    def gradients(compiled: Callable[..., Any], way: str) -> list[Tensor]:
        x = differentiable()
        first, second, third = compiled(x)
        if way == "second":
            return [torch.autograd.grad(second.sum(), x)[0]]
        if way == "twice":
            return [torch.autograd.grad(part.sum(), x, retain_graph=True)[0] for part in (first, third, first)]
        gradient, = torch.autograd.grad((first.sin() + third).sum(), x, create_graph=True)
        found = gradient.requires_grad and torch.autograd.grad(gradient.pow(2).sum(), x, allow_unused=True)[0]
        return [gradient, found if isinstance(found, Tensor) else gradient]
    compiled = compile(program)
    for _ in range(3):
        compiled(differentiable())
    for way in ("second", "twice", "again"):
        torch.testing.assert_close(gradients(compiled, way), gradients(program, way), rtol=1e-4, atol=1e-5)
