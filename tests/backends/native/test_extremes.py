"""Reductions and pointwise operators on extreme inputs: kernels are about as exact as eager mode (`extremes.py` says how exact)."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import capture

pytest.importorskip("expecttest")       # torch's own tests need it

from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401
from tests.backends.native.extremes import POINTWISE, REDUCTIONS, search

SOME = 8            # of so many pointwise operators one is tested here …
PART = 3            # … and of so many reductions


def off(result: torch.Tensor, exact: torch.Tensor) -> float:
    return ((result.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-300)).item()


def constant(*shape: int) -> torch.Tensor:
    return (torch.randn(shape[0], *[1] * (len(shape) - 1)) * 1000).expand(shape).contiguous()


@pytest.mark.parametrize(("function", "make"), [
    (lambda x: x.std(), lambda: torch.arange(8) * 1e37),
    (lambda x: x.var(-1), lambda: torch.randn(4, 100) * 1e18),
    (lambda x: x.std(-1), lambda: torch.randn(4, 100) * 1e-22),
    (lambda x: x.var(-1), lambda: torch.randn(40, 1000) + 1e4),
    (lambda x: x.var(0), lambda: torch.randn(1000, 40) + 1e7),
    (lambda x: x.var(0), lambda: constant(40, 100).t()),
    (lambda x: x.var(), lambda: torch.cat([torch.full((1,), 1e6), torch.rand(10**6)])),      # the first is far from all others
    (lambda x: x.std(0), lambda: torch.cat([torch.full((1, 40), -1e6), torch.rand(10**5, 40)])),
    (lambda x: F.layer_norm(x, (100,)), lambda: constant(40, 100)),
    (lambda x: F.layer_norm(x, (1000,)), lambda: constant(40, 1000)),
    (lambda x: F.layer_norm(x, (100,)), lambda: torch.randn(40, 100) + 1e4),
    (lambda x: F.group_norm(x, 2), lambda: constant(40, 8, 100)),
    (lambda x: F.batch_norm(x, None, None, training=True), lambda: torch.randn(8, 4, 100) + 1e4),
    (lambda x: F.batch_norm(x, x[0], x[1].abs(), x[2], x[3]), lambda: torch.randn(40, 10) + 1e4),
    (lambda x: F.batch_norm(x, x[0], x[1].abs(), x[2], x[3]), lambda: torch.rand(40, 10) * 1e37),
    (lambda x: F.batch_norm(x, None, None, training=True, eps=1e-40), lambda: torch.randn(64, 3, 16, 16) * 1e-22),
    (lambda x: F.instance_norm(x), lambda: torch.randn(8, 4, 100) + 1e4),
    (lambda x: x.sum(-1), lambda: torch.rand(40, 5000)),
    (lambda x: x.sum(-1), lambda: constant(40, 5003)),
    (lambda x: x.sum(0), lambda: torch.rand(5000, 40)),
    (lambda x: x.mean(-1), lambda: constant(40, 1003)),
    (lambda x: x.sum(), lambda: torch.rand(10**7)),
    (lambda x: x.prod(-1), lambda: 1 + torch.randn(10, 3000) * 1e-3),
    (lambda x: x.logsumexp(-1), lambda: torch.randn(40, 1000)),
    (lambda x: F.mse_loss(x, x.flip(0)), lambda: torch.randn(10**6)),
])
def test_as_exact_as_eager_mode(function: Callable[[torch.Tensor], torch.Tensor], make: Callable[[], torch.Tensor]) -> None:
    torch.manual_seed(0)
    x = make()
    compiled = capture.compile(function, backend="native", options={"background": False})
    for _ in range(2):
        ours = compiled(x)
    assert capture.stats(compiled).compiled == 1
    exact = function(x.double())
    assert off(ours, exact) <= 2 * off(function(x), exact) + 2**-24


@pytest.mark.parametrize(("function", "x", "w"), [
    (lambda x, w, b: F.layer_norm(x, (1000,), w, b), torch.randn(64, 1000) + 100, torch.rand(1000)),
    (lambda x, w, b: F.layer_norm(x, (1000,), w, b), torch.randn(64, 1000) * 1e-40, torch.rand(1000) * 1e-40),
    (lambda x, w, b: F.group_norm(x, 2, w, b), torch.randn(64, 10, 100) + 1e7, torch.rand(10)),
    (lambda x, w, b: F.group_norm(x, 2, w, b), torch.randn(64, 10, 100) * 1e-40, torch.rand(10) * 1e-40),
])
def test_gradients_are_as_exact_as_eager_mode(function: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> None:
    torch.manual_seed(0)
    tangent = torch.randn(x.shape)

    def gradients(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in (x, w, w)]
        return list(torch.autograd.grad(function(*leaves), leaves, tangent.to(dtype)))

    compiled = capture.compile(function, backend="native", options={"background": False})
    for _ in range(2):
        ours = gradients(compiled, torch.float32)
    assert capture.stats(compiled).compiled == 1
    for mine, eager, exact in zip(ours, gradients(function, torch.float32), gradients(function, torch.float64), strict=True):
        assert off(mine, exact) <= 2 * off(eager, exact) + 2**-24


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("function", [lambda x, w: torch.native_layer_norm(x, (10,), w, w, 1e-5),
                                      lambda x, w: torch.native_group_norm(x, w, w, 2, 10, 1, 2, 1e-5)])
def test_statistics_have_eager_modes_dtype(function: Callable[..., list[torch.Tensor]], dtype: torch.dtype) -> None:
    x, w = torch.randn(2, 10, dtype=torch.bfloat16), torch.randn(10, dtype=dtype)
    compiled = capture.compile(function, backend="native", options={"background": False})
    for _ in range(2):
        ours = compiled(x, w)
    assert capture.stats(compiled).compiled == 1
    for a, b in zip(ours, function(x, w), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("function", [lambda x, y: F.smooth_l1_loss(x, y), lambda x, y: F.hardswish(x - y)])
def test_gradients_of_what_is_not_a_number(function: Callable[..., torch.Tensor]) -> None:
    x = torch.tensor([float("nan"), float("inf"), 0.5, 3.0, -1.0, 6.0, -3.0, 0.0]).repeat(8).requires_grad_()    # whole vectors
    y = torch.tensor([1.0, float("inf"), 0.0, float("nan"), 2.0, 3.0, 0.0, 0.0]).repeat(8)
    compiled = capture.compile(function, backend="native", options={"background": False})
    for _ in range(2):
        ours, = torch.autograd.grad(compiled(x, y).sum(), x)
    assert capture.stats(compiled).compiled == 1
    torch.testing.assert_close(ours, *torch.autograd.grad(function(x, y).sum(), x), equal_nan=True)


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    x = torch.randn(3, 1 << 20)
    compiled = capture.compile(lambda x: (x.sum(), x.sum(-1), x.std(), x.norm()), backend="native", options={"background": False})
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 1, 2, 3):
            torch.set_num_threads(count)
            results.append(compiled(x))
    finally:
        torch.set_num_threads(threads)
    for result in results[2:]:
        assert all(map(torch.equal, result, results[1]))


PRODUCTS = ["cross", "linalg.cross", "_softmax_backward_data", "nn.functional.group_norm", "nn.functional.smooth_l1_loss"]


@pytest.mark.parametrize("names", [REDUCTIONS[::2 * PART], REDUCTIONS[1::2 * PART], POINTWISE[::SOME], PRODUCTS],
                         ids=["reductions", "more", "pointwise", "products"])
def test_on_extreme_inputs(names: list[str]) -> None:
    count, found = search(names)
    assert count and not found, "\n".join(found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_statistics_of_batches_on_extreme_inputs(dtype: torch.dtype) -> None:
    """Means of infinities are infinite."""
    count, found = search(["_batch_norm_with_update"], 2, dtype=dtype)
    assert count and not found, "\n".join(found)
