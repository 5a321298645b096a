"""Sums of matrix products are computed product by product, in one place."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from capture.backends import aot
from capture.backends.native.accumulation import accumulate_products
from capture.backends.native.artifact import Artifact, load
from capture.backends.native.compiler import compile_job
from capture.backends.native.job import Job, Modes
from capture.backends.native.tiers import specs
from tests.backends.native.test_products import recorded

torch.manual_seed(0)


def matrices(count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(24, 24, dtype=dtype) for _ in range(count)]


def accumulated(program: Callable[..., Tensor], *inputs: Tensor) -> int:
    with torch.no_grad():
        forward = aot.trace(recorded(program, len(inputs)), inputs).forward
    return accumulate_products(forward)


def compiled(gm: fx.GraphModule, inputs: list[Tensor]) -> Artifact:
    return compile_job(Job(gm, specs(gm, inputs), Modes.current(), {}))


def calls(artifact: Artifact, backward: bool = False) -> list[str]:
    plan = (artifact.backward[0] if backward else artifact.forward).plan
    return [step.op for step in plan.steps if step.kind == "extern"]


def four(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return a @ b + c @ d + b @ c + (d.t() @ a.t()).t()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_are_eagers(dtype: torch.dtype) -> None:
    inputs = matrices(4, dtype)
    gm = recorded(four, 4)
    artifact = compiled(gm, inputs)
    torch.testing.assert_close(load(artifact, gm)(*inputs), gm.forward(*inputs), rtol=1e-4, atol=1e-4, check_stride=True)
    assert calls(artifact).count("aten::addmm_") == accumulated(four, *inputs) >= 2


def test_a_shared_weight_has_one_gradient_in_memory() -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        for _ in range(5):
            x = (x @ weight).tanh()
        return x
    inputs = [each.requires_grad_() for each in matrices(2)]
    gm = recorded(program, 2)
    artifact = compiled(gm, inputs)
    assert calls(artifact, backward=True).count("aten::addmm_") == 4
    gradients = [torch.autograd.grad(run(*inputs)[0].sum(), inputs) for run in (load(artifact, gm), gm.forward)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("program", [
    lambda a, b, c, d: a @ b + c,
    lambda a, b, c, d: torch.add(a @ b, c @ d, alpha=2),
    lambda a, b, c, d: a @ b + (c @ d)[:1],
    lambda a, b, c, d: a @ b + (c @ d).t(),
    lambda a, b, c, d: ((a @ b).bfloat16() + (c @ d).bfloat16()).float(),
    lambda a, b, c, d: (product := a @ b) + c @ d + product.t(),
], ids=["a tensor", "alpha", "broadcast", "transposed", "rounded", "needed again"])
def test_others_stay(program: Callable[..., Tensor]) -> None:
    inputs = matrices(4)
    assert accumulated(program, *inputs) == 0
    gm = recorded(program, 4)
    run = load(compiled(gm, inputs), gm)
    torch.testing.assert_close(run(*inputs), gm.forward(*inputs), rtol=1e-4, atol=1e-4, check_stride=True)


def test_half_precision_is_rounded_after_each_operation() -> None:
    inputs = matrices(4, torch.bfloat16)
    assert accumulated(four, *inputs) == 0


def test_a_sum_that_is_needed_later_is_not_overwritten() -> None:
    def program(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        first = a @ b + c @ d
        return first, first + b @ c
    inputs = matrices(4)
    gm = fx.symbolic_trace(program)
    artifact = compiled(gm, inputs)
    torch.testing.assert_close(load(artifact, gm)(*inputs), gm.forward(*inputs), rtol=1e-4, atol=1e-4)


def test_a_factor_is_not_overwritten() -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        product = a @ b
        return torch.addmm(product, product, b)
    inputs = matrices(2)
    gm = recorded(program, 2)
    artifact = compiled(gm, inputs)
    assert "aten::addmm_" not in calls(artifact)
    torch.testing.assert_close(load(artifact, gm)(*inputs), gm.forward(*inputs), rtol=1e-4, atol=1e-4)
