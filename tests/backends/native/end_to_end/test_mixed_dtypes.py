"""Operands of several dtypes. For some operators torch's kernels without data find another dtype of the result than real ones."""
from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import helpers
from tests.backends.native.end_to_end.engine import AT_ONCE, check, compile, no_trial, runs_compiled  # noqa: F401
from tests.helpers import call

# Those whose dtype torch finds otherwise without data …
OTHERWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "huber_loss": lambda x, y: F.huber_loss(x, y) * 2,
    "huber_loss, each": lambda x, y: F.huber_loss(x + 1, y, reduction="none"),
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, y.sign()),
    "block_diag": lambda x, y: torch.block_diag(x, y[0, 0]),
    "addr": lambda x, y: torch.addr(y[0, 0], x[0], x[1]),
    "normal": lambda x, y: torch.normal(x, y * 0),
    "ldexp": lambda x, y: torch.ldexp(x.to(torch.int16), y[0, 0].bfloat16()),
}
# … and others.
ALIKE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse_loss": lambda x, y: F.mse_loss(x, y),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y),
    "binary_cross_entropy_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "where": lambda x, y: torch.where(x > 0, x, y[0, 0]),
    "layer_norm": lambda x, y: F.layer_norm(x.bfloat16(), (4,), y[0].float(), y[1].float()),
    "stack": lambda x, y: torch.stack([x, y, x > 0]),
}


X, Y = torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(2, -1, 12).view(3, 4).double()


@pytest.mark.parametrize("name", ALIKE)
def test_compiled(name: str) -> None:
    check(lambda: ALIKE[name], *[call(X * n, Y) for n in (1, 2, 3)])


@pytest.mark.parametrize("name", OTHERWISE)
def test_of_the_type_that_the_capture_saw(name: str) -> None:
    helpers.check(lambda: OTHERWISE[name], *[call(X * n, Y) for n in (1, 2, 3)], tolerance=2e-5, **AT_ONCE)


def test_the_rest_of_the_graph_is_compiled() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        loss = F.huber_loss((x * 2).sin(), y)
        return loss, (loss * 3).exp() + x

    stats = helpers.check(lambda: program, *[call(X * n, Y) for n in (1, 2, 3, 4, 5)], tolerance=2e-5, **AT_ONCE)
    assert stats.compiled, stats


@pytest.mark.parametrize("number", [3, 3.75, True, 300, -1, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_numbers_that_are_copied(number: float, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        changed = x.to(dtype).clone()
        changed[1:].copy_(number)
        return changed, torch.empty(3, dtype=dtype).copy_(number)

    if dtype == torch.uint8 and number == -1:
        number = 255
    check(lambda: program, *[call(X.abs() * n) for n in (1, 2, 3)])


def test_sizes_that_are_copied() -> None:
    check(lambda: lambda x: x.clone().copy_(x.shape[0]), *[call(X.view(-1)[:n]) for n in (3, 3, 4, 5, 6, 6)], captures=2, hits=4)


@pytest.fixture
def warned_of_complex_half() -> None:
    """Torch warns of it once in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.empty(1, dtype=torch.complex32)


@pytest.mark.usefixtures("warned_of_complex_half")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_real_numbers_and_complex_ones(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x == 1j, x != 1 + 0j, x * (1 + 1j), x + 2j

    check(lambda: program, *[call((X * n).to(dtype)) for n in (1, 2, 3)])


@pytest.mark.usefixtures("warned_of_complex_half")
def test_complex_numbers_of_half_width() -> None:
    def program(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        narrow = z.to(torch.complex32)
        return narrow * 2, narrow + 1.5, narrow == narrow, x.half() == z[0, 0], narrow.abs(), x.half() * z[0, 0]

    check(lambda: program, *[call(X * n, torch.complex(X, X * n)) for n in (1, 2, 3)])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float16, torch.float64])
def test_dtypes_of_reductions(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return (x.sum(dtype=dtype), x.sum(0, dtype=dtype), x.prod(dtype=dtype), x.prod(1, dtype=dtype), (x > 1).sum(1, dtype=dtype),
                x.nansum(0, dtype=dtype), x.to(torch.int64).prod(0, dtype=dtype))

    check(lambda: program, *[call((X * n).trunc()) for n in (1, 2, 3)])


@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_reductions_of_complex_numbers_to_real_ones() -> None:
    def program(z: Tensor) -> tuple[Tensor, ...]:
        return (z.mean(dtype=torch.float32), z.mean(0, dtype=torch.float64), z.sum(dtype=torch.float32),
                z.sum(1, dtype=torch.int64), (z * 1j).sum(0, dtype=torch.bool), torch.zeros_like(z, dtype=torch.float32))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        z = torch.complex(X, X)
        expected = program(z)
        compiled = compile(program)
        for _ in range(3):
            result = compiled(z)
    assert runs_compiled(compiled)
    for one, other in zip(expected, result, strict=True):
        torch.testing.assert_close(other, one)


@pytest.mark.parametrize("trains", [False, True])
def test_what_a_view_was_made_of_is_asked_after_a_break(trains: bool) -> None:
    """Traced, the view has no base: there is no dtype to compare."""
    def program(x: Tensor) -> tuple[object, ...]:
        y = x * 2
        view = y[0]
        version = y._version
        return y, view, view._base is y, version

    steps = [call((X * n).requires_grad_(trains)) for n in (1, 2, 3)]
    stats = helpers.check(lambda: program, *steps, fullgraph=False, captures=None, **AT_ONCE)
    assert stats.compiled and not stats.compile_errors, stats


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 3e38])
def test_means_of_complex_numbers_that_are_not_finite(value: float) -> None:
    def program(z: Tensor) -> tuple[Tensor, ...]:
        return z.mean(), z.mean(1), (z * 2).mean(0) + 1, z.sum(1), z / 3

    z = torch.tensor([[1 + 1j, complex(value, 1), 2j], [1, complex(1, value), complex(value, value)]])
    check(lambda: program, *[call(z) for _ in range(3)])
