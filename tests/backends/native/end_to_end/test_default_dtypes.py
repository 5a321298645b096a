"""Kernels of graphs that run under another default dtype than the process that compiles them."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import capture
from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401
from tests.helpers import call, check


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def default(request) -> Iterator[torch.dtype]:
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def promoted(x, y):
    """Integers become floats of the default dtype."""
    return x / y, x / 2, x.sum() / 3, x * 2.5, x.sigmoid(), torch.true_divide(y, x), x.square().sum().sqrt()


def made(x, y):
    return torch.ones(3) + x, torch.full((3,), 0.1) * y, torch.tensor(0.1) + y, torch.arange(0.0, 3.0) - x


@pytest.mark.parametrize("program", [promoted, made])
def test_integers(program, default: torch.dtype) -> None:
    compiled = capture.compile(program, backend="native", options={"background": False})
    x, y = torch.tensor([1, 2, 7]), torch.tensor([3, 4, 9])
    for _ in range(3):
        torch.testing.assert_close(compiled(x, y), program(x, y))
    assert capture.stats(compiled).compiled == 1
    torch.set_default_dtype(torch.float32)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, y), program(x, y))


def test_training() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        def make():
            layer, counts = nn.Linear(4, 3), torch.arange(4)

            def program(x):
                loss = layer(x * (counts / 3)).square().mean()
                loss.backward()
                return loss.detach()
            return program, layer
        check(make, *[call(torch.ones(2, 4))] * 3, captures=None, backend="native", options={"background": False},
              tolerance=1e-9)
    finally:
        torch.set_default_dtype(torch.float32)
