"""Convolutions by filters of one pixel are products, and nothing that a program can observe tells."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from capture.backends import aot
from capture.backends.native.artifact import load
from capture.backends.native.compiler import compile_job
from capture.backends.native.job import Job, Modes
from capture.backends.native.pixelwise import use_products
from capture.backends.native.tiers import specs

aten = torch.ops.aten
FORMATS = [torch.contiguous_format, torch.channels_last]


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return (F.conv2d(x, weight),)


def biased(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    y = F.conv2d(x, weight, bias)
    return y, F.conv2d(F.silu(y), weight.reshape(-1, 7, 1, 1)).permute(0, 2, 3, 1).sum(-1)


def arguments(shape: Sequence[int], memory_format: torch.memory_format, requires_grad: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(*shape).to(memory_format=memory_format)
    return [t.requires_grad_(requires_grad) for t in (x, torch.randn(7, shape[1], 1, 1), torch.randn(7))]


def operators(program: Callable, inputs: list[Tensor]) -> set[object]:
    with torch.no_grad():
        forward = aot.trace(fx.symbolic_trace(program), inputs).forward
    use_products(forward)
    return {node.target for node in forward.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize(("program", "training"), [(plain, False), (biased, False), (biased, True)])
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 6, 4), (3, 5, 1, 1), (2, 1, 4, 1)], ids=str)
def test_results_and_gradients_are_eagers(program: Callable, memory_format: torch.memory_format, shape: tuple[int, ...],
                                          training: bool) -> None:
    inputs = arguments(shape, memory_format, training)
    gm = fx.symbolic_trace(program)
    with torch.set_grad_enabled(training):
        compiled = load(compile_job(Job(gm, specs(gm, inputs), Modes.current(), {})), gm)
        for _ in range(2):
            ours, theirs = compiled(*inputs), gm.forward(*inputs)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, check_stride=True)
            if training:
                gradients = [torch.autograd.grad(sum(r.square().sum() for r in results), inputs) for results in (ours, theirs)]
                torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_what_they_become() -> None:
    assert aten.convolution.default not in operators(plain, arguments((2, 5, 6, 4), torch.channels_last))
    assert aten.mm.default in operators(plain, arguments((2, 5, 6, 4), torch.channels_last))
    assert aten.addmm.default in operators(biased, arguments((2, 5, 1, 1), torch.contiguous_format))
    assert aten.bmm.default in operators(plain, arguments((2, 5, 6, 4), torch.contiguous_format))


@pytest.mark.parametrize("change", [
    lambda x, w, b: (F.conv2d(x, w, stride=2),), lambda x, w, b: (F.conv2d(x, w, padding=1),),
    lambda x, w, b: (F.conv2d(x.double(), w.double()),), lambda x, w, b: (F.conv2d(x.bfloat16(), w.bfloat16()),),
    lambda x, w, b: (F.conv2d(x[:, :, ::2], w),), lambda x, w, b: (F.conv_transpose2d(x, w.transpose(0, 1).contiguous()),),
    lambda x, w, b: (F.conv2d(x.repeat(1, 7, 1, 1), b.view(7, 1, 1, 1).repeat(5, 1, 1, 1), groups=35),),
], ids=["stride", "padding", "double", "bfloat16", "strided image", "transposed", "grouped"])
def test_others_stay(change: Callable) -> None:
    assert aten.convolution.default in operators(change, arguments((2, 5, 6, 4), torch.contiguous_format))
