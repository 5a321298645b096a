"""Operators whose kernels call others that autocast casts: eager mode casts there, and so does a hit."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests import helpers
from tests.backends.native.end_to_end.engine import AT_ONCE, check, compile, no_trial  # noqa: F401
from tests.helpers import call


def inverted(x: Tensor) -> Tensor:
    return torch.linalg.pinv(x)


def inverted_hermitian(x: Tensor) -> Tensor:
    return torch.linalg.pinv(x @ x.T + torch.eye(4), hermitian=True)


def inverted_in_double(x: Tensor) -> Tensor:
    return torch.linalg.pinv(x.double(), rtol=1e-3)


def bilinear(x: Tensor) -> Tensor:
    return F.bilinear(x, x.sin(), torch.ones(3, 4, 4).cumsum(0), torch.ones(3))


def three_linear(x: Tensor) -> Tensor:
    return torch._trilinear(x, x.sin(), x.cos(), [], [], [], [0])


def distances(x: Tensor) -> Tensor:
    return torch._euclidean_dist(x, x + 1)


def products(x: Tensor) -> Tensor:
    return torch._foreach_mm([x, x + 1], [x.T, x])[1]


def encoded(x: Tensor) -> Tensor:
    weights = torch.ones(12, 4).cumsum(0) / 12
    bias = weights[:, 0]
    return torch._transformer_encoder_layer_fwd(
        x[None], 4, 2, weights, bias, weights[:4], bias[:4], False, False, 1e-5, bias[:4], bias[:4], bias[:4], bias[:4],
        weights[:8], bias[:8], weights[:8].reshape(4, 8), bias[:4])


def in_a_branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: F.bilinear(x, x, torch.ones(3, 4, 4)) * 2, lambda x: x[:, :3] * 2, (x,))


def of_each_row(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: F.bilinear(row, row, torch.ones(3, 4, 4).cumsum(0)))(x)


def differentiated(x: Tensor) -> Tensor:
    return torch.func.grad(lambda x: F.bilinear(x, x, torch.ones(3, 4, 4).cumsum(0)).sum())(x)


class Bilinear(torch.autograd.Function):
    """One whose code is recorded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.bilinear(x, x, torch.ones(3, 4, 4).cumsum(0))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, = ctx.saved_tensors
        return F.bilinear(gradient, x, torch.ones(4, 3, 4).cumsum(0))


def in_a_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(bilinear, x, use_reentrant=False)


def of_an_autograd_function(x: Tensor) -> Tensor:
    return Bilinear.apply(x)


PROGRAMS = [inverted, inverted_hermitian, inverted_in_double, bilinear, three_linear, distances, encoded]
PROGRAMS += [products] if hasattr(torch, "_foreach_mm") else []
UNDIVIDED = [in_a_branch, in_a_checkpoint, of_each_row, differentiated, of_an_autograd_function]


def around(operation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    """In an autocast block of the program's own, between operations that are compiled."""
    def program(x: Tensor) -> Any:
        before = (x * 2).tanh() + x
        with torch.autocast("cpu", torch.bfloat16):
            made = operation(before)
        return made, (made * 2).sin() + 1
    return program


def calls(rows: Callable[[int], int] = lambda number: 4, gradients: bool = False) -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    return [call(torch.randn(rows(number), 4, generator=generator, requires_grad=gradients)) for number in range(6)]


@pytest.mark.parametrize("operation", PROGRAMS)
@pytest.mark.parametrize("gradients", [False, True])
def test_in_a_block_of_the_program(operation: Callable[[Tensor], Tensor], gradients: bool) -> None:
    stats = helpers.check(lambda: around(operation), *calls(gradients=gradients), tolerance=1e-4, **AT_ONCE)
    assert stats.compiled and not stats.compile_errors, stats


@pytest.mark.parametrize("operation", [*PROGRAMS, *UNDIVIDED])
@pytest.mark.parametrize("gradients", [False, True])
def test_in_a_block_around_the_call(operation: Callable[[Tensor], Tensor], gradients: bool) -> None:
    """As the program itself: gradients too, outside of the block, and what a backward pass raises."""
    compiled = compile(operation)
    generator = torch.Generator().manual_seed(5)
    for _ in range(6):
        given = torch.randn(4, 4, generator=generator)
        seen = []
        for program in (operation, compiled):
            x = given.clone().requires_grad_(gradients)
            with torch.autocast("cpu", torch.bfloat16):
                made = program(x)
            raised = None
            try:
                if gradients and made.requires_grad:
                    made.float().square().sum().backward()
            except RuntimeError as error:
                raised = str(error)
            seen.append((made.detach(), x.grad, raised))
        (expected, gradient, error), (made, *found) = seen
        torch.testing.assert_close(made, expected, rtol=0, atol=0)
        assert found[1] == error
        if gradient is None:
            assert found[0] is None
        else:
            torch.testing.assert_close(found[0], gradient, rtol=1e-5, atol=1e-5)


def test_without_autocast_they_are_compiled() -> None:
    check(lambda: lambda x: bilinear(x) * 2, *calls(), tolerance=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_other_backends(backend: str) -> None:
    helpers.check(lambda: around(inverted_hermitian), *calls(), tolerance=1e-5, backend=backend)


def test_sizes_that_change() -> None:
    helpers.check(lambda: around(bilinear), *calls(lambda number: 4 + number), captures=2, tolerance=1e-5, **AT_ONCE)
